"""Commands that link tables without training: link and encode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Json, Quiet, Separator, check_seed, parse_names

# ``fedsim link``: for every record of one table its K most similar records of another


LinkPrimary = Annotated[
    str,
    typer.Option(
        metavar="TABLE",
        help="Table whose records look for partners: .csv, .csv.gz, .tsv, .parquet, or sqlite:///flats.db#table.",
    ),
]
LinkSecondary = Annotated[str, typer.Option(metavar="TABLE", help="Table in which the partners are found.")]
LinkOut = Annotated[Path, typer.Option(help="Parquet file to write the links to; an old one is replaced at the end.")]
LinkOn = Annotated[str, typer.Option(metavar="COLUMNS", help="Columns to compare, between commas: lat,lon.")]
LinkOnSecondary = Annotated[
    str, typer.Option(metavar="COLUMNS", help="The same columns in the partner's table, where it names them otherwise.")
]
WeightedFields = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="COLUMN:METRIC[:WEIGHT]",
        help="Instead of --on and --metric: part of a weighted sum; may be repeated. "
        "Metrics: euclidean, great-circle (lat,lon), days, levenshtein, levenshtein-normalised.",
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        help="euclidean (also without it), great-circle, days, levenshtein, levenshtein-normalised; for filters "
        "hamming, dice."
    ),
]
LinkSeparatorSecondary = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="The same for the partner's table; that of --separator without it."),
]
LinkK = Annotated[int, typer.Option("--k", help="Partners per record.")]
ReportPath = Annotated[Path | None, typer.Option(help="HTML page to write: is the linkage any good?")]
DrawMap = Annotated[bool, typer.Option("--map", help="Draw the primary's places into the page, in coarse cells.")]
LinkSigma = Annotated[float, typer.Option(help="Standard deviation of the noise put on the similarities.")]
LinkSeed = Annotated[int | None, typer.Option(help="Seed of that noise; fresh noise without it.")]
SearchBackend = Annotated[str, typer.Option(help="Which search to use; auto chooses and says why.")]
SearchThreads = Annotated[int | None, typer.Option(help="Threads to use; all cores without it.")]
SearchDevice = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]


def link(
    primary: LinkPrimary,
    secondary: LinkSecondary,
    out: LinkOut,
    on: LinkOn = "",
    metric: MetricName = None,
    k: LinkK = 50,
    on_secondary: LinkOnSecondary = "",
    field: WeightedFields = None,
    report: ReportPath = None,
    map_: DrawMap = False,
    sigma: LinkSigma = 0.0,
    seed: LinkSeed = None,
    backend: SearchBackend = "auto",
    threads: SearchThreads = None,
    device: SearchDevice = "auto",
    separator: Separator = None,
    separator_secondary: LinkSeparatorSecondary = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find for every record of the primary its K most similar records of the secondary, exactly.

    fedsim link --primary flats.csv --secondary rentals.csv --on lat,lon --metric great-circle --out links.parquet
    """
    from fedsim.cli.link import (
        LinkOutput,
        LinkRequest,
        SearchOptions,
        no_progress,
        print_no_summary,
        print_summary,
        print_summary_json,
        progress_bar,
        run_link,
    )
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
    )
    start = None if seed is None else check_seed(seed)
    search = SearchOptions(k=k, sigma=sigma, seed=start, backend=backend, threads=threads, device=device)
    silent = print_no_summary if quiet else print_summary
    output = LinkOutput(
        links=out,
        page=report,
        with_map=map_,
        tell=print_summary_json if json else silent,
        watch=no_progress if quiet else progress_bar,
    )
    run_link(request, search, output)


# ``fedsim encode``: identifiers as filters that may go to the coordinator


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
    from fedsim.cli.link import run_encode
    from fedsim.data.sql import parse_source

    encoded = run_encode(parse_source(table), schema, key, out, separator)
    if as_json:
        found = {"records": len(encoded), "bits": encoded.n_bits, "fingerprint": encoded.fingerprint, "file": str(out)}
        typer.echo(json.dumps(found, ensure_ascii=False))
    elif not quiet:
        typer.echo(f"{len(encoded):,} records as filters of {encoded.n_bits:,} bits in {out}")
        typer.echo(f"fingerprint {encoded.fingerprint[:12]}: filters link only where the other party shows the same")
