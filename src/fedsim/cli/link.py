"""Read, encode or link two tables, write the links and print a summary (``fedsim link`` and ``fedsim encode``)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedsim.data.columns import parse_required_dates, parse_required_numbers, parse_required_texts
from fedsim.data.sql import TableSource
from fedsim.data.table_reader import read_table, source_files
from fedsim.errors import FileError, SettingError
from fedsim.linkage import diagnose, link, save_links
from fedsim.linkage.encoding import Key, Schema
from fedsim.linkage.files import load_encoded, save_encoded
from fedsim.linkage.metrics import (
    Days,
    Dice,
    Euclidean,
    GreatCircle,
    Hamming,
    Levenshtein,
    Metric,
    RankHamming,
    WeightedField,
    WeightedSum,
    get_metric,
)
from fedsim.report.formatting import (
    format_count,
    format_distance,
    format_duration,
    format_number,
    format_percent,
    pluralise,
)
from fedsim.report.links_page import LinkSummary, links_page, summarise_links
from fedsim.runtime.party_data import encode_table
from fedsim.storage.files import atomic_write, check_output_paths, check_readable, read_bytes
from fedsim.types import EncodedTable, Links

# What the two parties bring to a linkage: columns read and checked by the metric that compares them


FILTER_METRICS = (Hamming, Dice)
CELL_READERS: dict[type, Callable[..., pl.Series]] = {
    Euclidean: parse_required_numbers,
    GreatCircle: parse_required_numbers,
    RankHamming: parse_required_numbers,
    Days: parse_required_dates,
    Levenshtein: parse_required_texts,
}


@dataclass(frozen=True)
class LinkInput:
    """One party's table, its columns to compare, what stands between its cells and the option that says so."""

    table: TableSource
    columns: list[str]
    separator: str | None
    separator_option: str


def read_identifiers(side: LinkInput, metric: Metric, names: Sequence[str]) -> Any:
    """The encoded table, or the side's columns under the common ``names``, in the type the metric wants."""
    if isinstance(metric, FILTER_METRICS):
        if side.columns:
            raise SettingError(f"--metric {metric.name} compares filters, which have no columns; leave out --on")
        return load_encoded(_filter_file(side.table))
    if not side.columns:
        raise SettingError("no columns to compare; name them with --on, for example --on lat,lon")
    wanted = list(dict.fromkeys(side.columns))
    frame = read_table(side.table, wanted, separator=side.separator, option=side.separator_option)
    readers = [CELL_READERS[type(part)] for part in _metric_per_column(metric, len(names))]
    return pl.DataFrame(
        [
            read(frame[column], table=str(side.table)).alias(name)
            for column, name, read in zip(side.columns, names, readers, strict=True)
        ]
    )


def _filter_file(table: TableSource) -> Path:
    if isinstance(table, Path):
        return table
    raise SettingError(f"{table} is a database; filters are in files that `fedsim encode` wrote")


def _metric_per_column(metric: Metric, columns: int) -> list[Metric]:
    if not isinstance(metric, WeightedSum):
        return [metric] * columns
    return [field.measure for field in metric.fields for _ in field.columns]


def parse_field(words: str) -> WeightedField:
    """``column:metric`` or ``column:metric:weight``; a place has two columns, ``lat,lon:great-circle:0.001``.

    >>> parse_field("born:days:0.5")
    WeightedField(column='born', metric=Days(name='days', whole=False), weight=0.5)
    >>> parse_field("name:levenshtein").weight
    1.0
    """
    head, _, last = words.rpartition(":")
    weight = _parse_weight(last)
    column, _, word = (words if weight is None else head).rpartition(":")
    if not column:
        raise SettingError(f"--field {words!r} is not column:metric:weight, such as name:levenshtein:2.0")
    metric = get_metric(word)
    if isinstance(metric, (RankHamming, *FILTER_METRICS)):
        raise SettingError(
            f"--field {words!r}: {word} does not compare columns; use euclidean, great-circle, days or a text metric"
        )
    return WeightedField(column, metric, 1.0 if weight is None else weight)


def make_fields_distinct(fields: Sequence[WeightedField]) -> tuple[WeightedField, ...]:
    """The fields under names of their own, so that one column may count in several ways.

    >>> [field.column for field in make_fields_distinct([parse_field("born:days"), parse_field("born:levenshtein")])]
    ['born', 'born (field 2)']
    """
    seen: set[str] = set()
    found = []
    for place, field in enumerate(fields):
        names = [f"{name} (field {place + 1})" if name in seen else name for name in field.columns]
        found.append(replace(field, column=",".join(names)))
        seen.update(names)
    return tuple(found)


def _parse_weight(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


# A bar with speed and time left on a terminal, nothing anywhere else


ProgressCallback = Callable[[int, int], None]


@contextmanager
def progress_bar(title: str) -> Iterator[ProgressCallback | None]:
    """A callable ``(done, total)`` that moves the bar; ``None`` where nobody is looking."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    rate = TextColumn("{task.fields[rate]}")
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        rate,
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task(title, total=None, rate="")
        started = time.perf_counter()

        def move(done: int, total: int) -> None:
            speed = done / max(time.perf_counter() - started, 1e-9)
            progress.update(task, completed=done, total=total, rate=f"{speed:,.0f} records/s")

        yield move


@contextmanager
def no_progress(title: str) -> Iterator[ProgressCallback | None]:
    """No bar, even on a terminal."""
    yield None


# A summary as a few lines for people or one object for programs


WrittenFiles = Mapping[str, Path]
SummaryPrinter = Callable[[LinkSummary, WrittenFiles], None]


def print_summary(summary: LinkSummary, written: WrittenFiles) -> None:
    """Print what came of a linkage and where it is."""
    _print_named_values([*summary_lines(summary), *((name, str(path)) for name, path in written.items())])


def print_summary_json(summary: LinkSummary, written: WrittenFiles) -> None:
    """The same as one JSON object on one line."""
    files = {name: str(path) for name, path in written.items()}
    print(json.dumps(asdict(summary) | {"files": files}, ensure_ascii=False))


def print_no_summary(summary: LinkSummary, written: WrittenFiles) -> None:
    """Keep quiet."""


def _print_named_values(lines: list[tuple[str, str]]) -> None:
    """Name and value on each line; the names stand out on a terminal."""
    console = Console(highlight=False, soft_wrap=True)
    for name, value in lines:
        style = "yellow" if name == "warning" else "bold"
        console.print(Text(f"{name:<11}", style=style) + Text(value))


def summary_lines(summary: LinkSummary) -> Iterator[tuple[str, str]]:
    """The figures in words, warnings last."""
    yield (
        "linked",
        f"{pluralise(summary.records, 'record')} x {pluralise(summary.candidates, 'candidate')}, {summary.k:,} each",
    )
    yield "metric", summary.metric + (f", noise sigma {format_number(summary.sigma)}" if summary.sigma else "")
    yield "how", summary.plan
    if summary.seconds is not None:
        pairs = summary.records * summary.candidates / max(summary.seconds, 1e-9)
        yield "time", f"{format_duration(summary.seconds)}, {format_number(pairs / 1e6)} million pairs/s"
    nearest, last = (format_distance(value, summary.metric) for value in (summary.nearest_median, summary.kth_median))
    yield "distance", f"median {nearest} to the nearest, {last} to partner {format_count(summary.k)}"
    if summary.boundary_tie_share is not None:
        yield "ties", f"{format_percent(summary.boundary_tie_share)} of the lists end between equals"
    used = format_percent(summary.candidates_used / summary.candidates)
    yield (
        "used",
        f"{format_count(summary.candidates_used)} candidates ({used}), the busiest in {pluralise(summary.busiest_use, 'list')}",
    )
    if summary.improvement:
        yield "delta", ", ".join(f"{format_number(value)} over {name}" for name, value in summary.improvement.items())
    for warning in summary.warnings:
        yield "warning", warning


# The work behind ``fedsim link``: check, read, search, write, tell


DEFAULT_METRIC = "euclidean"


@dataclass(frozen=True)
class LinkRequest:
    """Which records to compare, as the user said it."""

    primary: TableSource
    secondary: TableSource
    columns: list[str]
    secondary_columns: list[str]
    fields: list[str]
    metric: str | None
    separator: str | None
    secondary_separator: str | None


@dataclass(frozen=True)
class SearchOptions:
    """How to search; the names are those of :func:`fedsim.linkage.link`."""

    k: int
    sigma: float
    seed: int | None
    backend: str
    threads: int | None
    device: str


@dataclass(frozen=True)
class LinkOutput:
    """Where the results go."""

    links: Path
    page: Path | None
    with_map: bool
    tell: SummaryPrinter
    watch: Callable[[str], AbstractContextManager[ProgressCallback | None]]


@dataclass(frozen=True, eq=False)
class IdentifierTables:
    """Both parties' identifiers in the form their metric takes."""

    primary: Any
    secondary: Any
    metric: Metric


def run_link(request: LinkRequest, search: SearchOptions, output: LinkOutput) -> None:
    """Write the links, and the page if asked for; an old file is replaced only by a whole new one."""
    _check_request(request, output)
    tables = _read_tables(request)
    with output.watch("linking") as progress:
        started = time.perf_counter()
        links = _run_search(tables, search, request, progress)
        seconds = time.perf_counter() - started
    diagnostics = diagnose(links)
    if output.page is None:
        save_links(links, output.links)
    else:
        title = f"{request.primary.stem} and {request.secondary.stem}"
        positions = tables.primary.to_numpy() if output.with_map else None
        page = links_page(links, diagnostics, title=title, positions=positions, seconds=seconds)
        _save_links_and_page(links, page, output.links, output.page)
    written = {"links": output.links} | ({"page": output.page} if output.page else {})
    output.tell(summarise_links(links, diagnostics, seconds), written)


def _save_links_and_page(links: Links, page: str, links_path: Path, page_path: Path) -> None:
    """Links and page, or neither: the page is on the disk, under another name, before the links appear."""
    with atomic_write(page_path) as part:
        part.write_text(page, encoding="utf-8")
        save_links(links, links_path)


def _run_search(
    tables: IdentifierTables, search: SearchOptions, request: LinkRequest, progress: ProgressCallback | None
) -> Links:
    return link(
        tables.primary,
        tables.secondary,
        metric=tables.metric,
        k=search.k,
        sigma=search.sigma,
        # Without a seed the noise is fresh: whoever could repeat it could take it off again.
        seed=np.random.default_rng(search.seed),
        backend=search.backend,
        threads=search.threads,
        device=search.device,
        progress=progress,
        primary_name=str(request.primary),
        secondary_name=str(request.secondary),
    )


def _check_request(request: LinkRequest, output: LinkOutput) -> None:
    """Everything that can be known to fail before the first table is read."""
    inputs = source_files([request.primary, request.secondary])
    for path in inputs:
        check_readable(path)
    check_output_paths([output.links] + ([output.page] if output.page else []), inputs)
    if output.with_map and (output.page is None or len(request.columns) != 2):
        raise SettingError("--map needs --report and two columns in --on: latitude and longitude")
    if request.fields and request.columns:
        raise SettingError("--on and --field both name columns; use one of them")
    if request.fields and request.metric is not None:
        raise SettingError("--metric and --field both name metrics; leave out --metric, each field has its own")
    for option, columns in (("--on", request.columns), ("--on-secondary", request.secondary_columns)):
        twice = [name for name in columns if columns.count(name) > 1]
        if twice and not request.fields:
            raise SettingError(f"{option} names the column {twice[0]!r} twice; name it once, or weigh it with --field")


def _read_tables(request: LinkRequest) -> IdentifierTables:
    fields = make_fields_distinct([parse_field(words) for words in request.fields])
    metric = WeightedSum(fields) if fields else get_metric(request.metric or DEFAULT_METRIC)
    ours = [name for words in request.fields for name in parse_field(words).columns] or request.columns
    theirs = request.secondary_columns or ours
    if len(theirs) != len(ours):
        raise SettingError(
            f"--on-secondary names {len(theirs)} columns for {len(ours)}; name as many, in the same order"
        )
    names = [name for field in fields for name in field.columns] or ours
    their_separator = request.secondary_separator or request.separator
    primary = LinkInput(request.primary, ours, request.separator, "--separator")
    secondary = LinkInput(request.secondary, theirs, their_separator, "--separator-secondary")
    return IdentifierTables(
        read_identifiers(primary, metric, names), read_identifiers(secondary, metric, names), metric
    )


# The work behind ``fedsim encode``: read, encode, write


def run_encode(table: TableSource, schema: Path, key: Path, out: Path, separator: str | None) -> EncodedTable:
    """Write the filters of a table and hand them back."""
    check_output_paths([out], [*source_files([table]), schema, key])
    agreed = read_schema(schema)
    frame = read_table(table, list(agreed.columns), separator=separator)
    encoded = encode_table(agreed, frame, Key.read(key), str(table))
    save_encoded(encoded, out)
    return encoded


def read_schema(path: Path) -> Schema:
    """The schema in a JSON file."""
    check_readable(path)
    try:
        described = json.loads(read_bytes(path))
    except json.JSONDecodeError as error:
        raise FileError(
            f"{path} is not JSON (line {error.lineno}, column {error.colno}); correct it or copy the schema again"
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"{path} is not JSON; copy the schema again") from error
    return Schema.from_dict(described)
