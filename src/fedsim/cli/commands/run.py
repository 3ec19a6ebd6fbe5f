"""Commands that run a job and use its model: party, train, runs, report, predict, serve and log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import Insecure, JobFile, Json, PartyPath, Quiet, Separator, Verbose, Wait

if TYPE_CHECKING:
    from fedsim.runs.audit_log import AuditEntry

# ``fedsim party``: one party of a job as a process; ``fedsim train``: all parties in one process


PartyPaths = Annotated[list[Path], typer.Argument(metavar="PARTY...", help="The file of every party.")]
Stay = Annotated[
    bool, typer.Option("--stay", help="Coordinator and secondaries: keep running after training, for predictions.")
]


def party(
    job: JobFile,
    party: PartyPath,
    insecure: Insecure = False,
    stay: Stay = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Run one party of a job: the coordinator, the primary or a secondary, as its party file says.

    Start the parties in any order; each waits for the others. A party that was stopped or killed continues where it
    was when you run the same command again.

    fedsim party job.toml city.toml
    """
    from fedsim.cli.party import run_party

    run_party(job, party, insecure=insecure, stay=stay, quiet=quiet, verbose=verbose, as_json=as_json)


def train(job: JobFile, parties: PartyPaths, quiet: Quiet = False, as_json: Json = False) -> None:
    """Run all parties of a job in this one process, with the same messages and the same weights as apart."""
    from fedsim.cli.party import run_all_parties

    run_all_parties(job, parties, quiet=quiet, as_json=as_json)


# ``fedsim runs`` and ``fedsim report``: what was trained here, side by side and one by one


RunsFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look for runs, a few folders deep.")]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run folder of a primary, or a folder with one such run in it.")
]

MapParty = Annotated[
    Path | None,
    typer.Option(
        "--map", metavar="PARTY", help="The primary's own file: draw its places into the page, in cells of several."
    ),
]
ShowIdentifiers = Annotated[
    Path | None,
    typer.Option(
        "--show-identifiers",
        metavar="PARTY",
        help="The primary's own file: write row and identifiers of the examples into the page; keep it to yourself.",
    ),
]


Live = Annotated[bool, typer.Option("--live", help="Serve a page that follows the parties while they run.")]
LivePort = Annotated[int, typer.Option(min=0, max=65535, help="With --live: port on 127.0.0.1; 0 chooses a free port.")]


def runs(
    folder: RunsFolder = Path(), live: Live = False, port: LivePort = 0, quiet: Quiet = False, as_json: Json = False
) -> None:
    """List the runs under a folder, newest last, and the settings in which they differ.

    With --live, serve a page for this machine that shows phases, progress, curves, messages and errors of the
    parties under the folder while they run. Press Ctrl-C to stop it.

    fedsim runs city-run
    """
    from fedsim.cli.runs import print_runs, serve_live_page

    if live:
        serve_live_page(folder, port, quiet=quiet, as_json=as_json)
    else:
        print_runs(folder, quiet=quiet, as_json=as_json)


def report(
    run: RunPath, map_: MapParty = None, named: ShowIdentifiers = None, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Write report.html and the model card of a run anew, with whatever its folder holds by now.

    That is what `fedsim compare --out RUN/compare` and `fedsim audit --out RUN/audit` left there. The page needs no
    network. It holds a few example records without row or identifier, unless --show-identifiers asks for them;
    with --map the primary's places, in coarse cells.
    """
    from fedsim.cli.runs import print_report_path
    from fedsim.config.party_file import read_party_file
    from fedsim.report.run_data import find_run
    from fedsim.report.run_report import write_report

    own = [None if path is None else read_party_file(path) for path in (map_, named)]
    print_report_path(write_report(find_run(run), *own), quiet=quiet, as_json=as_json)


# ``fedsim predict`` and ``fedsim serve``: the trained model at work, with the parties online


PredictRecords = Annotated[
    str,
    typer.Option(
        metavar="TABLE",
        help="Table of new records: .csv, .csv.gz, .tsv, .parquet, or a database: sqlite:///flats.db#table, "
        "postgresql://user@host/city#table.",
    ),
]
PredictQuery = Annotated[
    str | None,
    typer.Option(metavar="SQL", help="What to read from the database that --records names, instead of a table."),
]
KeepColumns = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Column to copy beside the predictions.")]


def predict(
    job: JobFile,
    party: PartyPath,
    records: PredictRecords,
    out: Annotated[Path, typer.Option(help="File to write, such as predictions.csv.")],
    query: PredictQuery = None,
    keep: KeepColumns = None,
    wait: Wait = 60.0,
    separator: Separator = None,
    insecure: Insecure = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Predict new records of the primary; coordinator and secondaries run with --stay.

    All records are predicted, or none: where a cell cannot be used, the error names its row and column, says how many
    rows are like it, and nothing is written. A text table is split as the party file says of its own.

    fedsim predict job.toml city.toml --records new-flats.csv --out predictions.csv
    """
    from fedsim.cli.predict import PredictionBatch, run_predict
    from fedsim.data.sql import parse_source

    batch = PredictionBatch(parse_source(records, query), separator, tuple(keep or ()), out)
    run_predict(job, party, batch, wait, insecure=insecure, quiet=quiet, verbose=verbose, as_json=as_json)


def serve(
    job: JobFile,
    party: PartyPath,
    host: Annotated[
        str, typer.Option(help="Address to listen at; beyond this machine a token is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    token: Annotated[Path | None, typer.Option(help="File with a token that callers must give.")] = None,
    wait: Wait = 5.0,
    insecure: Insecure = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where it serves as one JSON object.")] = False,
) -> None:
    """Answer single records over HTTP at the primary: /predict, /health and a page; the partners run with --stay."""
    from fedsim.cli.predict import run_serve

    ways = {"insecure": insecure, "quiet": quiet, "verbose": verbose, "as_json": as_json}
    run_serve(job, party, (host, port), token, wait, **ways)


# ``fedsim log``: an audit log for people, checked line by line


# Wide enough for a hash and some facts where no terminal says how wide it is.
LOG_WIDTH = 200


def log(
    file: Annotated[Path, typer.Argument(help="The audit log, such as rentals-run/audit.jsonl.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show a party's audit log and check that no line was changed, added or removed.

    Note the last hash elsewhere: it shows later that the end of the log was not cut off.
    """
    from fedsim.errors import FileError
    from fedsim.runs.audit_log import read_audit_log

    entries, fault = [], None
    try:
        for entry in read_audit_log(file):
            entries.append(entry)
    except FileError as error:
        fault = error
    if as_json or not quiet:
        (_print_entries_json if as_json else _print_entries)(entries, str(fault) if fault else None)
    if fault:
        raise fault


def _print_entries_json(entries: list[AuditEntry], fault: str | None) -> None:
    import json
    from dataclasses import asdict

    last = entries[-1].hash if entries else None
    typer.echo(json.dumps({"entries": [asdict(entry) for entry in entries], "last": last, "fault": fault}))


def _print_entries(entries: list[AuditEntry], fault: str | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedsim.protocol.messages import replace_unprintable

    table = Table("time", "party", "what", "facts", box=None, pad_edge=False)
    for entry in entries:
        table.add_row(
            *(Text(replace_unprintable(word)) for word in (entry.time, entry.party, entry.what, _format_facts(entry)))
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=LOG_WIDTH)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines() if entries else ():
        typer.echo(line.rstrip())
    if not fault:
        typer.echo(
            f"{len(entries)} entries, each as it was written; last hash {entries[-1].hash if entries else 'none'}"
        )


def _format_facts(entry: AuditEntry) -> str:
    return ", ".join(f"{name} {value}" for name, value in entry.facts.items())
