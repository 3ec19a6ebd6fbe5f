"""Commands that run a job and use its model: party, train, runs, report, predict, serve and log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import (
    TABLE_HELP,
    Insecure,
    JobFile,
    Json,
    OutputMode,
    PartyPath,
    Quiet,
    Separator,
    Verbose,
    Wait,
)


def party(
    job: JobFile,
    party: PartyPath,
    insecure: Insecure = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep running after training, for predictions; not for the primary.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Run one party of a job: coordinator, primary or secondary, as its party file says.

    Start the parties in any order; each waits for the others. A party that was stopped or killed continues where it
    was when you run the same command again. The coordinator sees encoded identifiers only; a secondary needs no open
    port.

    fedsim party job.toml city.toml
    """
    from fedsim.cli.party import run_party

    run_party(job, party, OutputMode(quiet, as_json, verbose), insecure=insecure, stay=stay)


def train(
    job: JobFile,
    parties: Annotated[list[Path], typer.Argument(metavar="PARTY_FILE", help="The files of all parties.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run all parties of a job in one process; messages and weights are the same as in separate processes.

    fedsim train job.toml notary.toml city.toml rentals.toml
    """
    from fedsim.cli.party import run_all_parties

    run_all_parties(job, parties, OutputMode(quiet, as_json))


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to search, a few levels deep.")] = Path(),
    live: Annotated[bool, typer.Option("--live", help="Serve a page that follows the parties while they run.")] = False,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="With --live: port on 127.0.0.1; 0 takes a free one.")
    ] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """List the runs under a folder, newest last, and the settings in which they differ.

    With --live, serve a page on this machine that shows phases, progress, curves, messages and errors of the parties
    under the folder while they run. Press Ctrl-C to stop it.

    fedsim runs city-run
    """
    from fedsim.cli.runs import run_runs, serve_live_page

    mode = OutputMode(quiet, as_json)
    if live:
        serve_live_page(folder, port, mode)
    else:
        run_runs(folder, mode)


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder of a primary, or a folder that contains one such run.")
    ],
    map_: Annotated[
        Path | None,
        typer.Option(
            "--map", metavar="PARTY_FILE", help="The primary's file: add a map of its locations, in coarse cells."
        ),
    ] = None,
    named: Annotated[
        Path | None,
        typer.Option(
            "--show-identifiers",
            metavar="PARTY_FILE",
            help="The primary's file: add row numbers and identifiers of the examples; do not share this page.",
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write report.html and the model card of a run again, with everything its folder contains by now.

    It includes the results of `fedsim compare --out RUN/compare` and `fedsim audit --out RUN/audit`. The page works
    offline. Example records appear without row number and identifiers unless --show-identifiers is given.
    """
    from fedsim.cli.runs import run_report

    run_report(run, map_, named, OutputMode(quiet, as_json))


def predict(
    job: JobFile,
    party: PartyPath,
    records: Annotated[
        str, typer.Option(metavar="TABLE", help=f"Table of new records: {TABLE_HELP}, or postgresql://...#table.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write, such as predictions.csv.")],
    query: Annotated[
        str | None, typer.Option(metavar="SQL", help="Query for the database of --records, instead of a table.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Column to copy to the output; may be repeated.")
    ] = None,
    wait: Wait = 60.0,
    separator: Separator = None,
    insecure: Insecure = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Predict new records of the primary; the other parties run with --stay.

    All records are predicted or none: if a cell is invalid, the error names its row and column and the number of such
    rows, and nothing is written.

    fedsim predict job.toml city.toml --records new-flats.csv --out predictions.csv
    """
    from fedsim.cli.predict import PredictionBatch, run_predict
    from fedsim.data.sql import parse_source

    batch = PredictionBatch(parse_source(records, query), separator, tuple(keep or ()), out)
    run_predict(job, party, batch, wait, OutputMode(quiet, as_json, verbose), insecure=insecure)


def serve(
    job: JobFile,
    party: PartyPath,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; other machines require --token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a token that clients must send.")
    ] = None,
    wait: Wait = 5.0,
    insecure: Insecure = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON object.")] = False,
) -> None:
    """Predict single records over HTTP at the primary; the other parties run with --stay.

    The service answers at /predict and /health, and shows a page for people.
    """
    from fedsim.cli.predict import run_serve

    run_serve(job, party, (host, port), token, wait, OutputMode(quiet, as_json, verbose), insecure=insecure)


def log(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Audit log, such as rentals-run/audit.jsonl.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show a party's audit log and verify that no line was changed, added or removed.

    Keep the last hash elsewhere: with it you can prove later that the end of the log was not cut off.
    """
    from fedsim.cli.runs import run_log

    run_log(file, OutputMode(quiet, as_json))
