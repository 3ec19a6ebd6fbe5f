"""Charts of many records: histograms, outlines and grid maps; bins and cells with fewer than MIN_RECORDS_SHOWN records are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from fedsim.report.charts import LINE_CLASSES, LINE_PLOT_TOP, line_legend
from fedsim.report.formatting import format_count, format_number, format_percent, pluralise
from fedsim.report.page import Figure
from fedsim.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    LinearScale,
    bottom_axis,
    element,
    hover_columns,
    join_markup,
    left_axis,
    nice_range,
    shade_legend,
    svg_image,
    svg_path,
    tick_label,
    tick_step,
    tick_values,
    tooltip,
    x_scale,
    y_scale,
)
from fedsim.types import Floats, Integers

# Where on the map the partners are near and where they are far, as a grid
#
# A cell with fewer than ``FEWEST`` records is left out: a page is passed on, and one record's place must not be.


MAX_MAP_CELLS = 44  # along a side
MIN_RECORDS_SHOWN = 3
MAP_SHADES = 5
MAX_MAP_HEIGHT = 300.0


@dataclass(frozen=True, eq=False)
class MapGrid:
    """Cells that are drawn: column and row, how many records, and the median distance there."""

    column: Integers
    row: Integers
    records: Integers
    distance: Floats
    columns: int
    rows: int


def grid_map_figure(
    positions: Floats, distance: Floats, *, title: str, caption: str, shaded: str = "median distance"
) -> Figure | None:
    """``positions`` holds latitude and longitude (or up and right); ``None`` where no cell may be drawn.

    ``shaded`` says what ``distance`` is, where it is anything else.
    """
    grid = grid_positions(positions, distance)
    if not len(grid.records):
        return None
    classes = np.searchsorted(_shade_bounds(grid.distance), grid.distance, side="right")
    side = min((RIGHT - 14) / grid.columns, MAX_MAP_HEIGHT / grid.rows)
    left = (WIDTH - side * grid.columns) / 2
    cells = [
        element(
            "rect",
            tooltip(f"{format_count(int(records))} records, median {format_number(float(middle))}"),
            class_=f"cell shade{shade}",
            x=round(left + side * column, 2),
            y=round(6 + side * (grid.rows - 1 - row), 2),
            width=round(side + 0.2, 2),
            height=round(side + 0.2, 2),
        )
        for column, row, records, middle, shade in zip(
            grid.column, grid.row, grid.records, grid.distance, classes, strict=True
        )
    ]
    bottom = 6 + side * grid.rows
    rows = _shade_table(grid, classes)
    described = f"{format_count(len(grid.records))} cells hold {format_count(int(grid.records.sum()))} records."
    scale = shade_legend([words.split(" to ")[0] for words, *_ in rows], bottom + 14)
    picture = svg_image(title, described, join_markup([*cells, scale]), bottom + 44)
    left_out = len(positions) - int(grid.records.sum())
    note = f" Left out: {pluralise(left_out, 'record')} in cells of fewer than {MIN_RECORDS_SHOWN}." if left_out else ""
    return Figure(title, caption + note, picture, (shaded, "cells", "records"), rows)


def grid_positions(positions: Floats, distance: Floats) -> MapGrid:
    """Records collected into square cells; east-west is shortened as on the globe where degrees allow it."""
    up, right = positions[:, 0], positions[:, 1] * _longitude_factor(positions)
    side = _cells_per_side(len(positions))
    size = max(float(np.ptp(up)), float(np.ptp(right)), 1e-9) / side
    row = ((up - up.min()) / size).astype(np.int64).clip(0, side - 1)
    column = ((right - right.min()) / size).astype(np.int64).clip(0, side - 1)
    cell, member, records = np.unique(row * side + column, return_inverse=True, return_counts=True)
    order = np.lexsort((distance, member))
    # Within a cell the distances are sorted, so the middle one is the (lower) median.
    middle = np.cumsum(records) - records + (records - 1) // 2
    width, height = int(column.max()) + 1, int(row.max()) + 1
    kept = records >= MIN_RECORDS_SHOWN
    return MapGrid(
        (cell % side)[kept], (cell // side)[kept], records[kept], distance[order][middle][kept], width, height
    )


def _cells_per_side(records: int) -> int:
    """Cells along a side: few where records are few, so that most cells hold enough of them."""
    return int(np.clip(math.sqrt(records / (2 * MIN_RECORDS_SHOWN)), 2, MAX_MAP_CELLS))


def _longitude_factor(positions: Floats) -> float:
    degrees = bool(np.abs(positions[:, 0]).max() <= 90 and np.abs(positions[:, 1]).max() <= 180)
    return math.cos(math.radians(float(positions[:, 0].mean()))) if degrees else 1.0


def _shade_bounds(distance: Floats) -> Floats:
    return np.quantile(distance, np.arange(1, MAP_SHADES) / MAP_SHADES)


def _shade_table(grid: MapGrid, classes: Integers) -> tuple[tuple[str, ...], ...]:
    bounds = [float(grid.distance.min()), *_shade_bounds(grid.distance), float(grid.distance.max())]
    return tuple(
        (
            f"{format_number(bounds[shade])} to {format_number(bounds[shade + 1])}",
            format_count(int((classes == shade).sum())),
            format_count(int(grid.records[classes == shade].sum())),
        )
        for shade in range(MAP_SHADES)
    )


# How many records or candidates fall where: histograms and bars
#
# A bin of fewer than ``FEWEST`` records is left out: a page is passed on, and one record's value must not be.


MAX_BINS = 40
MAX_INTEGER = 2.0**51  # beyond it halves are no longer numbers
FINE_BINS_FROM = 500
TAIL_RATIO = 1.5
HEADROOM = 1.12
MAX_HIDDEN_SHARE = 0.2  # of the records, that lie in bins too small to be shown
AXIS_LETTER_WIDTH, AXIS_LABEL_GAP = 7.1, 6  # of a label on an axis


def histogram_figure(values: Floats, *, title: str, caption: str, axis: str) -> Figure:
    """Records per bin, with the median marked; small bins and a far tail are left out and counted in the caption."""
    finite = values[np.isfinite(values)]
    counts, edges = _histogram(finite)
    most, about = _count_axis(HEADROOM * counts.max())
    x, y = x_scale(edges[0], edges[-1]), y_scale(0.0, most)
    bins = [(low, high, int(n)) for low, high, n in zip(edges[:-1], edges[1:], counts, strict=True)]
    bars = [
        _bar(
            x(low) + 0.5,
            x(high) - 0.5,
            y(n),
            f"{format_number(low)} to {format_number(high)}: {pluralise(n, 'record')}",
        )
        for low, high, n in bins
    ]
    shown, step = tick_values(edges[0], edges[-1]), tick_step(edges[0], edges[-1])
    parts = [left_axis(y, "records", about), *bars]
    said = "There are too few records to be shown."
    if len(finite) >= MIN_RECORDS_SHOWN:
        median = float(np.median(finite))
        said = f"Half of the records lie below {format_number(median)}."
        parts += (
            [_median_marker(x(median), f"median {format_number(median)}")] if edges[0] <= median <= edges[-1] else []
        )
    parts.append(bottom_axis(x, shown, [tick_label(value, step) for value in shown], axis))
    left = len(values) - int(counts.sum())
    tail = (
        f" Not drawn: {pluralise(left, 'record')} far off or in bins of fewer than {MIN_RECORDS_SHOWN}." if left else ""
    )
    return Figure(
        title,
        caption + tail,
        svg_image(title, said + tail, join_markup(parts)),
        ("from", "to", "records"),
        tuple((format_number(low), format_number(high), format_count(n)) for low, high, n in bins if n),
    )


def _histogram(values: Floats) -> tuple[Integers, Floats]:
    """Records per bin, small bins emptied and cut off at both ends; bins widen until few records are left out."""
    if len(values) < MIN_RECORDS_SHOWN:
        return np.zeros(1, dtype=np.int64), np.array([0.0, 1.0])
    edges = bin_edges(values)
    while True:
        counts = np.histogram(values, edges)[0]
        kept = np.where(counts >= MIN_RECORDS_SHOWN, counts, 0)
        if len(kept) == 1 or kept.sum() >= (1.0 - MAX_HIDDEN_SHARE) * len(values):
            break
        even = edges if len(kept) % 2 == 0 else np.append(edges, 2 * edges[-1] - edges[-2])
        edges = even[::2]
    full = np.flatnonzero(kept)
    first, last = (int(full[0]), int(full[-1]) + 1) if len(full) else (0, 1)
    return kept[first:last], edges[first : last + 1]


def bin_edges(values: Floats) -> Floats:
    """Round edges around the values; a far tail is left out, whole numbers get a bin each.

    >>> bin_edges(np.array([2.0, 3.0, 3.0, 4.0])).tolist()
    [1.5, 2.5, 3.5, 4.5]
    """
    low, high = float(values.min()), float(values.max())
    usual = float(np.quantile(values, 0.99))
    high = usual if usual > low and high - low > TAIL_RATIO * (usual - low) else high
    if high - low <= MAX_BINS and high < MAX_INTEGER and (values == values.round()).all():
        return np.arange(np.floor(low), np.ceil(high) + 2, dtype=np.float64) - 0.5
    low, high = nice_range(low, high)
    step = tick_step(low, high) / (10 if len(values) >= FINE_BINS_FROM else 5)
    return low + step * np.arange(np.ceil((high - low) / step - 1e-9) + 1, dtype=np.float64)


def reuse_figure(used: Integers, *, title: str, caption: str) -> Figure:
    """Candidates by how many records chose them; the steps double, so that few busy ones stay visible."""
    bounds = doubling_ranges(int(used.max()))
    names = [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in bounds]
    counts = [int(((used >= low) & (used <= high)).sum()) for low, high in bounds]
    most, about = _count_axis(max(counts))
    x, y = x_scale(-0.5, len(bounds) - 0.5), y_scale(0.0, most)
    bars = [
        _bar(x(place - 0.42), x(place + 0.42), y(number), f"{name} records: {pluralise(number, 'candidate')}")
        for place, (name, number) in enumerate(zip(names, counts, strict=True))
    ]
    shown = _labels_that_fit(names, x)
    labels = bottom_axis(x, shown, [names[place] for place in shown], "records that list the candidate")
    described = f"{format_count(counts[0])} of {format_count(len(used))} candidates are used by no record."
    return Figure(
        title,
        caption,
        svg_image(title, described, join_markup([left_axis(y, "candidates", about), *bars, labels])),
        ("records", "candidates", "share"),
        tuple(
            (name, format_count(number), format_percent(number / len(used)))
            for name, number in zip(names, counts, strict=True)
        ),
    )


def _labels_that_fit(names: Sequence[str], x: LinearScale) -> list[int]:
    """Every place, or every second or third one: as many as leave their labels apart."""
    for step in range(1, len(names)):
        shown = list(range(0, len(names), step))
        needed = [AXIS_LETTER_WIDTH * (len(names[a]) + len(names[b])) / 2 + AXIS_LABEL_GAP for a, b in pairwise(shown)]
        if all(x(b) - x(a) >= room for (a, b), room in zip(pairwise(shown), needed, strict=True)):
            return shown
    return [0]


def doubling_ranges(most: int) -> list[tuple[int, int]]:
    """0, 1, then ranges twice as wide each time, until the largest is inside.

    >>> doubling_ranges(9)
    [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15)]
    """
    bounds = [(0, 0)]
    while bounds[-1][1] < most:
        start = bounds[-1][1] + 1
        bounds.append((start, 2 * start - 1))
    return bounds


def comparison_figure(values: Mapping[str, float], *, title: str, caption: str, axis: str) -> Figure:
    """One lying bar per name, from zero."""
    low, high = nice_range(min(0.0, *values.values()), max(0.0, *values.values()), about=4)
    x = LinearScale(low, high, LEFT + 16, RIGHT - 34)
    step, bottom = 46, TOP + 46 * len(values)
    parts = [svg_path([(x(value), TOP), (x(value), bottom)], class_="grid") for value in tick_values(low, high, 4)]
    for place, (name, value) in enumerate(values.items()):
        parts.append(_horizontal_bar(name, value, x, TOP + step * place + step / 2))
    parts.append(svg_path([(x(0), TOP), (x(0), bottom)], class_="axis"))
    parts.append(_horizontal_axis(x, tick_values(low, high, 4), bottom, axis))
    described = ", ".join(f"{name} {format_number(value)}" for name, value in values.items())
    rows = tuple((name, format_number(value)) for name, value in values.items())
    return Figure(
        title, caption, svg_image(title, described, join_markup(parts), bottom + 48), ("compared with", axis), rows
    )


def _count_axis(most: float) -> tuple[float, int]:
    """The upper end of an axis of counts and how many ticks it takes without splitting a whole."""
    about = max(1, min(5, int(most)))
    return nice_range(0.0, max(1.0, most), about)[1], about


def _horizontal_bar(name: str, value: float, x: LinearScale, middle: float) -> Markup:
    left, right = sorted((x(0), x(value)))
    bar = element(
        "rect",
        tooltip(f"{name}: {format_number(value)}"),
        class_="bar",
        x=left,
        y=middle - 11,
        width=round(max(1.0, right - left), 2),
        height=22,
        rx=2,
    )
    label = element("text", name, class_="name", x=x.start - 8, y=middle + 4, text_anchor="end")
    figure = element("text", format_number(value), class_="figure", x=right + 6, y=middle + 4)
    return join_markup([bar, label, figure])


def _horizontal_axis(x: LinearScale, values: Sequence[float], bottom: float, title: str) -> Markup:
    step = tick_step(x.low, x.high, 4)
    texts = [
        element("text", tick_label(value, step), class_="tick", x=x(value), y=bottom + 17, text_anchor="middle")
        for value in values
    ]
    name = element("text", title, class_="axis-title", x=(x.start + x.end) / 2, y=bottom + 38, text_anchor="middle")
    return join_markup([*texts, name])


def _bar(left: float, right: float, top: float, words: str) -> Markup:
    width, height = round(max(0.5, right - left), 2), round(BOTTOM - top, 2)
    return element("rect", tooltip(words), class_="bar", x=left, y=top, width=width, height=height)


def _median_marker(place: float, words: str) -> Markup:
    right = place > (LEFT + RIGHT) / 2
    line = svg_path([(place, TOP), (place, BOTTOM)], class_="marker")
    anchor, shift = ("end", -6) if right else ("start", 6)
    return line + element("text", words, class_="figure", x=place + shift, y=TOP + 11, text_anchor=anchor)


# How several quantities of the same records are distributed: an outline each over common bins
#
# A bin of fewer than ``FEWEST`` records is drawn empty: a page is passed on, and nobody may find a record in it again.


def outlines_figure(quantities: Mapping[str, Floats], *, title: str, caption: str, axis: str) -> Figure:
    """At most three quantities, one value per record each."""
    edges = bin_edges(np.concatenate(list(quantities.values())))
    counts = {name: _outline_counts(values, edges) for name, values in quantities.items()}
    most = max(1.0, *(float(counted.max()) for counted in counts.values()))
    x, y = x_scale(edges[0], edges[-1]), y_scale(*nice_range(0.0, most), top=LINE_PLOT_TOP)
    shown, step = tick_values(x.low, x.high), tick_step(x.low, x.high)
    outlines = [
        svg_path(_outline(edges, counted, x, y), class_=f"line {kind}")
        for counted, kind in zip(counts.values(), LINE_CLASSES, strict=False)
    ]
    columns = hover_columns(
        LinearScale(0.5, len(edges) - 0.5, LEFT, RIGHT), _outline_tooltips(edges, counts), LINE_PLOT_TOP
    )
    labels = bottom_axis(x, shown, [tick_label(value, step) for value in shown], axis)
    parts = [left_axis(y, "records"), *outlines, labels, columns, line_legend(counts)]
    medians = {name: float(np.median(values)) for name, values in quantities.items()}
    said = "; ".join(
        f"{name}: half of the records lie below {format_number(middle)}" for name, middle in medians.items()
    )
    rows = tuple(
        (name, *(format_number(float(part)) for part in np.quantile(values, [0.05, 0.5, 0.95])))
        for name, values in quantities.items()
    )
    return Figure(title, caption, svg_image(title, f"{said}.", join_markup(parts)), ("", "5 %", "median", "95 %"), rows)


def _outline_counts(values: Floats, edges: Floats) -> Integers:
    counts = np.histogram(values, edges)[0]
    return np.where(counts >= MIN_RECORDS_SHOWN, counts, 0)


def _outline(edges: Floats, counts: Integers, x: LinearScale, y: LinearScale) -> list[tuple[float, float]]:
    """Up, along and down every bin, from the ground to the ground, between the first bin and the last that hold any."""
    full = np.flatnonzero(counts)
    first, last = (int(full[0]), int(full[-1]) + 1) if len(full) else (0, 1)
    along = np.repeat(edges[first : last + 1], 2)
    up = np.concatenate([[0], np.repeat(counts[first:last], 2), [0]])
    return [(x(place), y(value)) for place, value in zip(along, up, strict=True)]


def _outline_tooltips(edges: Floats, counts: Mapping[str, Integers]) -> Sequence[str]:
    return [
        f"{format_number(low)} to {format_number(high)}: "
        + ", ".join(f"{name} {format_count(int(counted[place]))}" for name, counted in counts.items())
        for place, (low, high) in enumerate(pairwise(edges))
    ]
