"""What a reproduction comes to: tables, charts, what differs from the paper, and how it was made."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fedsim import __version__
from fedsim.experiment.study import FIGURE, Study
from fedsim.experiment.study_run import Found, Row

FORMAT = 1


@dataclass(frozen=True)
class Table:
    """Words and figures in rows; the first column names the row."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Series:
    """One line of a chart: ours with its deviation at every place, and the paper's where it has one."""

    name: str
    mean: tuple[float | None, ...]
    deviation: tuple[float | None, ...]
    paper: tuple[float | None, ...]


@dataclass(frozen=True)
class Chart:
    """Series over places; ``axis`` says what the places are, ``measure`` what is counted upwards."""

    title: str
    axis: str
    measure: str
    places: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Sheet:
    """One table or figure of the paper, reproduced; ``says`` are findings in words."""

    name: str
    title: str
    place: str
    reading: str
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...] = ()
    says: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """In types that JSON has."""
        return {"format": FORMAT, **asdict(self)}


class Shorter(Protocol):
    """What is smaller when time is short; 0 and ``None``: as otherwise."""

    @property
    def records(self) -> int: ...

    @property
    def epochs(self) -> int | None: ...

    @property
    def batch(self) -> int | None: ...


def hurried(sheet: Sheet, shorter: Iterable[Shorter]) -> Sheet:
    """The sheet with a mark that time was short when it was made."""
    short = fast_words(shorter)
    note = f"--fast: {short}: shows that everything runs, not what it reaches"
    return replace(sheet, notes=(note, *sheet.notes), facts={**sheet.facts, "fast": short})


def fast_words(shorter: Iterable[Shorter]) -> str:
    """The most records, epochs and records of a batch among them."""
    every = list(shorter)
    said = {"records": "{:,} records", "epochs": "{} epochs", "batch": "batches of {}"}
    most = {name: max(getattr(each, name) or 0 for each in every) for name in said}
    counts = ", ".join(words.format(most[name]) for name, words in said.items() if most[name])
    return f"at most {counts}" if counts else "nothing is shorter"


def figure_words(mean: float, deviation: float, runs: int = 0) -> str:
    """Mean and deviation with as many decimals as they deserve.

    >>> figure_words(27.404, 0.13, 3), figure_words(0.9121, 0.0, 1), figure_words(3469806.0, 0.0)
    ('27.40 ± 0.13 (3)', '0.9121 (1)', '3,469,806')
    """
    if math.isnan(mean):
        return "-"
    decimals = 0 if abs(mean) >= 1000 else 2 if abs(mean) >= 2 else 4
    spread = f" ± {deviation:.{decimals}f}" if deviation else ""
    return f"{mean:,.{decimals}f}{spread}" + (f" ({runs})" if runs else "")


def paper_words(figure: FIGURE | None) -> str:
    """The paper's figure, or that it has none."""
    return "-" if figure is None else figure_words(*figure)


def study_sheet(study: Study, found: Found, seconds: float) -> Sheet:
    """Tables and charts of a study, one of each per dataset."""
    tables, charts = [], []
    for name in dict.fromkeys(row.dataset for row in found.rows):
        rows = [row for row in found.rows if row.dataset == name]
        tables.append(_table(name, rows))
        if any(row.values for row in rows):
            charts.append(_chart(name, rows, study.axis))
    facts = run_facts(found.lines, seconds)
    return Sheet(
        study.name, study.title, study.place, study.reading, tuple(tables), tuple(charts), (), found.notes, facts
    )


def run_facts(lines: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Versions, hardware, seeds and time, of the trainings and of this run."""
    return {
        "fedsim": __version__,
        "python": platform.python_version(),
        "numpy": _each(lines, "numpy") or [np.__version__],
        "torch": _each(lines, "torch"),
        "devices": _each(lines, "device"),
        "cores": os.cpu_count(),
        "seeds": sorted({line["seed"] for line in lines}),
        "trainings": len(lines),
        "training_seconds": round(sum(line["seconds"] for line in lines), 1),
        "seconds": round(seconds, 1),
    }


def _each(lines: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    return sorted({str(line[name]) for line in lines if name in line})


def _table(dataset: str, rows: Sequence[Row]) -> Table:
    """Methods down; ours and the paper's, for every value of what is varied."""
    values, methods = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("value", "method"))
    unit = next((row.unit for row in rows if row.unit), "")
    title = f"{dataset}: {rows[0].measure}" + (f", {unit}" if unit else "")
    if values == [None]:
        cells = tuple((row.method, _ours(row), paper_words(row.paper)) for row in rows)
        return Table(title, ("method", "ours", "paper"), cells)
    head = ("method", *(name for value in values for name in (f"{value}", f"{value}, paper")))
    found = {(row.method, row.value): row for row in rows}
    body = [(method, *(cell for value in values for cell in _pair(found.get((method, value))))) for method in methods]
    return Table(title, *_without_empty(head, body))


def _pair(row: Row | None) -> tuple[str, str]:
    return ("-", "-") if row is None else (_ours(row), paper_words(row.paper))


def _ours(row: Row) -> str:
    return figure_words(row.mean, row.deviation, len(row.values)) if row.values else "-"


def _without_empty(
    head: tuple[str, ...], body: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns of the paper that hold nothing are left out."""
    kept = [
        place
        for place, name in enumerate(head)
        if not name.endswith(", paper") or any(row[place] != "-" for row in body)
    ]
    return tuple(head[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in body)


def _chart(dataset: str, rows: Sequence[Row], axis: str) -> Chart:
    measure = f"{rows[0].measure}, {dataset}"
    values = list(dict.fromkeys(row.value for row in rows))
    if values == [None]:
        ours = Series(
            "ours",
            tuple(_or_none(row.mean) for row in rows),
            tuple(_or_none(row.deviation) for row in rows),
            tuple(row.paper[0] if row.paper else None for row in rows),
        )
        return Chart(dataset, "", measure, tuple(row.method for row in rows), (ours,))
    series = []
    for method in dict.fromkeys(row.method for row in rows):
        found = {row.value: row for row in rows if row.method == method}
        here = [found.get(value) for value in values]
        series.append(
            Series(
                method,
                tuple(_or_none(row.mean) if row else None for row in here),
                tuple(_or_none(row.deviation) if row else None for row in here),
                tuple(row.paper[0] if row and row.paper else None for row in here),
            )
        )
    return Chart(dataset, axis, measure, tuple(str(value) for value in values), tuple(series))


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
