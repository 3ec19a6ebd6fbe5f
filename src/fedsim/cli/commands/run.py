"""Commands that run a job and use its model: party, train, runs, report, predict, serve and log."""

from pathlib import Path
from typing import Annotated

from fedsim.cli import options as opt
from fedsim.cli.options import Json, OutputMode, Quiet, argument, flag, option


def party(
    job: opt.JobFile,
    party: opt.PartyPath,
    insecure: opt.Insecure = False,
    stay: Annotated[bool, flag("Keep running after training, for predictions; not for the primary.", "--stay")] = False,
    quiet: Quiet = False,
    verbose: opt.Verbose = False,
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
    job: opt.JobFile,
    parties: Annotated[list[Path], argument("PARTY_FILE", "The files of all parties.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run all parties of a job in one process; messages and weights are the same as in separate processes.

    fedsim train job.toml notary.toml city.toml rentals.toml
    """
    from fedsim.cli.party import run_all_parties

    run_all_parties(job, parties, OutputMode(quiet, as_json))


def runs(
    folder: Annotated[Path, argument("FOLDER", "Folder to search, a few levels deep.")] = Path(),
    live: Annotated[bool, flag("Serve a page that follows the parties while they run.", "--live")] = False,
    port: Annotated[int, option("N", "With --live: port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
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
    run: Annotated[Path, argument("RUN", "Run folder of a primary, or a folder that contains one such run.")],
    map_: Annotated[
        Path | None, option("PARTY_FILE", "The primary's file: add a map of its locations, in coarse cells.", "--map")
    ] = None,
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
    """Write report.html and the model card of a run again, with everything its folder contains by now.

    It includes the results of `fedsim compare --out RUN/compare` and `fedsim audit --out RUN/audit`. The page works
    offline. Example records appear without row number and identifiers unless --show-identifiers is given.
    """
    from fedsim.cli.runs import run_report

    run_report(run, map_, named, OutputMode(quiet, as_json))


def predict(
    job: opt.JobFile,
    party: opt.PartyPath,
    records: Annotated[str, option("TABLE", f"Table of new records: {opt.TABLE_HELP}, or postgresql://...#table.")],
    out: Annotated[Path, option("FILE", "File to write, such as predictions.csv.")],
    query: Annotated[str | None, option("SQL", "Query for the database of --records, instead of a table.")] = None,
    keep: Annotated[list[str] | None, option("COLUMN", "Column to copy to the output; may be repeated.")] = None,
    wait: opt.Wait = 60.0,
    separator: opt.Separator = None,
    insecure: opt.Insecure = False,
    quiet: Quiet = False,
    verbose: opt.Verbose = False,
    as_json: Json = False,
) -> None:
    """Predict new records of the primary; the other parties run with --stay.

    All records are predicted or none: if a cell is invalid, the error names its row and column and the number of such
    rows, and nothing is written.

    fedsim predict job.toml city.toml --records new-flats.csv --out predictions.csv
    """
    from fedsim.cli.predict import run_predict
    from fedsim.data.sql import parse_source

    mode, source, columns = OutputMode(quiet, as_json, verbose), parse_source(records, query), keep or []
    run_predict(job, party, source, out, mode, keep=columns, separator=separator, wait=wait, insecure=insecure)


def serve(
    job: opt.JobFile,
    party: opt.PartyPath,
    host: Annotated[str, option("ADDRESS", "Address to listen on; other machines require --token.")] = "127.0.0.1",
    port: Annotated[int, option("N", "Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    token: Annotated[Path | None, option("FILE", "File with a token that clients must send.")] = None,
    wait: opt.Wait = 5.0,
    insecure: opt.Insecure = False,
    quiet: Quiet = False,
    verbose: opt.Verbose = False,
    as_json: Annotated[bool, flag("Print the address as one JSON object.", "--json")] = False,
) -> None:
    """Predict single records over HTTP at the primary; the other parties run with --stay.

    The service answers at /predict and /health, and shows a page for people.
    """
    from fedsim.cli.predict import run_serve

    run_serve(job, party, host, port, token, wait, OutputMode(quiet, as_json, verbose), insecure=insecure)


def log(
    file: Annotated[Path, argument("FILE", "Audit log, such as rentals-run/audit.jsonl.")],
    as_json: Annotated[bool, flag("Print the entries as one JSON object.", "--json")] = False,
    quiet: Quiet = False,
) -> None:
    """Show a party's audit log and verify that no line was changed, added or removed.

    Keep the last hash elsewhere: with it you can prove later that the end of the log was not cut off.
    """
    from fedsim.cli.runs import run_log

    run_log(file, OutputMode(quiet, as_json))
