"""``fedsim predict`` and ``fedsim serve``: the trained model at work, with the parties online."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Quiet, Separator
from fedsim.cli.parties import Insecure, JobFile, PartyPath, Verbose

Wait = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a partner that is away.")]
Keep = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Column to copy beside the predictions.")]


def predict(
    job: JobFile,
    party: PartyPath,
    records: Annotated[Path, typer.Option(help="Table of new records: .csv, .csv.gz, .tsv or .parquet.")],
    out: Annotated[Path, typer.Option(help="File to write, such as predictions.csv.")],
    keep: Keep = None,
    wait: Wait = 60.0,
    separator: Separator = None,
    insecure: Insecure = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Predict new records of the primary; coordinator and secondaries run with --stay."""
    from fedsim.cli.predicting import run_predict

    ways = {"insecure": insecure, "quiet": quiet, "verbose": verbose}
    written = run_predict(job, party, records, out, keep or [], wait, separator, **ways)
    if not quiet:
        typer.echo(written)


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
) -> None:
    """Answer single records over HTTP at the primary: /predict, /health and a page; the partners run with --stay."""
    from fedsim.cli.predicting import run_serve

    run_serve(job, party, (host, port), token, wait, insecure=insecure, quiet=quiet, verbose=verbose)
