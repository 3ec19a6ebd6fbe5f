"""``fedsim link``: for every record of one table its K most similar records of another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Json, Quiet, Separator, checked_seed, names

Primary = Annotated[
    str,
    typer.Option(
        metavar="TABLE",
        help="Table whose records look for partners: .csv, .csv.gz, .tsv, .parquet, or sqlite:///flats.db#table.",
    ),
]
Secondary = Annotated[str, typer.Option(metavar="TABLE", help="Table in which the partners are found.")]
Out = Annotated[Path, typer.Option(help="Parquet file to write the links to; an old one is replaced at the end.")]
On = Annotated[str, typer.Option(metavar="COLUMNS", help="Columns to compare, between commas: lat,lon.")]
OnSecondary = Annotated[
    str, typer.Option(metavar="COLUMNS", help="The same columns in the partner's table, where it names them otherwise.")
]
FieldWords = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="COLUMN:METRIC[:WEIGHT]",
        help="Instead of --on and --metric: part of a weighted sum; may be repeated. "
        "Metrics: euclidean, great-circle (lat,lon), days, levenshtein, levenshtein-normalised.",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        help="euclidean (also without it), great-circle, days, levenshtein, levenshtein-normalised; for filters "
        "hamming, dice."
    ),
]
SeparatorSecondary = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="The same for the partner's table; that of --separator without it."),
]
Partners = Annotated[int, typer.Option("--k", help="Partners per record.")]
Report = Annotated[Path | None, typer.Option(help="HTML page to write: is the linkage any good?")]
Map = Annotated[bool, typer.Option("--map", help="Draw the primary's places into the page, in coarse cells.")]
Sigma = Annotated[float, typer.Option(help="Standard deviation of the noise put on the similarities.")]
Seed = Annotated[int | None, typer.Option(help="Seed of that noise; fresh noise without it.")]
Backend = Annotated[str, typer.Option(help="Which search to use; auto chooses and says why.")]
Threads = Annotated[int | None, typer.Option(help="Threads to use; all cores without it.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]


def link(
    primary: Primary,
    secondary: Secondary,
    out: Out,
    on: On = "",
    metric: Metric = None,
    k: Partners = 50,
    on_secondary: OnSecondary = "",
    field: FieldWords = None,
    report: Report = None,
    map_: Map = False,
    sigma: Sigma = 0.0,
    seed: Seed = None,
    backend: Backend = "auto",
    threads: Threads = None,
    device: Device = "auto",
    separator: Separator = None,
    separator_secondary: SeparatorSecondary = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find for every record of the primary its K most similar records of the secondary, exactly.

    fedsim link --primary flats.csv --secondary rentals.csv --on lat,lon --metric great-circle --out links.parquet
    """
    from fedsim.cli.linking import Output, Request, Search, run_link
    from fedsim.cli.progress import no_progress, progress_bar
    from fedsim.cli.telling import tell_nobody, tell_people, tell_programs
    from fedsim.data.sql_source import source_of

    request = Request(
        primary=source_of(primary),
        secondary=source_of(secondary),
        columns=names(on),
        secondary_columns=names(on_secondary),
        fields=field or [],
        metric=metric,
        separator=separator,
        secondary_separator=separator_secondary,
    )
    start = None if seed is None else checked_seed(seed)
    search = Search(k=k, sigma=sigma, seed=start, backend=backend, threads=threads, device=device)
    silent = tell_nobody if quiet else tell_people
    output = Output(
        links=out,
        page=report,
        with_map=map_,
        tell=tell_programs if json else silent,
        watch=no_progress if quiet else progress_bar,
    )
    run_link(request, search, output)
