"""Declarations of ``fedsim audit`` and of the calculations of ``fedsim privacy``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli import options as opt
from fedsim.cli.options import Json, OutputMode, Quiet, argument, flag, option

QUICK_RECORDS, QUICK_TARGETS = 1_000, 100


def audit(
    job: opt.JobFile,
    parties: Annotated[
        list[Path],
        argument(
            "PARTY_FILE",
            "Files of the parties whose tables are available: primary and secondary for exact figures; a single "
            "table is split into two halves.",
        ),
    ],
    out: Annotated[Path, option("NAME", "Write NAME.json and NAME.html.")] = Path("audit"),
    limit: Annotated[
        float,
        option("GAIN", "Largest acceptable gain over guessing (0 to 1)."),
    ] = 0.01,
    fail_above: Annotated[
        float | None, option("GAIN", "Same as --limit, but exit with code 2 if an attack exceeds it.")
    ] = None,
    metres: Annotated[float, option("M", "Distance within which a location counts as found.")] = 500.0,
    seed: Annotated[int, option("N", "Random seed.")] = 0,
    most_records: Annotated[int, option("N", "Sample larger tables to this many records.")] = 5_000,
    epochs: Annotated[int, option("N", "Epochs of the training that is attacked.")] = 3,
    quick: Annotated[bool, flag("Fewer records, one epoch: under a minute.", "--quick")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack your own linkage and training, and report who could learn what.

    Nothing is sent and no approval is needed; the audit reads the tables of the party files. The exit code is 0, or 2
    if --fail-above is given and an attack gains more or a guarantee of the job is broken.

    fedsim audit job.toml city.toml rentals.toml --fail-above 0.5
    """
    from fedsim_audit.audit_report import AuditSettings
    from fedsim_audit.cli.audit_output import run_audit

    limit, seed = limit if fail_above is None else fail_above, opt.check_seed(seed)
    settings = AuditSettings(limit=limit, metres=metres, seed=seed, most_records=most_records, epochs=epochs)
    if quick:
        records = min(most_records, QUICK_RECORDS)
        settings = replace(settings, most_records=records, targets=QUICK_TARGETS, epochs=1)
    exceeded = run_audit(job, parties, settings, opt.check_out_name(out), OutputMode(quiet, as_json))
    if fail_above is not None and exceeded:
        raise typer.Exit(2)


def governance(
    job: opt.JobFile,
    parties: Annotated[
        list[Path] | None,
        argument("PARTY_FILE", "Your own party file, and those of others if you have them. Default: beside the job."),
    ] = None,
    out: Annotated[Path, option("FILE", "Markdown file to write.")] = Path("governance.md"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write what a data protection officer asks for: processing, data flows, residual risks and open questions.

    Everything comes from job, party files, approvals, ledgers and audits; what they do not say is listed as an open
    question. Nothing is sent and no table is read.

    fedsim privacy governance job.toml city.toml
    """
    from fedsim.cli.output import print_lines
    from fedsim.config import read_job, read_party_file
    from fedsim.config.party_file import require_membership
    from fedsim_audit.governance import write_governance

    agreed = read_job(job)
    beside = (job.with_name(f"{party.name}.toml") for party in agreed.parties)
    paths = parties or [path for path in beside if path.is_file()]
    files = [read_party_file(path) for path in paths]
    for file in files:
        require_membership(agreed, file)
    write_governance(agreed, files, out)
    lines = [f"Wrote {out}", f"from {', '.join(map(str, (job, *paths)))}"]
    value = {"file": str(out), "parties": [str(path) for path in paths]}
    OutputMode(quiet, as_json).show(value, lambda: print_lines(lines))


# Noise and its bound

JsonOnly = Annotated[bool, flag("Print the result as one JSON object.", "--json")]


def table(
    spread: Annotated[
        float | None, option("X", "Standard deviation of the distances; or use --job and --party.")
    ] = None,
    taus: Annotated[str, option("LIST", "Bounds, separated by commas.")] = "0.5,0.1,0.05,0.01,0.001,0.0001",
    links: Annotated[int, option("N", "Number of links to one partner; its filter affects all of them.")] = 20,
    job: Annotated[Path | None, option("JOB", "Job whose tables give the spread.")] = None,
    party: Annotated[list[Path] | None, option("PARTY_FILE", "Party file of that job; may be repeated.")] = None,
    as_json: JsonOnly = False,
) -> None:
    """Print noise and epsilon (delta 1e-5, filters that differ in one bit) for several bounds.

    fedsim privacy table --spread 21178.86 --taus 0.01,0.001
    """
    from fedsim_audit.cli.audit_output import print_privacy_table

    print_privacy_table(spread, taus, links, (job, party or []), OutputMode(json=as_json))
