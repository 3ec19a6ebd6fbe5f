"""Link tables without a job (``fedsim link`` and ``encode``); heavy modules are imported when a command runs."""

from pathlib import Path
from typing import Annotated

from fedsim.cli import options as opt
from fedsim.cli.options import Json, OutputMode, Quiet, option
from fedsim.registry import METRICS

METRIC_NAMES = ", ".join(METRICS.names())


def link(
    primary: Annotated[str, option("TABLE", f"Table whose records need partners: {opt.TABLE_HELP}.")],
    secondary: Annotated[str, option("TABLE", "Table in which to search for partners.")],
    out: Annotated[Path, option("FILE", "Parquet file to write.")],
    on: Annotated[str, option("COLUMNS", "Columns to compare, such as lat,lon.")] = "",
    metric: Annotated[
        str | None,
        option(
            "NAME",
            f"One of {METRIC_NAMES}. Encoded tables need one of {', '.join(METRICS.names(in_jobs=True))}. "
            "Default: great-circle for latitude and longitude, qgram-dice for text, days for dates, else euclidean.",
        ),
    ] = None,
    k: Annotated[int | None, option("K", opt.K_HELP, "--k")] = None,
    on_secondary: opt.SecondaryColumns = "",
    field: Annotated[
        list[str] | None,
        option(
            "SPEC",
            "Part of a weighted sum of metrics, COLUMN:METRIC[:WEIGHT], such as born:days:0.5, instead of --on "
            "and --metric; may be repeated.",
        ),
    ] = None,
    id_: Annotated[str | None, option("COLUMN", "Key of the primary's records, to add to the links.", "--id")] = None,
    id_secondary: Annotated[
        str | None, option("COLUMN", "Key of the secondary's records, also added to the links.")
    ] = None,
    sigma: Annotated[float, option("SIGMA", "Standard deviation of noise on the similarities.")] = 0.0,
    seed: Annotated[int | None, option("N", "Random seed of the noise. Default: fresh noise.")] = None,
    backend: Annotated[str, option("NAME", "Search backend.")] = "auto",
    threads: Annotated[int | None, option("N", "Threads. Default: all cores.")] = None,
    engine: Annotated[
        str,
        option(
            "NAME",
            "Where to search: local, ray (starts Ray on this machine) or ray:HOST:PORT (a running cluster; ray:auto "
            "finds it).",
        ),
    ] = "local",
    separator: opt.Separator = None,
    separator_secondary: opt.SecondarySeparator = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the K most similar records of another table for every record, exactly.

    fedsim link --primary flats.csv --secondary rentals.csv --on lat,lon --out links.parquet
    """
    import numpy as np

    from fedsim.data.sql import parse_source
    from fedsim.types import DEFAULT_K
    from fedsim_ops.cli.link import LinkRequest, run_link

    request = LinkRequest(
        primary=parse_source(primary),
        secondary=parse_source(secondary),
        columns=opt.parse_names(on),
        secondary_columns=opt.parse_names(on_secondary),
        fields=field or [],
        metric=metric,
        separator=separator,
        secondary_separator=separator_secondary,
        out=out,
        id_column=id_,
        secondary_id_column=id_secondary,
        engine=engine,
    )
    # Without a seed the noise is fresh: noise that can be repeated can be subtracted.
    rng = np.random.default_rng(None if seed is None else opt.check_seed(seed))
    search = {"k": DEFAULT_K if k is None else k, "sigma": sigma, "seed": rng, "backend": backend}
    run_link(request, {**search, "threads": threads}, OutputMode(quiet, as_json))


def encode(
    table: Annotated[str, option("TABLE", f"Your table: {opt.TABLE_HELP}.")],
    schema: Annotated[Path, option("FILE", "Encoding schema in JSON, the same for all parties.")],
    key: Annotated[Path, option("FILE", "Key file from `fedsim certs key`, the same for all parties.")],
    out: Annotated[Path, option("FILE", "File to write, such as filters.safetensors.")],
    separator: opt.Separator = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Encode the identifiers of a table as keyed bit filters.

    The coordinator links encoded tables with `fedsim link --metric hamming` or `dice`; it never sees an identifier.
    """
    from fedsim.data.sql import parse_source
    from fedsim_ops.cli.link import run_encode

    run_encode(parse_source(table), schema, key, out, separator, OutputMode(quiet, as_json))
