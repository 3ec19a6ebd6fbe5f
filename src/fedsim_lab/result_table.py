"""Results as tables and charts beside the paper's scores, with the facts of the run."""

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fedsim import __version__
from fedsim_lab.study_config import PaperFigure, PaperStudy
from fedsim_lab.study_runner import StudyResult, StudyRow

# A reproduction: tables, charts, differences from the paper, and how it was made


SHEET_FORMAT = 1


@dataclass(frozen=True)
class ResultTable:
    """Rows of formatted cells; the first column names the row."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ChartSeries:
    """One line of a chart: our scores and deviations at every place, and the paper's if it has any."""

    name: str
    mean: tuple[float | None, ...]
    deviation: tuple[float | None, ...]
    paper: tuple[float | None, ...]


@dataclass(frozen=True)
class ResultChart:
    """Series over places; ``axis`` is the label of the places, ``measure`` the label of the vertical axis."""

    title: str
    axis: str
    measure: str
    places: tuple[str, ...]
    series: tuple[ChartSeries, ...]


@dataclass(frozen=True)
class ResultSheet:
    """One table or figure of the paper, reproduced; ``says`` holds the findings as sentences."""

    name: str
    title: str
    place: str
    reading: str
    tables: tuple[ResultTable, ...]
    charts: tuple[ResultChart, ...] = ()
    says: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the sheet as JSON-compatible types."""
        return {"format": SHEET_FORMAT, **asdict(self)}


class FastSettings(Protocol):
    """Reduced settings of ``--fast``; 0 and ``None`` keep the usual value."""

    @property
    def records(self) -> int: ...

    @property
    def epochs(self) -> int | None: ...

    @property
    def batch_size(self) -> int | None: ...


def mark_fast(sheet: ResultSheet, shorter: Iterable[FastSettings]) -> ResultSheet:
    """Return the sheet with a note that it was made with ``--fast``."""
    short = describe_fast_settings(shorter)
    note = f"--fast: {short}: shows that everything runs, not what it reaches"
    return replace(sheet, notes=(note, *sheet.notes), facts={**sheet.facts, "fast": short})


def describe_fast_settings(shorter: Iterable[FastSettings]) -> str:
    """Describe the largest numbers of records, epochs and records per batch."""
    every = list(shorter)
    templates = {"records": "{:,} records", "epochs": "{} epochs", "batch_size": "batches of {}"}
    most = {name: max(getattr(each, name) or 0 for each in every) for name in templates}
    counts = ", ".join(template.format(most[name]) for name, template in templates.items() if most[name])
    return f"at most {counts}" if counts else "nothing is shorter"


def format_score(mean: float, deviation: float, runs: int = 0) -> str:
    """Format mean and deviation; the larger the mean, the fewer the decimals.

    >>> format_score(27.404, 0.13, 3), format_score(0.9121, 0.0, 1), format_score(3469806.0, 0.0)
    ('27.40 ± 0.13 (3)', '0.9121 (1)', '3,469,806')
    """
    if math.isnan(mean):
        return "-"
    decimals = 0 if abs(mean) >= 1000 else 2 if abs(mean) >= 2 else 4
    spread = f" ± {deviation:.{decimals}f}" if deviation else ""
    return f"{mean:,.{decimals}f}{spread}" + (f" ({runs})" if runs else "")


def format_paper_score(figure: PaperFigure | None) -> str:
    """Format the paper's score, or ``-`` if it has none."""
    return "-" if figure is None else format_score(*figure)


def study_result_sheet(study: PaperStudy, found: StudyResult, seconds: float) -> ResultSheet:
    """Return the tables and charts of a study, one of each per dataset."""
    tables, charts = [], []
    for name in dict.fromkeys(row.dataset for row in found.rows):
        rows = [row for row in found.rows if row.dataset == name]
        tables.append(_study_table(name, rows))
        if any(row.values for row in rows):
            charts.append(_study_chart(name, rows, study.axis))
    facts = run_facts(found.lines, seconds)
    return ResultSheet(
        study.name, study.title, study.place, study.reading, tuple(tables), tuple(charts), (), found.notes, facts
    )


def run_facts(lines: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Return the versions, hardware, seeds and time of the trainings and of this run."""
    return {
        "fedsim": __version__,
        "python": platform.python_version(),
        "numpy": _distinct_values(lines, "numpy") or [np.__version__],
        "torch": _distinct_values(lines, "torch"),
        "devices": _distinct_values(lines, "device"),
        "cores": os.cpu_count(),
        "seeds": sorted({line["seed"] for line in lines}),
        "trainings": len(lines),
        "training_seconds": round(sum(line["seconds"] for line in lines), 1),
        "training_core_hours": round(sum(line.get("cpu_seconds", 0.0) for line in lines) / 3600, 2),
        "seconds": round(seconds, 1),
    }


def _distinct_values(lines: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    return sorted({str(line[name]) for line in lines if name in line})


def _study_table(dataset: str, rows: Sequence[StudyRow]) -> ResultTable:
    """Return a table with one row per method, and our and the paper's scores for every value of the varied setting."""
    values, methods = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("value", "method"))
    unit = next((row.unit for row in rows if row.unit), "")
    title = f"{dataset}: {rows[0].measure}" + (f", {unit}" if unit else "")
    if values == [None]:
        cells = tuple((row.method, _format_own_score(row), format_paper_score(row.paper)) for row in rows)
        return ResultTable(title, ("method", "ours", "paper"), cells)
    head = ("method", *(name for value in values for name in (f"{value}", f"{value}, paper")))
    found = {(row.method, row.value): row for row in rows}
    body = [
        (method, *(cell for value in values for cell in _score_cells(found.get((method, value))))) for method in methods
    ]
    return ResultTable(title, *_drop_empty_columns(head, body))


def _score_cells(row: StudyRow | None) -> tuple[str, str]:
    return ("-", "-") if row is None else (_format_own_score(row), format_paper_score(row.paper))


def _format_own_score(row: StudyRow) -> str:
    return format_score(row.mean, row.deviation, len(row.values)) if row.values else "-"


def _drop_empty_columns(
    head: tuple[str, ...], body: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Drop the paper's columns that are empty."""
    kept = [
        place
        for place, name in enumerate(head)
        if not name.endswith(", paper") or any(row[place] != "-" for row in body)
    ]
    return tuple(head[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in body)


def _study_chart(dataset: str, rows: Sequence[StudyRow], axis: str) -> ResultChart:
    measure = f"{rows[0].measure}, {dataset}"
    values = list(dict.fromkeys(row.value for row in rows))
    if values == [None]:
        ours = ChartSeries(
            "ours",
            tuple(_nan_to_none(row.mean) for row in rows),
            tuple(_nan_to_none(row.deviation) for row in rows),
            tuple(row.paper[0] if row.paper else None for row in rows),
        )
        return ResultChart(dataset, "", measure, tuple(row.method for row in rows), (ours,))
    series = []
    for method in dict.fromkeys(row.method for row in rows):
        found = {row.value: row for row in rows if row.method == method}
        here = [found.get(value) for value in values]
        series.append(
            ChartSeries(
                method,
                tuple(_nan_to_none(row.mean) if row else None for row in here),
                tuple(_nan_to_none(row.deviation) if row else None for row in here),
                tuple(row.paper[0] if row and row.paper else None for row in here),
            )
        )
    return ResultChart(dataset, axis, measure, tuple(str(value) for value in values), tuple(series))


def _nan_to_none(value: float) -> float | None:
    return None if math.isnan(value) else value
