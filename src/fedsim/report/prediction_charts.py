"""Predictions against the truth: density, confusion matrix, calibration, decision threshold and error by group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import polars as pl
from markupsafe import Markup
from numpy.typing import NDArray

from fedsim.report.charts import AxisLabels, ChartLabels, ChartRow, bar_rows_figure, lines_figure
from fedsim.report.distribution_charts import MIN_RECORDS_SHOWN
from fedsim.report.formatting import format_count, format_number, format_percent, pluralise
from fedsim.report.page import Figure
from fedsim.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    LinearScale,
    bottom_axis,
    element,
    join_markup,
    left_axis,
    nice_range,
    svg_image,
    svg_path,
    tick_label,
    tick_step,
    tick_values,
    tooltip,
    x_scale,
    y_scale,
)
from fedsim.runs.record import CONFIDENCE_COLUMN, PREDICTED_COLUMN, TRUTH_COLUMN, GroupError
from fedsim.types import Floats, Integers

# Predictions against the truth of the test records: numbers in cells, classes in a table, and how sure the model was
#
# Records are shown in cells of several, never one by one: a page is passed on.


CELLS_PER_SIDE = (28, 20, 14, 10, 7, 5, 3, 1)  # along a side: the most that leave out few records
MAX_HIDDEN_RECORDS = 0.2  # of the records, that lie in cells too small to be shown
CELL_SHADES = 5
MAX_CLASSES = 12
MAX_GROUP_COLUMNS = 4
CONFIDENCE_BINS = 5  # of confidence
DIGIT_WIDTH = 7.8  # units across, of a figure in a cell


def density_figure(truth: Floats, predicted: Floats, *, unit: str) -> Figure | None:
    """Test records by truth and prediction; on the slanting line both are equal. None where they are too few."""
    finite = np.isfinite(truth) & np.isfinite(predicted)
    truth, predicted = truth[finite], predicted[finite]
    if len(truth) < MIN_RECORDS_SHOWN:
        return None
    first, last = _range_without_tails(np.concatenate([truth, predicted]))
    inside = (np.minimum(truth, predicted) >= first) & (np.maximum(truth, predicted) <= last)
    low, high = nice_range(first, last)
    true, found = (np.clip(values[inside], low, high) for values in (truth, predicted))  # an end may be off by dust
    counts, edges = _cell_counts(true, found, low, high)
    x, y, shown = x_scale(low, high), y_scale(low, high), tick_values(low, high)
    labels = [tick_label(value, tick_step(low, high)) for value in shown]
    parts = [
        left_axis(y, f"predicted {unit}".strip()),
        bottom_axis(x, shown, labels, f"true {unit}".strip()),
        _cells(counts, edges, x, y),
        svg_path([(x(low), y(low)), (x(high), y(high))], class_="marker"),
    ]
    error = np.abs(predicted - truth)
    said = f"Half of the {format_count(len(truth))} test records are predicted within {format_number(float(np.median(error)))}"
    rows = [
        (f"{format_percent(share)} of records", format_number(float(np.quantile(error, share)))) for share in (0.5, 0.9)
    ]
    return Figure(
        "Predicted against true",
        f"{said} of the truth. Stronger colours stand for more records; on the slanting line both are equal."
        f"{_hidden_note(len(truth) - int(counts.sum()), 'far off')}",
        svg_image("Predicted against true", f"{said} of the truth.", join_markup(parts)),
        ("share", "error at most"),
        tuple(rows),
    )


def _cell_counts(true: Floats, found: Floats, low: float, high: float) -> tuple[Integers, Floats]:
    """Records per cell, small cells emptied, and the edges of the cells along either side."""
    counts, edges = np.zeros((1, 1), dtype=np.int64), np.array([low, high])
    for cells in CELLS_PER_SIDE:
        drawn, edges, _ = np.histogram2d(true, found, bins=cells, range=[[low, high]] * 2)
        counts = np.where(drawn >= MIN_RECORDS_SHOWN, drawn, 0).astype(np.int64)
        if counts.sum() >= (1.0 - MAX_HIDDEN_RECORDS) * len(true):
            break
    return counts, edges


def _hidden_note(records: int, where: str) -> str:
    return (
        f" Not drawn: {pluralise(records, 'record')} {where} or in cells of fewer than {MIN_RECORDS_SHOWN}."
        if records
        else ""
    )


def _range_without_tails(values: Floats) -> tuple[float, float]:
    """The ends without the last half per cent on each side, where these lie far off."""
    low, high = float(values.min()), float(values.max())
    inner = [float(end) for end in np.quantile(values, [0.005, 0.995])]
    far = high - low > 1.5 * (inner[1] - inner[0]) > 0
    return (inner[0], inner[1]) if far else (low, high)


def _cells(counts: Integers, edges: Floats, x: LinearScale, y: LinearScale) -> Markup:
    bounds = _count_bounds(counts)
    width, height = (RIGHT - LEFT) / len(counts), (BOTTOM - TOP) / len(counts)
    return join_markup(
        element(
            "rect",
            tooltip(
                f"true about {_bin_centre(edges, across_)}, predicted about {_bin_centre(edges, up)}: {pluralise(number, 'record')}"
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


def _count_bounds(counts: Integers) -> Floats:
    return (
        np.quantile(counts[counts > 0], np.arange(1, CELL_SHADES) / CELL_SHADES)
        if counts.any()
        else np.zeros(CELL_SHADES - 1)
    )


def _bin_centre(edges: Floats, place: int) -> str:
    return format_number(float(edges[place] + edges[place + 1]) / 2)


def confusion_figure(test: pl.DataFrame) -> Figure | None:
    """True classes down, predicted ones across: the commonest ones, without those of very few records."""
    sizes = test[TRUTH_COLUMN].value_counts(sort=True).filter(pl.col("count") >= MIN_RECORDS_SHOWN).head(MAX_CLASSES)
    names = sorted(sizes.to_series(0).to_list())
    if not names:
        return None
    place = {name: number for number, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    for true, found in zip(test[TRUTH_COLUMN].to_list(), test[PREDICTED_COLUMN].to_list(), strict=True):
        if true in place and found in place:
            counts[place[true], place[found]] += 1
    right = float((test[TRUTH_COLUMN] == test[PREDICTED_COLUMN]).sum()) / max(len(test), 1)
    said = f"{format_percent(right)} of {pluralise(len(test), 'test record')} get their true class."
    left = test[TRUTH_COLUMN].n_unique() - len(names)
    note = f" Not shown: {format_count(left)} rarer {'class' if left == 1 else 'classes'}." if left else ""
    rows = tuple((name, *map(_masked_count, line)) for name, line in zip(names, counts.tolist(), strict=True))
    return Figure(
        "Predicted against true classes",
        f"{said} A row is a true class, a column a predicted one, both in the same order; numbers are records, and the "
        f"stronger the colour, the more of the row.{note}",
        svg_image("Predicted against true classes", said, _confusion_cells(names, counts)),
        ("true class", *names),
        rows,
    )


def _masked_count(records: int) -> str:
    """How many, without the last word about very few."""
    return f"fewer than {MIN_RECORDS_SHOWN}" if 0 < records < MIN_RECORDS_SHOWN else format_count(records)


def _confusion_cells(names: list[str], counts: Integers) -> Markup:
    shown = np.where(counts >= MIN_RECORDS_SHOWN, counts, 0)
    shares = shown / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    left, top = 110, 30
    width, height = (RIGHT - left) / len(names), (BOTTOM - top + 30) / len(names)
    short = [name if len(name) <= 14 else f"{name[:13]}…" for name in names]
    brief = max(len(format_count(number)) for number in counts.ravel().tolist()) * DIGIT_WIDTH > width
    parts = []
    for row, name in enumerate(short):
        middle = top + height * (row + 0.5)
        parts.append(element("text", name, class_="tick", x=left - 8, y=middle + 4, text_anchor="end"))
        for column, share in enumerate(shares[row]):
            words = f"true {names[row]}, predicted {names[column]}: {_masked_count(int(counts[row, column]))}"
            parts.append(
                element(
                    "rect",
                    tooltip(words),
                    class_=f"cell shade{min(CELL_SHADES - 1, int(share * CELL_SHADES))}",
                    x=round(left + width * column, 2),
                    y=round(top + height * row, 2),
                    width=round(width - 1, 2),
                    height=round(height - 1, 2),
                )
            )
            place, said = left + width * (column + 0.5), _cell_text(int(counts[row, column]), brief)
            parts.append(element("text", said, class_="figure", x=place, y=middle + 4, text_anchor="middle"))
    fits = max(len(name) for name in short) * 6.0 < width
    for column, name in enumerate(short if fits else ()):
        place = left + width * (column + 0.5)
        parts.append(element("text", name, class_="tick", x=place, y=top - 8, text_anchor="middle"))
    return join_markup(parts)


def _cell_text(records: int, brief: bool) -> str:
    if 0 < records < MIN_RECORDS_SHOWN:
        return f"<{MIN_RECORDS_SHOWN}"
    return f"{records / 1000:.0f}k" if brief and records >= 1000 else format_count(records)


def calibration_figure(test: pl.DataFrame) -> Figure | None:
    """How often predictions are right, by how sure the model was; none where too little was tested."""
    test = test.filter(pl.col(CONFIDENCE_COLUMN).is_finite())
    sure = test[CONFIDENCE_COLUMN].to_numpy()
    right = (test[TRUTH_COLUMN] == test[PREDICTED_COLUMN]).to_numpy().astype(np.float64)
    if len(sure) < MIN_RECORDS_SHOWN:
        return None
    edges = np.linspace(float(sure.min()), 1.0, CONFIDENCE_BINS + 1)
    place = np.clip(np.searchsorted(edges, sure, side="right") - 1, 0, CONFIDENCE_BINS - 1)
    rows = [
        ChartRow(
            f"says {format_percent(float(sure[place == step].mean()))}",
            float(right[place == step].mean()),
            f"right {format_percent(float(right[place == step].mean()))} of {format_count(int((place == step).sum()))}",
        )
        for step in range(CONFIDENCE_BINS)
        if (place == step).sum() >= MIN_RECORDS_SHOWN
    ]
    caption = "Where the model says that it is 90 % sure, it should be right in 90 % of the records."
    labels = ChartLabels("How sure, and how often right", caption, "share right", ("confidence", "right"))
    return bar_rows_figure(rows, labels) if rows else None


def group_figures(groups: list[GroupError], *, numbers: bool) -> list[Figure]:
    """Errors by group, for the columns between whose groups they differ most."""
    by: dict[str, list[GroupError]] = {}
    for group in groups:
        by.setdefault(group.by, []).append(group)
    several = {name: found for name, found in by.items() if len(found) > 1}
    chosen = sorted(several, key=lambda name: -_error_spread(several[name]))[:MAX_GROUP_COLUMNS]
    return [_group_figure(name, several[name], numbers) for name in chosen]


def _error_spread(groups: list[GroupError]) -> float:
    errors = [group.error for group in groups]
    return (max(errors) - min(errors)) / (max(errors) or 1.0)


def _group_figure(name: str, groups: list[GroupError], numbers: bool) -> Figure:
    rows = [
        ChartRow(f"{group.group} ({format_count(group.records)})", group.error, _error_text(group)) for group in groups
    ]
    axis = "root mean squared error" if numbers else "share of wrong predictions"
    worst = max(groups, key=lambda group: group.error)
    caption = f"The error is largest where {name} is {worst.group}. In brackets: test records." + (
        " Bias is the mean of predicted less true." if numbers else ""
    )
    return bar_rows_figure(rows, ChartLabels(f"Errors by {name}", caption, axis, (name, "error")))


def _error_text(group: GroupError) -> str:
    if group.bias is None:
        return format_percent(group.error)
    return f"{format_number(group.error)}, bias {'+' if group.bias > 0 else ''}{format_number(group.bias)}"


# For two classes: what a threshold on the chance of the rarer one finds, and how much of that is right


THRESHOLDS, MIDDLE_THRESHOLD = range(1, 100), 50  # per cent
N_CLASSES_BINARY = 2


def threshold_figure(test: pl.DataFrame) -> Figure | None:
    """Three shares over the threshold; none where there are not two classes with enough test records of each."""
    test = test.filter(pl.col(CONFIDENCE_COLUMN).is_finite())
    counts = Counter(test[TRUTH_COLUMN].to_list())
    if (
        len(counts) != N_CLASSES_BINARY
        or min(counts.values()) < MIN_RECORDS_SHOWN
        or not set(test[PREDICTED_COLUMN]) <= set(counts)
    ):
        return None
    rarer, sure = min(counts, key=lambda name: (counts[name], name)), test[CONFIDENCE_COLUMN].to_numpy()
    chance = np.where((test[PREDICTED_COLUMN] == rarer).to_numpy(), sure, 1.0 - sure)
    shares = _threshold_shares(chance, (test[TRUTH_COLUMN] == rarer).to_numpy())
    best = max(THRESHOLDS, key=lambda percents: (_f1(*shares[percents - 1][:2]), -abs(percents - MIDDLE_THRESHOLD)))
    found, right, called = shares[best - 1]
    caption = (
        f"Whoever calls a record '{rarer}' when its chance is at least {best} % calls {format_percent(called)} of the test "
        f"records so, finds {format_percent(found)} of all that are, and is right in {format_percent(right)}: the best balance of "
        "both (F1). What a miss and a false alarm cost decides where yours should be."
    )
    lines = dict(zip(("found", "right", "called"), map(list, zip(*shares, strict=True)), strict=True))
    axes = AxisLabels(f"threshold on the chance of '{rarer}', %", "share", (best, f"{best} %"))
    return lines_figure(lines, axes, title="Where to draw the line", caption=caption)


def _threshold_shares(chance: Floats, true: NDArray[np.bool_]) -> list[tuple[float, float, float]]:
    """Found, right and called at every threshold; right is no number where too few are called."""
    shares = []
    for threshold in THRESHOLDS:
        called = chance >= threshold / 100
        right = float(true[called].mean()) if called.sum() >= MIN_RECORDS_SHOWN else math.nan
        shares.append((float(called[true].mean()), right, float(called.mean())))
    return shares


def _f1(found: float, right: float) -> float:
    """The harmonic mean of both (F1)."""
    return 2 * found * right / (found + right) if found * right > 0 else 0.0


# Whether a classifier is as sure as it is right, in words


MAX_CALIBRATION_GAP = 0.1  # of a gap between what a model says and how often it is right
GAP_DEVIATIONS = 2.0  # beyond which a gap is no chance


def calibration_warnings(test: pl.DataFrame, log_loss: float | None) -> Iterator[str]:
    """Warnings; none where its probabilities are of use. ``log_loss`` is that of these test records."""
    test = test.filter(pl.col(CONFIDENCE_COLUMN).is_finite())
    if not len(test):
        return
    says, right = (
        float(test[CONFIDENCE_COLUMN].to_numpy().mean()),
        float((test[TRUTH_COLUMN] == test[PREDICTED_COLUMN]).to_numpy().mean()),
    )
    chance = GAP_DEVIATIONS * math.sqrt(right * (1.0 - right) / len(test))
    if says - right > max(MAX_CALIBRATION_GAP, chance):
        yield (
            f"The model is too sure of itself: on average it says {format_percent(says)}, and is right in {format_percent(right)} of "
            "the test records. Do not take its probabilities for chances; fewer epochs may help."
        )
    blind = class_prior_log_loss(test[TRUTH_COLUMN])
    if log_loss is not None and log_loss > blind:
        yield (
            f"Its log loss, {format_number(log_loss)}, is worse than the {format_number(blind)} of one who always names the shares "
            "of the classes: its probabilities say less than nothing, whatever its classes say."
        )


def class_prior_log_loss(truth: pl.Series) -> float:
    """The log loss of naming for every record how common each class is among them.

    >>> round(class_prior_log_loss(pl.Series(["a", "b"] * 50)), 3)
    0.693
    """
    shares = truth.value_counts()["count"].to_numpy() / len(truth)
    return float(-(shares * np.log(shares)).sum())
