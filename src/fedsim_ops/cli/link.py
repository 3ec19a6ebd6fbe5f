"""Read, encode or link two tables, write the links and print a summary (``fedsim link`` and ``fedsim encode``)."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.cells import CellType, read_cells
from fedsim.cli.options import OutputMode
from fedsim.cli.output import print_lines, print_named_values, progress_bar
from fedsim.data.profile import guess_metrics
from fedsim.data.sql import TableSource
from fedsim.data.table_reader import infer_numbers, read_table, source_files
from fedsim.errors import FileError, InputError, SettingError
from fedsim.linkage import Diagnostics, diagnose, link, save_links
from fedsim.linkage.encoding import Key, Schema
from fedsim.linkage.link_files import load_encoded, save_encoded
from fedsim.linkage.metrics import Metric, WeightedField, WeightedSum, combine_metrics, get_metric
from fedsim.linkage.soft_linkage import load_engine
from fedsim.pipeline.party_table import encode_table
from fedsim.registry import METRICS
from fedsim.report import formatting as fmt
from fedsim.storage.files import check_output_paths, check_readable, read_bytes
from fedsim.types import EncodedTable, LinkageResult

BASELINE_NAMES = {"top1sim": "Top1Sim", "exact": "Exact", "avgsim": "AvgSim"}
_Reader = Callable[[TableSource], Any]


def _load_encoded(table: TableSource) -> EncodedTable:
    if not isinstance(table, Path):
        message = f"{table} is a database; use a file written by `fedsim encode`"
        raise SettingError(message, code="encoded-table-in-database")
    return load_encoded(table)


def _to_metric_types(
    frame: pl.DataFrame, columns: Sequence[str], names: Sequence[str], metric: Metric, table: TableSource
) -> pl.DataFrame:
    """Return the columns under their common ``names``, in the types that the metric expects."""
    parts = [metric] * len(names)
    if isinstance(metric, WeightedSum):
        parts = [field.measure for field in metric.fields for _ in field.columns]
    types = [CellType(getattr(part, "CELLS", "number")) for part in parts]
    wanted = zip(columns, names, types, strict=True)
    return pl.DataFrame([read_cells(frame[own], kind).require(str(table)).alias(name) for own, name, kind in wanted])


def _compares_filters(metric: Metric) -> bool:
    """Return whether a metric compares encoded tables: only such metrics are valid in jobs."""
    return metric.name in METRICS.names(in_jobs=True)


def parse_field(spec: str) -> WeightedField:
    """Parse ``column:metric`` or ``column:metric:weight``; a location has two columns, ``lat,lon:great-circle:0.001``.

    >>> parse_field("born:days:0.5")
    WeightedField(column='born', metric=Days(name='days', whole=False), weight=0.5)
    >>> parse_field("name:levenshtein").weight
    1.0
    """
    head, _, last = spec.rpartition(":")
    try:
        weight = float(last)
    except ValueError:
        weight, head = 1.0, spec
    column, _, name = head.rpartition(":")
    if not column:
        message = f"--field {spec!r} is not COLUMN:METRIC:WEIGHT, such as name:levenshtein:2.0"
        raise SettingError(message, code="invalid-field")
    metric = get_metric(name)
    if _compares_filters(metric):
        hint = "use euclidean, great-circle, days or a text metric"
        raise SettingError(f"--field {spec!r}: {name} does not compare columns; {hint}", code="invalid-field")
    return WeightedField(column, metric, weight)


def make_fields_distinct(fields: Sequence[WeightedField]) -> tuple[WeightedField, ...]:
    """Return the fields under names of their own, so that one column can be used in several fields.

    >>> [field.column for field in make_fields_distinct([parse_field("born:days"), parse_field("born:levenshtein")])]
    ['born', 'born (field 2)']
    """
    used: set[str] = set()
    distinct = []
    for number, field in enumerate(fields, start=1):
        names = [f"{name} (field {number})" if name in used else name for name in field.columns]
        distinct.append(replace(field, column=",".join(names)))
        used.update(names)
    return tuple(distinct)


@dataclass(frozen=True)
class LinkRequest:
    """Which records to compare and which files to write, as the user named them."""

    primary: TableSource
    secondary: TableSource
    columns: list[str]
    secondary_columns: list[str]
    fields: list[str]
    metric: str | None
    separator: str | None
    secondary_separator: str | None
    out: Path
    id_column: str | None = None
    secondary_id_column: str | None = None
    engine: str = "local"


@dataclass(frozen=True)
class LinkSummary:
    """The figures of one linkage; distances are in the unit of the metric."""

    records: int
    candidates: int
    k: int
    metric: str
    plan: str
    sigma: float
    seconds: float
    nearest_median: float
    kth_median: float
    boundary_tie_share: float
    candidates_used: int
    busiest_use: int
    improvement: dict[str, float]
    warnings: tuple[str, ...]


def run_link(request: LinkRequest, search: Mapping[str, Any], mode: OutputMode) -> None:
    """Link two tables, write the links and print a summary; ``search`` are options of ``link``."""
    _check_request(request)
    engine = load_engine(request.engine)
    if engine is not None:
        engine.check()
    primary, secondary, metric = _open_tables(request)
    primary, secondary = primary(request.primary), secondary(request.secondary)
    ids = _read_ids(request)
    with engine or nullcontext(), progress_bar("linking", "records", hidden=mode.quiet) as progress:
        started = time.perf_counter()
        names: dict[str, Any] = {"primary_name": str(request.primary), "secondary_name": str(request.secondary)}
        links = link(primary, secondary, metric=metric, progress=progress, engine=engine, **names, **search)
        seconds = time.perf_counter() - started
    save_links(links, request.out, *ids)
    summary = summarise_links(links, diagnose(links), seconds)
    value = asdict(summary) | {"files": {"links": str(request.out)}}
    mode.show(value, lambda: print_named_values([*_summary_lines(summary), ("wrote", str(request.out))]))


def summarise_links(links: LinkageResult, diagnostics: Diagnostics, seconds: float) -> LinkSummary:
    """Summarise a linkage and its diagnostics."""
    return LinkSummary(
        records=len(links),
        candidates=links.n_candidates,
        k=links.k,
        metric=links.metric,
        plan=links.plan,
        sigma=links.sigma,
        seconds=seconds,
        nearest_median=float(np.median(links.distance[:, 0])),
        kth_median=float(np.median(diagnostics.kth_distance)),
        boundary_tie_share=diagnostics.boundary_tie_share,
        candidates_used=int((diagnostics.hubness > 0).sum()),
        busiest_use=int(diagnostics.hubness.max()),
        improvement={BASELINE_NAMES[name]: float(value) for name, value in diagnostics.improvement.items()},
        warnings=diagnostics.warnings,
    )


def _check_request(request: LinkRequest) -> None:
    """Refuse whatever is known to fail before the first table is read."""
    inputs = source_files([request.primary, request.secondary])
    for path in inputs:
        check_readable(path)
    check_output_paths([request.out], inputs)
    if (request.id_column or request.secondary_id_column) and not (request.columns or request.fields):
        message = "--id and --id-secondary name columns, which encoded tables do not have; omit them"
        raise SettingError(message, code="ids-of-encoded-table")
    if request.fields and request.columns:
        raise SettingError("--on and --field both name columns; use one of them", code="on-with-field")
    if request.fields and request.metric is not None:
        message = "--metric cannot be combined with --field; each field names its own metric"
        raise SettingError(message, code="metric-with-field")
    for option, columns in (("--on", request.columns), ("--on-secondary", request.secondary_columns)):
        repeated = [name for name in columns if columns.count(name) > 1]
        if repeated and not request.fields:
            message = f"{option} names column {repeated[0]!r} twice; name it once, or weight it with --field"
            raise SettingError(message, code="column-named-twice")


def _read_ids(request: LinkRequest) -> list[pl.Series | None]:
    """Return the keys of the records of both tables, where they are named."""
    sides = (
        (request.primary, request.id_column, request.separator),
        (request.secondary, request.secondary_id_column, request.secondary_separator or request.separator),
    )
    return [
        None if column is None else read_table(table, [column], separator=mark)[column] for table, column, mark in sides
    ]


def _open_tables(request: LinkRequest) -> tuple[_Reader, _Reader, Metric]:
    """Return functions that read each table in the form that the metric expects, and the metric."""
    fields = make_fields_distinct([parse_field(spec) for spec in request.fields])
    metric: Metric | None = WeightedSum(fields) if fields else None
    if request.metric:
        metric = get_metric(request.metric)
    ours = [name for spec in request.fields for name in parse_field(spec).columns] or request.columns
    theirs = request.secondary_columns or ours
    if len(theirs) != len(ours):
        message = f"--on-secondary names {len(theirs)} columns, --on {len(ours)}; name as many, in the same order"
        raise SettingError(message, code="column-count-mismatch")
    if metric and _compares_filters(metric):
        if ours:
            message = f"--metric {metric.name} compares encoded tables, which have no columns; omit --on"
            raise SettingError(message, code="columns-of-encoded-table")
        return _load_encoded, _load_encoded, metric
    if not ours:
        raise SettingError("no columns to compare; name them with --on, such as --on lat,lon", code="no-columns")
    names = [name for field in fields for name in field.columns] or ours
    # The frame that shows which metric fits is not read twice.
    read = lru_cache(1)(partial(read_table, columns=list(dict.fromkeys(ours)), separator=request.separator))
    if metric is None:
        parts = guess_metrics(infer_numbers(read(request.primary).select(ours)))
        order = [ours.index(name) for part in parts for name in part]  # a place is latitude, then longitude
        ours, theirs, names = ([columns[at] for at in order] for columns in (ours, theirs, names))
        metric = combine_metrics(parts)
    separator = request.secondary_separator or request.separator

    def read_typed(table: TableSource, columns: Sequence[str], read: _Reader) -> pl.DataFrame:
        return _to_metric_types(read(table), columns, names, metric, table)

    read_theirs = partial(_read_secondary, columns=theirs, separator=separator, renamed=bool(request.secondary_columns))
    return partial(read_typed, columns=ours, read=read), partial(read_typed, columns=theirs, read=read_theirs), metric


def _read_secondary(
    table: TableSource, columns: Sequence[str], separator: str | None, *, renamed: bool
) -> pl.DataFrame:
    try:
        return read_table(table, list(dict.fromkeys(columns)), separator=separator, option="--separator-secondary")
    except InputError as error:
        if error.code != "missing-column" or renamed:
            raise
        message = f"{error}; if it has another name there, give it with --on-secondary"
        raise InputError(message, code="missing-column", option="--on-secondary") from None


def _summary_lines(summary: LinkSummary) -> Iterator[tuple[str, str]]:
    """Yield the figures as names and values, warnings last."""
    sizes = f"{fmt.pluralise(summary.records, 'record')} x {fmt.pluralise(summary.candidates, 'candidate')}"
    yield "linked", f"{sizes}, {summary.k:,} partners each"
    yield "metric", summary.metric + (f", noise sigma {fmt.format_number(summary.sigma)}" if summary.sigma else "")
    yield "search", summary.plan
    pairs = summary.records * summary.candidates / max(summary.seconds, 1e-9)
    yield "time", f"{fmt.format_duration(summary.seconds)}, {fmt.format_number(pairs / 1e6)} million pairs/s"
    nearest = fmt.format_distance(summary.nearest_median, summary.metric)
    last = fmt.format_distance(summary.kth_median, summary.metric)
    yield "distance", f"median {nearest} to the nearest partner, {last} to partner {summary.k:,}"
    yield "ties", f"{fmt.format_percent(summary.boundary_tie_share)} of the lists end in a tie"
    used = fmt.format_percent(summary.candidates_used / summary.candidates)
    busiest = fmt.pluralise(summary.busiest_use, "list")
    yield "used", f"{summary.candidates_used:,} candidates ({used}), the most frequent in {busiest}"
    gains = (f"{fmt.format_number(value)} over {name}" for name, value in summary.improvement.items())
    yield "delta", ", ".join(gains)
    for warning in summary.warnings:
        yield "warning", warning


def run_encode(
    table: TableSource,
    schema: Path,
    key: Path,
    out: Path,
    separator: str | None,
    mode: OutputMode,
) -> None:
    """Encode the identifiers of a table and write the filters."""
    inputs = [*source_files([table]), schema, key]
    check_output_paths([out], inputs)
    agreed = read_schema(schema)
    frame = read_table(table, list(agreed.columns), separator=separator)
    encoded = encode_table(agreed, frame, Key.read(key), str(table))
    save_encoded(encoded, out)
    size, fingerprint = {"records": len(encoded), "bits": encoded.n_bits}, encoded.fingerprint
    text = f"Wrote {out}: {fmt.pluralise(len(encoded), 'record')}, {encoded.n_bits:,} bits each."
    advice = f"Fingerprint {fingerprint[:12]}: tables can be linked only if both parties see the same one."
    mode.show({**size, "fingerprint": fingerprint, "file": str(out)}, lambda: print_lines([text, advice]))


def read_schema(path: Path) -> Schema:
    """Read an encoding schema from a JSON file."""
    check_readable(path)
    try:
        described = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:  # invalid JSON, invalid UTF-8, too deeply nested
        place = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        message = f"{path} is not valid JSON{place}; correct it or copy the schema again"
        raise FileError(message, code="invalid-json") from error
    return Schema.from_dict(described)
