"""A summary as a few lines for people or one object for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedsim.report.summary import Summary
from fedsim.report.words import count, distance, duration, many, measure, percent

Files = Mapping[str, Path]
Teller = Callable[[Summary, Files], None]


def tell_people(summary: Summary, written: Files) -> None:
    """Print what came of a linkage and where it is."""
    print_lines([*lines_of(summary), *((name, str(path)) for name, path in written.items())])


def tell_programs(summary: Summary, written: Files) -> None:
    """The same as one JSON object on one line."""
    files = {name: str(path) for name, path in written.items()}
    print(json.dumps(asdict(summary) | {"files": files}, ensure_ascii=False))


def tell_nobody(summary: Summary, written: Files) -> None:
    """Keep quiet."""


def print_lines(lines: list[tuple[str, str]]) -> None:
    """Name and value on each line; the names stand out on a terminal."""
    console = Console(highlight=False, soft_wrap=True)
    for name, value in lines:
        style = "yellow" if name == "warning" else "bold"
        console.print(Text(f"{name:<11}", style=style) + Text(value))


def lines_of(summary: Summary) -> Iterator[tuple[str, str]]:
    """The figures in words, warnings last."""
    yield "linked", f"{many(summary.records, 'record')} x {many(summary.candidates, 'candidate')}, {summary.k:,} each"
    yield "metric", summary.metric + (f", noise sigma {measure(summary.sigma)}" if summary.sigma else "")
    yield "how", summary.plan
    if summary.seconds is not None:
        pairs = summary.records * summary.candidates / max(summary.seconds, 1e-9)
        yield "time", f"{duration(summary.seconds)}, {measure(pairs / 1e6)} million pairs/s"
    nearest, last = (distance(value, summary.metric) for value in (summary.nearest_median, summary.kth_median))
    yield "distance", f"median {nearest} to the nearest, {last} to partner {count(summary.k)}"
    if summary.boundary_tie_share is not None:
        yield "ties", f"{percent(summary.boundary_tie_share)} of the lists end between equals"
    used = percent(summary.candidates_used / summary.candidates)
    yield (
        "used",
        f"{count(summary.candidates_used)} candidates ({used}), the busiest in {many(summary.busiest_use, 'list')}",
    )
    if summary.improvement:
        yield "delta", ", ".join(f"{measure(value)} over {name}" for name, value in summary.improvement.items())
    for warning in summary.warnings:
        yield "warning", warning
