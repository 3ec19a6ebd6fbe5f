"""The work behind ``fedsim link``: check, read, search, write, tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.cli.inputs import Source, identifiers, parse_field
from fedsim.cli.progress import Progressed
from fedsim.cli.telling import Teller
from fedsim.data.files import check_readable, check_writable
from fedsim.errors import SettingError
from fedsim.linkage import diagnose, link, save_links
from fedsim.linkage.choices import metric_named
from fedsim.linkage.metric import Metric
from fedsim.linkage.metrics.weighted import WeightedSum
from fedsim.report.links_page import write_links_page
from fedsim.report.summary import summarise
from fedsim.types import Links


@dataclass(frozen=True)
class Request:
    """Which records to compare, as the user said it."""

    primary: Path
    secondary: Path
    columns: list[str]
    secondary_columns: list[str]
    fields: list[str]
    metric: str
    separator: str | None


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
    save_links(links, output.links)
    written = {"links": output.links}
    if output.page is not None:
        title = f"{request.primary.stem} and {request.secondary.stem}"
        positions = tables.primary.to_numpy() if output.with_map else None
        write_links_page(links, diagnostics, output.page, title=title, positions=positions, seconds=seconds)
        written["page"] = output.page
    output.tell(summarise(links, diagnostics, seconds), written)


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
    inputs = [request.primary, request.secondary]
    for path in inputs:
        check_readable(path)
    targets = [output.links] + ([output.page] if output.page else [])
    for path in targets:
        check_writable(path)
    if len({path.resolve() for path in targets}) < len(targets):
        raise SettingError("--out and --report name the same file; choose two")
    if {path.resolve() for path in targets} & {path.resolve() for path in inputs}:
        raise SettingError("an output would replace an input table; choose another name")
    if output.with_map and (output.page is None or len(request.columns) != 2):
        raise SettingError("--map needs --report and two columns in --on: latitude and longitude")


def _read(request: Request) -> Tables:
    fields = tuple(parse_field(words) for words in request.fields)
    if fields and request.columns:
        raise SettingError("--on and --field both name columns; use one of them")
    metric = WeightedSum(fields) if fields else metric_named(request.metric)
    ours = [field.column for field in fields] or request.columns
    theirs = request.secondary_columns or ours
    if len(theirs) != len(ours):
        raise SettingError(
            f"--on-secondary names {len(theirs)} columns for {len(ours)}; name as many, in the same order"
        )
    primary = identifiers(Source(request.primary, ours, request.separator), metric, ours)
    secondary = identifiers(Source(request.secondary, theirs, request.separator), metric, ours)
    return Tables(primary, secondary, metric)
