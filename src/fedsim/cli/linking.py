"""The work behind ``fedsim link``: check, read, search, write, tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.cli.inputs import Side, distinct_fields, identifiers, parse_field
from fedsim.cli.progress import Progressed
from fedsim.cli.telling import Teller
from fedsim.data.files import check_outputs, check_readable
from fedsim.data.readers import files_among
from fedsim.data.sql_source import Source
from fedsim.errors import SettingError
from fedsim.linkage import diagnose, link, save_links
from fedsim.linkage.choices import metric_named
from fedsim.linkage.metric import Metric
from fedsim.linkage.metrics.weighted import WeightedSum
from fedsim.linkage.whole_file import whole_file
from fedsim.report.links_page import links_page
from fedsim.report.summary import summarise
from fedsim.types import Links

DEFAULT_METRIC = "euclidean"


@dataclass(frozen=True)
class Request:
    """Which records to compare, as the user said it."""

    primary: Source
    secondary: Source
    columns: list[str]
    secondary_columns: list[str]
    fields: list[str]
    metric: str | None
    separator: str | None
    secondary_separator: str | None


@dataclass(frozen=True)
class Search:
    """How to search; the names are those of :func:`fedsim.linkage.link`."""

    k: int
    sigma: float
    seed: int | None
    backend: str
    threads: int | None
    device: str


@dataclass(frozen=True)
class Output:
    """Where the results go."""

    links: Path
    page: Path | None
    with_map: bool
    tell: Teller
    watch: Callable[[str], AbstractContextManager[Progressed | None]]


@dataclass(frozen=True, eq=False)
class Tables:
    """Both parties' identifiers in the form their metric takes."""

    primary: Any
    secondary: Any
    metric: Metric


def run_link(request: Request, search: Search, output: Output) -> None:
    """Write the links, and the page if asked for; an old file is replaced only by a whole new one."""
    _check(request, output)
    tables = _read(request)
    with output.watch("linking") as progress:
        started = time.perf_counter()
        links = _search(tables, search, request, progress)
        seconds = time.perf_counter() - started
    diagnostics = diagnose(links)
    if output.page is None:
        save_links(links, output.links)
    else:
        title = f"{request.primary.stem} and {request.secondary.stem}"
        positions = tables.primary.to_numpy() if output.with_map else None
        page = links_page(links, diagnostics, title=title, positions=positions, seconds=seconds)
        _save_both(links, page, output.links, output.page)
    written = {"links": output.links} | ({"page": output.page} if output.page else {})
    output.tell(summarise(links, diagnostics, seconds), written)


def _save_both(links: Links, page: str, links_path: Path, page_path: Path) -> None:
    """Links and page, or neither: the page is on the disk, under another name, before the links appear."""
    with whole_file(page_path) as part:
        part.write_text(page, encoding="utf-8")
        save_links(links, links_path)


def _search(tables: Tables, search: Search, request: Request, progress: Progressed | None) -> Links:
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


def _check(request: Request, output: Output) -> None:
    """Everything that can be known to fail before the first table is read."""
    inputs = files_among([request.primary, request.secondary])
    for path in inputs:
        check_readable(path)
    check_outputs([output.links] + ([output.page] if output.page else []), inputs)
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


def _read(request: Request) -> Tables:
    fields = distinct_fields([parse_field(words) for words in request.fields])
    metric = WeightedSum(fields) if fields else metric_named(request.metric or DEFAULT_METRIC)
    ours = [name for words in request.fields for name in parse_field(words).columns] or request.columns
    theirs = request.secondary_columns or ours
    if len(theirs) != len(ours):
        raise SettingError(
            f"--on-secondary names {len(theirs)} columns for {len(ours)}; name as many, in the same order"
        )
    names = [name for field in fields for name in field.columns] or ours
    their_separator = request.secondary_separator or request.separator
    primary = Side(request.primary, ours, request.separator, "--separator")
    secondary = Side(request.secondary, theirs, their_separator, "--separator-secondary")
    return Tables(identifiers(primary, metric, names), identifiers(secondary, metric, names), metric)
