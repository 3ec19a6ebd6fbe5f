"""Commands that link tables without training: link and encode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import K_HELP, TABLE_HELP, Json, OutputMode, Quiet, Separator, check_seed, parse_names
from fedsim.registry import METRICS

METRIC_NAMES = ", ".join(METRICS.names())


def link(
    primary: Annotated[str, typer.Option(metavar="TABLE", help=f"Table whose records need partners: {TABLE_HELP}.")],
    secondary: Annotated[str, typer.Option(metavar="TABLE", help="Table in which to search for partners.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
    on: Annotated[str, typer.Option(metavar="COLUMNS", help="Columns to compare, such as lat,lon.")] = "",
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"One of {METRIC_NAMES}. Encoded tables need one of {', '.join(METRICS.names(in_jobs=True))}. "
            "Default: euclidean.",
        ),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", metavar="K", help=K_HELP)] = None,
    on_secondary: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Names of these columns in the secondary's table, if they differ.")
    ] = "",
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="Part of a weighted sum of metrics, COLUMN:METRIC[:WEIGHT], such as born:days:0.5, instead of --on "
            "and --metric; may be repeated.",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="HTML page about the quality to write.")] = None,
    map_: Annotated[
        bool, typer.Option("--map", help="Show the primary's locations on the page, in coarse cells.")
    ] = False,
    sigma: Annotated[
        float, typer.Option(metavar="SIGMA", help="Standard deviation of noise on the similarities.")
    ] = 0.0,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Random seed of the noise. Default: fresh noise.")
    ] = None,
    backend: Annotated[str, typer.Option(metavar="NAME", help="Search backend.")] = "auto",
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads. Default: all cores.")] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda or auto.")] = "auto",
    separator: Separator = None,
    separator_secondary: Annotated[
        str | None, typer.Option(metavar="CHAR", help="Separator of the secondary's table, if it differs.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the K most similar records of another table for every record, exactly.

    fedsim link --primary flats.csv --secondary rentals.csv --on lat,lon --out links.parquet
    """
    from fedsim.cli.link import LinkRequest, SearchOptions, run_link
    from fedsim.data.sql import parse_source

    request = LinkRequest(
        primary=parse_source(primary),
        secondary=parse_source(secondary),
        columns=parse_names(on),
        secondary_columns=parse_names(on_secondary),
        fields=field or [],
        metric=metric,
        separator=separator,
        secondary_separator=separator_secondary,
        out=out,
        page=report,
        with_map=map_,
    )
    search = SearchOptions(k, sigma, None if seed is None else check_seed(seed), backend, threads, device)
    run_link(request, search, OutputMode(quiet, as_json))


def encode(
    table: Annotated[str, typer.Option(metavar="TABLE", help=f"Your table: {TABLE_HELP}.")],
    schema: Annotated[Path, typer.Option(metavar="FILE", help="Encoding schema in JSON, the same for all parties.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="Key file from `fedsim key`, the same for all parties.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write, such as filters.safetensors.")],
    separator: Separator = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Encode the identifiers of a table as keyed bit filters.

    The coordinator links encoded tables with `fedsim link --metric hamming` or `dice`; it never sees an identifier.
    """
    from fedsim.cli.link import run_encode
    from fedsim.data.sql import parse_source

    run_encode(parse_source(table), schema, key, out, separator, OutputMode(quiet, as_json))
