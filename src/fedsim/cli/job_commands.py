"""Commands that review a job, run it and use its model; heavy modules are imported when a command runs."""

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli import options as opt
from fedsim.cli.options import Json, OutputMode, Quiet, argument, flag, option

# Review a job


def approve(
    job: opt.JobFile,
    party: opt.PartyPath,
    yes: Annotated[bool, flag("Approve without asking.", "--yes")] = False,
    by: Annotated[str, option("NAME", "Who approves. Default: FEDSIM_APPROVER, or your account on this machine.")] = "",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what a job discloses about your data, and to whom; then approve or decline it.

    Nothing is sent. A party takes part only in jobs that its owner approved; a changed job needs a new approval. The
    approval records who gave it and when, and is signed with the party's key if its certificate is there; `fedsim
    check` verifies it.
    """
    from fedsim.cli.agreement import run_approve

    if not run_approve(job, party, OutputMode(quiet, as_json), yes=yes, by=by):
        raise typer.Exit(2)


def check(
    job: opt.JobFile,
    parties: Annotated[
        list[Path] | None, argument("PARTY_FILE", "Party files; without any, check the job alone.")
    ] = None,
    mbit: Annotated[float, option("MBIT", "Bandwidth in Mbit/s.", min=0.001)] = 100.0,
    ping_ms: Annotated[float, option("MS", "Round-trip latency in milliseconds.", min=0.0)] = 20.0,
    peers: Annotated[
        bool, flag("Test the connections to other parties with a TLS handshake.", "--peers/--no-peers")
    ] = False,
    verbose: opt.Verbose = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check a job and party files, suggest fixes, and estimate traffic and time.

    Nothing is written, and no data is sent. The exit code is 0 if there are no errors (warnings are allowed), else 2.

    fedsim check job.toml rentals.toml --mbit 20 --ping-ms 35
    """
    from fedsim.cli.agreement import run_check

    if not run_check(job, parties or [], (mbit, ping_ms), OutputMode(quiet, as_json, verbose), call_peers=peers):
        raise typer.Exit(2)


def compare(
    job: opt.JobFile,
    parties: Annotated[
        list[Path], argument("PARTY_FILE", "Files of the primary and all secondaries, or the primary's alone.")
    ],
    out: Annotated[
        Path, option("FOLDER", "Folder for ladder.json and all results; a second run continues there.")
    ] = Path("fedsim-compare"),
    seeds: Annotated[int, option("N", "Number of random seeds, each with its own split.", min=1)] = 5,
    epochs: Annotated[
        int | None,
        option(
            "N", "Initial number of epochs; training continues until it stops improving. Default: the job's.", min=1
        ),
    ] = None,
    unit: Annotated[str, option("UNIT", "Unit of the label. Default: the label's name.")] = "",
    again: opt.Again = False,
    wait: opt.Wait = 60.0,
    insecure: opt.Insecure = False,
    quiet: Quiet = False,
    verbose: opt.Verbose = False,
    as_json: Json = False,
) -> None:
    """Estimate what a partner contributes: train without it, with it, and with a placebo partner.

    All tables are read in this process and nothing is sent. Linkage and protection follow the job. Every method is
    trained for every seed, with a random split and with one that keeps records with equal identifiers together, or with
    the job's own split if it is by time or by a column. The headline refers to the job's split. Results are stored:
    stop at any time and run the command again to continue.

    With the primary's file alone, the secondaries take part over the network after training: they must run with
    --stay, and their policies must allow it (max_studies).

    fedsim compare job.toml city.toml rentals.toml --seeds 5
    """
    from fedsim.cli.evaluation import CompareOptions, run_compare

    options = CompareOptions(seeds, epochs, unit, wait, insecure, again)
    run_compare(job, parties, out, options, OutputMode(quiet, as_json, verbose))


def tune(
    job: opt.JobFile,
    parties: Annotated[list[Path], argument("PARTY_FILE", "Files of the primary and all secondaries.")],
    values: Annotated[
        list[str] | None,
        option(
            "NAME=LIST",
            "Values to try, such as k=5,10 or width=128,256: k or a setting of [training]. Repeat for others. Default: "
            "values around the job's.",
            "--try",
        ),
    ] = None,
    seeds: Annotated[int, option("N", "Number of random splits per setting.", min=1)] = 1,
    epochs: Annotated[int | None, option("N", "Maximum number of epochs. Default: the job's.", min=1)] = None,
    out: Annotated[Path, option("FOLDER", "Folder for all results; a second run continues there.")] = Path(
        "fedsim-tune"
    ),
    write: Annotated[Path | None, option("FILE", "Write a copy of the job with the best settings.")] = None,
    again: opt.Again = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search for the number of partners, learning rate, width and members with the best validation score.

    All tables are read in this process and nothing is sent. Settings are tuned one after another; the test records are
    used only for the best settings. Results are stored: stop at any time and run the command again to continue.

    fedsim tune job.toml city.toml rentals.toml --try learning_rate=0.001,0.002 --write tuned.toml
    """
    from fedsim.cli.evaluation import TuneOptions, run_tune

    options = TuneOptions(values or [], seeds, epochs, write, again)
    run_tune(job, parties, out, options, OutputMode(quiet, as_json))


privacy_app = typer.Typer(
    no_args_is_help=True,
    cls=opt.SectionedGroup,
    help="Verify audit logs, document data protection, delete stored activations, convert noise and bounds.",
)


@privacy_app.command()
def delete(
    job: opt.JobFile,
    party: opt.PartyPath,
    of: Annotated[
        list[str] | None, option("NAME", "Secondary whose owner requested the deletion; may be repeated.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Delete activations that the primary stores under sealed labels: those whose retention has ended, or --of NAME.

    The owner of the primary runs it, and its audit log records it. The party must not be running.

    fedsim privacy delete job.toml city.toml --of rentals
    """
    from fedsim.cli.results import run_delete

    run_delete(job, party, of or [], OutputMode(quiet, as_json))


@privacy_app.command()
def key(
    party: opt.PartyPath,
    rotate: Annotated[bool, flag("Destroy the key and create another; the count goes on.", "--rotate")] = False,
    destroy: Annotated[bool, flag("Destroy the key for good.", "--destroy")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show the key of a secondary's encrypted table and the tokens evaluated with it, or --rotate or --destroy it.

    With a destroyed key nobody can open another row, ever: models predict only records whose tokens are known. What was
    opened stays with the primary until its retention ends. The party must not be running.

    fedsim privacy key rentals.toml --destroy
    """
    from fedsim.cli.results import run_table_key

    run_table_key(party, OutputMode(quiet, as_json), rotate=rotate, destroy=destroy)


@privacy_app.command()
def ledger(party: opt.PartyPath, quiet: Quiet = False, as_json: Json = False) -> None:
    """Show what a secondary's table has shown to whom, the terms that it keeps for life, and what is left.

    fedsim privacy ledger rentals.toml
    """
    from fedsim.cli.results import run_ledger

    run_ledger(party, OutputMode(quiet, as_json))


# Run a job and use its model


def party(
    job: opt.JobFile,
    party: opt.PartyPath,
    insecure: opt.Insecure = False,
    stay: Annotated[bool, flag("Keep running after training, for predictions; not for the primary.", "--stay")] = False,
    again: opt.Again = False,
    table: Annotated[
        Path | None,
        option("FILE", "Secondary: write its encrypted table to a file and exit; primary: use it, and fetch none."),
    ] = None,
    quiet: Quiet = False,
    verbose: opt.Verbose = False,
    as_json: Json = False,
) -> None:
    """Run one party of a job: coordinator, primary or secondary, as its party file says.

    Start the parties in any order; each waits for the others. A party that was stopped or killed continues where it
    left off when you run the same command again. The coordinator sees at most encoded identifiers; a secondary needs no
    open port.

    If its table, key, party file or the release changed since, the stored run is not used (exit code 3). To run the job
    again, start every party with --again.

    fedsim party job.toml city.toml
    """
    from fedsim.cli.party import run_party

    mode = OutputMode(quiet, as_json, verbose)
    run_party(job, party, mode, insecure=insecure, stay=stay, again=again, table=table)


def train(
    job: opt.JobFile,
    parties: Annotated[list[Path], argument("PARTY_FILE", "The files of all parties.")],
    again: opt.Again = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run all parties of a job in one process; messages and weights are the same as in separate processes.

    If a table, key, party file or the release changed since, the stored run is not used (exit code 3).

    fedsim train job.toml notary.toml city.toml rentals.toml
    """
    from fedsim.cli.party import run_all_parties

    run_all_parties(job, parties, OutputMode(quiet, as_json), again=again)


def runs(
    folder: Annotated[Path, argument("FOLDER", "Folder to search, a few levels deep.")] = Path(),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """List the runs under a folder, newest last, and the settings in which they differ.

    fedsim runs city-run
    """
    from fedsim.cli.results import run_runs

    run_runs(folder, OutputMode(quiet, as_json))


def report(
    run: Annotated[Path, argument("RUN", "Run folder of a primary, or a folder that contains one such run.")],
    named: Annotated[
        Path | None,
        option(
            "PARTY_FILE",
            "The primary's file: add row numbers and identifiers of the examples; do not share this page.",
            "--show-identifiers",
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write report.html and the model card of a run again, with everything that its folder now contains.

    It includes the results of `fedsim compare --out RUN/compare` and of the last `fedsim audit`. The page works
    offline. Example records appear without row number and identifiers unless --show-identifiers is given.
    """
    from fedsim.cli.results import run_report

    run_report(run, named, OutputMode(quiet, as_json))


def predict(
    job: opt.JobFile,
    party: opt.PartyPath,
    records: Annotated[str, option("TABLE", f"Table of new records: {opt.TABLE_HELP}, or postgresql://...#table.")],
    out: Annotated[Path, option("FILE", "CSV file to write, such as predictions.csv.")],
    query: Annotated[str | None, option("SQL", "Query for the database of --records, instead of a table.")] = None,
    keep: Annotated[list[str] | None, option("COLUMN", "Column to copy to the output; may be repeated.")] = None,
    matches: Annotated[
        bool, flag("Add which partner record was chosen as the match, and how certain that is.", "--matches")
    ] = False,
    explain: Annotated[
        Path | None, option("FILE", "Also write what contributed to each prediction to this CSV file.")
    ] = None,
    skip_invalid: Annotated[
        bool, flag("Predict the valid records, with their row numbers, and list the others.", "--skip-invalid")
    ] = False,
    wait: opt.Wait = 60.0,
    separator: opt.Separator = None,
    insecure: opt.Insecure = False,
    quiet: Quiet = False,
    verbose: opt.Verbose = False,
    as_json: Json = False,
) -> None:
    """Predict new records of the primary; the other parties run with --stay.

    All records are predicted or none: if a cell is invalid, the error names its row and column and the number of such
    rows, and nothing is written. With --skip-invalid the other records are predicted, and the column `row` says which.

    fedsim predict job.toml city.toml --records new-flats.csv --out predictions.csv
    """
    from fedsim.cli.results import run_predict

    mode, table, columns = OutputMode(quiet, as_json, verbose), (records, query), keep or []
    run_predict(
        job,
        party,
        table,
        out,
        mode,
        keep=columns,
        matches=matches,
        explain=explain,
        skip_invalid=skip_invalid,
        separator=separator,
        wait=wait,
        insecure=insecure,
    )


@privacy_app.command()
def log(
    file: Annotated[Path, argument("FILE", "Audit log, such as rentals-run/audit.jsonl.")],
    as_json: Annotated[bool, flag("Print the entries as one JSON object.", "--json")] = False,
    quiet: Quiet = False,
) -> None:
    """Show a party's audit log and verify that no line was changed, added or removed.

    Every line holds the hash of the line before it. This cannot show that the owner rewrote the whole log.

    fedsim privacy log rentals-run/audit.jsonl
    """
    from fedsim.cli.results import run_log

    run_log(file, OutputMode(quiet, as_json))
