"""``fedsim encode``: identifiers as filters that may go to the coordinator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Json, Quiet, Separator


def encode(
    table: Annotated[
        str,
        typer.Option(metavar="TABLE", help="Your table: .csv, .csv.gz, .tsv, .parquet, or sqlite:///flats.db#table."),
    ],
    schema: Annotated[Path, typer.Option(help="Which columns become filters, and how: JSON, the same at all parties.")],
    key: Annotated[Path, typer.Option(help="The key file made by `fedsim key`, the same at all parties.")],
    out: Annotated[Path, typer.Option(help="File to write, such as filters.safetensors.")],
    separator: Separator = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Turn the identifiers of a table into keyed bit filters.

    The coordinator links filters by `fedsim link --metric hamming` or `dice` and sees neither names nor numbers.
    """
    from fedsim.cli.encoding import run_encode
    from fedsim.data.sql_source import source_of

    encoded = run_encode(source_of(table), schema, key, out, separator)
    if as_json:
        found = {"records": len(encoded), "bits": encoded.n_bits, "fingerprint": encoded.fingerprint, "file": str(out)}
        typer.echo(json.dumps(found, ensure_ascii=False))
    elif not quiet:
        typer.echo(f"{len(encoded):,} records as filters of {encoded.n_bits:,} bits in {out}")
        typer.echo(f"fingerprint {encoded.fingerprint[:12]}: filters link only where the other party shows the same")
