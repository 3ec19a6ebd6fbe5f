"""Predictions against the truth of the test records: numbers in cells, classes in a table, and how sure the model was.

Records are shown in cells of several, never one by one: a page is passed on.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from markupsafe import Markup

from fedsim.party.run_record import CONFIDENCE, PREDICTED, TRUTH, GroupError
from fedsim.report.figure import Figure
from fedsim.report.places import FEWEST
from fedsim.report.rows import Labels, Row, bars_figure
from fedsim.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Scale,
    across,
    bottom_axis,
    drawing,
    element,
    join,
    left_axis,
    path,
    step_for,
    tick_label,
    ticks,
    tip,
    upward,
    widened,
)
from fedsim.report.words import count, many, measure, percent
from fedsim.types import Floats, Integers

CELLS = (28, 20, 14, 10, 7, 5, 3, 1)  # along a side: the most that leave out few records
FEW = 0.2  # of the records, that lie in cells too small to be shown
SHADES = 5
MOST_CLASSES = 12
MOST_COLUMNS = 4
STEPS = 5  # of confidence
FIGURE = 7.8  # units across, of a figure in a cell


def density_figure(truth: Floats, predicted: Floats, *, unit: str) -> Figure | None:
    """Test records by truth and prediction; on the slanting line both are equal. None where they are too few."""
    finite = np.isfinite(truth) & np.isfinite(predicted)
    truth, predicted = truth[finite], predicted[finite]
    if len(truth) < FEWEST:
        return None
    first, last = _usual(np.concatenate([truth, predicted]))
    inside = (np.minimum(truth, predicted) >= first) & (np.maximum(truth, predicted) <= last)
    low, high = widened(first, last)
    true, found = (np.clip(values[inside], low, high) for values in (truth, predicted))  # an end may be off by dust
    counts, edges = _counted(true, found, low, high)
    x, y, shown = across(low, high), upward(low, high), ticks(low, high)
    labels = [tick_label(value, step_for(low, high)) for value in shown]
    parts = [
        left_axis(y, f"predicted {unit}".strip()),
        bottom_axis(x, shown, labels, f"true {unit}".strip()),
        _cells(counts, edges, x, y),
        path([(x(low), y(low)), (x(high), y(high))], class_="marker"),
    ]
    error = np.abs(predicted - truth)
    said = f"Half of the {count(len(truth))} test records are predicted within {measure(float(np.median(error)))}"
    rows = [(f"{percent(share)} of records", measure(float(np.quantile(error, share)))) for share in (0.5, 0.9)]
    return Figure(
        "Predicted against true",
        f"{said} of the truth. Stronger colours stand for more records; on the slanting line both are equal."
        f"{_not_drawn(len(truth) - int(counts.sum()), 'far off')}",
        drawing("Predicted against true", f"{said} of the truth.", join(parts)),
        ("share", "error at most"),
        tuple(rows),
    )


def _counted(true: Floats, found: Floats, low: float, high: float) -> tuple[Integers, Floats]:
    """Records per cell, small cells emptied, and the edges of the cells along either side."""
    counts, edges = np.zeros((1, 1), dtype=np.int64), np.array([low, high])
    for cells in CELLS:
        drawn, edges, _ = np.histogram2d(true, found, bins=cells, range=[[low, high]] * 2)
        counts = np.where(drawn >= FEWEST, drawn, 0).astype(np.int64)
        if counts.sum() >= (1.0 - FEW) * len(true):
            break
    return counts, edges


def _not_drawn(records: int, where: str) -> str:
    return f" Not drawn: {many(records, 'record')} {where} or in cells of fewer than {FEWEST}." if records else ""


def _usual(values: Floats) -> tuple[float, float]:
    """The ends without the last half per cent on each side, where these lie far off."""
    low, high = float(values.min()), float(values.max())
    inner = [float(end) for end in np.quantile(values, [0.005, 0.995])]
    far = high - low > 1.5 * (inner[1] - inner[0]) > 0
    return (inner[0], inner[1]) if far else (low, high)


def _cells(counts: Integers, edges: Floats, x: Scale, y: Scale) -> Markup:
    bounds = _bounds(counts)
    width, height = (RIGHT - LEFT) / len(counts), (BOTTOM - TOP) / len(counts)
    return join(
        element(
            "rect",
            tip(
                f"true about {_middle(edges, across_)}, predicted about {_middle(edges, up)}: {many(number, 'record')}"
            ),
            class_=f"cell shade{np.searchsorted(bounds, number, side='right')}",
            x=x(edges[across_]),
            y=y(edges[up + 1]),
            width=round(width, 2),
            height=round(height, 2),
        )
        for across_, up in zip(*np.nonzero(counts), strict=True)
        if (number := int(counts[across_, up]))
    )


def _bounds(counts: Integers) -> Floats:
    return np.quantile(counts[counts > 0], np.arange(1, SHADES) / SHADES) if counts.any() else np.zeros(SHADES - 1)


def _middle(edges: Floats, place: int) -> str:
    return measure(float(edges[place] + edges[place + 1]) / 2)


def confusion_figure(test: pl.DataFrame) -> Figure | None:
    """True classes down, predicted ones across: the commonest ones, without those of very few records."""
    sizes = test[TRUTH].value_counts(sort=True).filter(pl.col("count") >= FEWEST).head(MOST_CLASSES)
    names = sorted(sizes.to_series(0).to_list())
    if not names:
        return None
    place = {name: number for number, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    for true, found in zip(test[TRUTH].to_list(), test[PREDICTED].to_list(), strict=True):
        if true in place and found in place:
            counts[place[true], place[found]] += 1
    right = float((test[TRUTH] == test[PREDICTED]).sum()) / max(len(test), 1)
    said = f"{percent(right)} of {many(len(test), 'test record')} get their true class."
    left = test[TRUTH].n_unique() - len(names)
    note = f" Not shown: {count(left)} rarer {'class' if left == 1 else 'classes'}." if left else ""
    rows = tuple((name, *map(_some, line)) for name, line in zip(names, counts.tolist(), strict=True))
    return Figure(
        "Predicted against true classes",
        f"{said} A row is a true class, a column a predicted one, both in the same order; numbers are records, and the "
        f"stronger the colour, the more of the row.{note}",
        drawing("Predicted against true classes", said, _table(names, counts)),
        ("true class", *names),
        rows,
    )


def _some(records: int) -> str:
    """How many, without the last word about very few."""
    return f"fewer than {FEWEST}" if 0 < records < FEWEST else count(records)


def _table(names: list[str], counts: Integers) -> Markup:
    shown = np.where(counts >= FEWEST, counts, 0)
    shares = shown / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    left, top = 110, 30
    width, height = (RIGHT - left) / len(names), (BOTTOM - top + 30) / len(names)
    short = [name if len(name) <= 14 else f"{name[:13]}…" for name in names]
    brief = max(len(count(number)) for number in counts.ravel().tolist()) * FIGURE > width
    parts = []
    for row, name in enumerate(short):
        middle = top + height * (row + 0.5)
        parts.append(element("text", name, class_="tick", x=left - 8, y=middle + 4, text_anchor="end"))
        for column, share in enumerate(shares[row]):
            words = f"true {names[row]}, predicted {names[column]}: {_some(int(counts[row, column]))}"
            parts.append(
                element(
                    "rect",
                    tip(words),
                    class_=f"cell shade{min(SHADES - 1, int(share * SHADES))}",
                    x=round(left + width * column, 2),
                    y=round(top + height * row, 2),
                    width=round(width - 1, 2),
                    height=round(height - 1, 2),
                )
            )
            place, said = left + width * (column + 0.5), _in_cell(int(counts[row, column]), brief)
            parts.append(element("text", said, class_="figure", x=place, y=middle + 4, text_anchor="middle"))
    fits = max(len(name) for name in short) * 6.0 < width
    for column, name in enumerate(short if fits else ()):
        place = left + width * (column + 0.5)
        parts.append(element("text", name, class_="tick", x=place, y=top - 8, text_anchor="middle"))
    return join(parts)


def _in_cell(records: int, brief: bool) -> str:
    if 0 < records < FEWEST:
        return f"<{FEWEST}"
    return f"{records / 1000:.0f}k" if brief and records >= 1000 else count(records)


def calibration_figure(test: pl.DataFrame) -> Figure | None:
    """How often predictions are right, by how sure the model was; none where too little was tested."""
    test = test.filter(pl.col(CONFIDENCE).is_finite())
    sure = test[CONFIDENCE].to_numpy()
    right = (test[TRUTH] == test[PREDICTED]).to_numpy().astype(np.float64)
    if len(sure) < FEWEST:
        return None
    edges = np.linspace(float(sure.min()), 1.0, STEPS + 1)
    place = np.clip(np.searchsorted(edges, sure, side="right") - 1, 0, STEPS - 1)
    rows = [
        Row(
            f"says {percent(float(sure[place == step].mean()))}",
            float(right[place == step].mean()),
            f"right {percent(float(right[place == step].mean()))} of {count(int((place == step).sum()))}",
        )
        for step in range(STEPS)
        if (place == step).sum() >= FEWEST
    ]
    caption = "Where the model says that it is 90 % sure, it should be right in 90 % of the records."
    labels = Labels("How sure, and how often right", caption, "share right", ("confidence", "right"))
    return bars_figure(rows, labels) if rows else None


def group_figures(groups: list[GroupError], *, numbers: bool) -> list[Figure]:
    """Errors by group, for the columns between whose groups they differ most."""
    by: dict[str, list[GroupError]] = {}
    for group in groups:
        by.setdefault(group.by, []).append(group)
    several = {name: found for name, found in by.items() if len(found) > 1}
    chosen = sorted(several, key=lambda name: -_contrast(several[name]))[:MOST_COLUMNS]
    return [_group_figure(name, several[name], numbers) for name in chosen]


def _contrast(groups: list[GroupError]) -> float:
    errors = [group.error for group in groups]
    return (max(errors) - min(errors)) / (max(errors) or 1.0)


def _group_figure(name: str, groups: list[GroupError], numbers: bool) -> Figure:
    rows = [Row(f"{group.group} ({count(group.records)})", group.error, _error_words(group)) for group in groups]
    axis = "root mean squared error" if numbers else "share of wrong predictions"
    worst = max(groups, key=lambda group: group.error)
    caption = f"The error is largest where {name} is {worst.group}. In brackets: test records." + (
        " Bias is the mean of predicted less true." if numbers else ""
    )
    return bars_figure(rows, Labels(f"Errors by {name}", caption, axis, (name, "error")))


def _error_words(group: GroupError) -> str:
    if group.bias is None:
        return percent(group.error)
    return f"{measure(group.error)}, bias {'+' if group.bias > 0 else ''}{measure(group.bias)}"
