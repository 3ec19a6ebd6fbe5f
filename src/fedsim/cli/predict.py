"""``fedsim predict`` and ``fedsim serve``: the trained model at work, with the parties online."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Insecure, JobFile, Json, PartyPath, Quiet, Separator, Verbose, Wait

Records = Annotated[
    str,
    typer.Option(
        metavar="TABLE",
        help="Table of new records: .csv, .csv.gz, .tsv, .parquet, or a database: sqlite:///flats.db#table, "
        "postgresql://user@host/city#table.",
    ),
]
Query = Annotated[
    str | None,
    typer.Option(metavar="SQL", help="What to read from the database that --records names, instead of a table."),
]
Keep = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Column to copy beside the predictions.")]


def predict(
    job: JobFile,
    party: PartyPath,
    records: Records,
    out: Annotated[Path, typer.Option(help="File to write, such as predictions.csv.")],
    query: Query = None,
    keep: Keep = None,
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
    from fedsim.cli.predicting import Batch, predict_and_tell
    from fedsim.data.sql_source import source_of

    batch = Batch(source_of(records, query), separator, tuple(keep or ()), out)
    predict_and_tell(job, party, batch, wait, insecure=insecure, quiet=quiet, verbose=verbose, as_json=as_json)


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
    from fedsim.cli.predicting import run_serve

    ways = {"insecure": insecure, "quiet": quiet, "verbose": verbose, "as_json": as_json}
    run_serve(job, party, (host, port), token, wait, **ways)
