"""Charts that are not tied to one page: rows of bars or dots, attacks, lines and bands, histograms, and grid maps.

Charts of many records leave out every bin or cell with fewer than MIN_RECORDS_SHOWN of them: pages are passed on, and a
single record must not be recognisable.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from fedsim.config.stored_audit import BROKEN_VERDICT, Adversary
from fedsim.report import svg
from fedsim.report.formatting import format_number, format_percent, pluralise
from fedsim.report.page import Figure
from fedsim.types import Floats, Integers

MIN_RECORDS_SHOWN = 3
RANK_AXIS = "rank of the partner record (1 = most similar)"

# Rows: a name and a value above a bar from zero, or above a dot with its interval.

ROW_HEIGHT, ROW_LEFT, NAME_INSET, NAME_GAP = 40, 16, 5, 8
MARKS_TOP = 18  # below the name of a row
ROW_TICKS = 5
LETTER_WIDTH, STRONG_LETTER_WIDTH, VALUE_LETTER_WIDTH = 6.8, 7.5, 8.0  # approximate widths on a phone


@dataclass(frozen=True)
class ChartRow:
    """A named value; ``text`` and ``tooltip`` replace the defaults made from the number.

    A dot may have an ``interval``, single ``points``, a ``baseline`` (short line) and a ``limit`` (dashed line). A row
    with an ``origin`` is a bar from there to the value, as in a waterfall.
    """

    name: str
    value: float
    text: str = ""
    interval: tuple[float, float] | None = None
    points: tuple[float, ...] = ()
    baseline: float | None = None
    limit: float | None = None
    origin: float | None = None
    strong: bool = False
    bad: bool = False
    tooltip: str = ""

    @property
    def label(self) -> str:
        return self.text or format_number(self.value)

    @property
    def extent(self) -> list[float]:
        marks = [mark for mark in (self.baseline, self.limit, self.origin) if mark is not None]
        return [self.value, *(self.interval or ()), *self.points, *marks]


@dataclass(frozen=True)
class ChartLabels:
    """The texts of a chart of rows: title, caption, axis title and table header."""

    title: str
    caption: str
    axis: str
    head: tuple[str, str]


def rows_figure(
    rows: Sequence[ChartRow], labels: ChartLabels, *, bars: bool = False, include: Sequence[float] = ()
) -> Figure:
    """Draw one bar or dot per row; the axis covers zero (bars) and all values of ``include``."""
    values = [*include, *(value for row in rows for value in row.extent), *([0.0] if bars else [])]
    x = svg.LinearScale(*svg.nice_range(min(values), max(values), ROW_TICKS), ROW_LEFT, svg.RIGHT)
    bottom = svg.TOP + ROW_HEIGHT * len(rows) + 4
    ticks = svg.tick_labels(x.low, x.high, ROW_TICKS)
    zero = {0.0: "axis"} if x.low <= 0.0 <= x.high else {}
    # Lines stay below the names, which they would cross.
    bands = [
        (svg.TOP + ROW_HEIGHT * number + MARKS_TOP, svg.TOP + ROW_HEIGHT * (number + 1)) for number in range(len(rows))
    ]
    parts = [
        svg.path([(x(value), top), (x(value), end)], class_=kind)
        for value, kind in (dict.fromkeys(ticks, "grid") | zero).items()
        for top, end in bands
    ]
    for number, row in enumerate(rows):
        parts += _row_marks(row, x, svg.TOP + ROW_HEIGHT * number, bar=bars)
    for value, label in ticks.items():
        # Labels at the ends stay inside the drawing.
        outer = "start" if x(value) <= x.start + 1 else "end"
        anchor = "middle" if x.start + 1 < x(value) < x.end - 1 else outer
        parts.append(svg.text(label, x(value), bottom + 15, anchor=anchor))
    parts.append(svg.text(labels.axis, (ROW_LEFT + svg.RIGHT) / 2, bottom + 34, "axis-title", "middle"))
    description = "; ".join(f"{row.name} {row.label}" for row in rows)
    height = bottom + 44
    if any(row.origin is not None for row in rows):
        parts.append(legend([("bar", "raises it"), ("bar falling", "lowers it")], height))
        height += 20
    picture = svg.image(labels.title, description, parts, height)
    return Figure(labels.title, labels.caption, picture, labels.head, tuple((row.name, row.label) for row in rows))


def name_room(label: str, *, strong: bool = False) -> int:
    """Return how many letters of a name fit beside the label of a row."""
    left = svg.RIGHT - ROW_LEFT - NAME_INSET - NAME_GAP - VALUE_LETTER_WIDTH * len(label)
    return max(8, int(left / (STRONG_LETTER_WIDTH if strong else LETTER_WIDTH)))


def _row_marks(row: ChartRow, x: svg.LinearScale, top: float, *, bar: bool) -> Iterator[Markup]:
    room = name_room(row.label, strong=row.strong)
    name = row.name if len(row.name) <= room else f"{row.name[: room - 1]}…"
    yield svg.text(name, ROW_LEFT + NAME_INSET, top + 14, "name strong" if row.strong else "name")
    yield svg.text(row.label, svg.RIGHT, top + 14, "figure", "end")
    words, class_ = (
        row.tooltip or f"{row.name}: {row.label}",
        "bar strong" if row.strong else "bar bad" if row.bad else "bar",
    )
    if bar or row.origin is not None:
        left, right = sorted((x(row.origin or 0.0), x(row.value)))
        class_ += " falling" if row.origin is not None and row.value < row.origin else ""
        yield svg.bar(left, max(left + 1.0, right), top + 20, top + 32, words, class_)
        return
    middle = top + 26
    yield svg.path([(x.start, middle), (x.end, middle)], class_="grid")
    if row.interval:
        low, high = (x(value) for value in row.interval)
        yield svg.path([(low, middle), (max(high, low + 0.5), middle)], class_="line")
        yield from (svg.path([(end, middle - 4), (end, middle + 4)], class_="line") for end in (low, high))
    for mark, reach, mark_class in ((row.baseline, 7, "baseline"), (row.limit, 9, "marker")):
        if mark is not None:
            yield svg.path([(x(mark), middle - reach), (x(mark), middle + reach)], class_=mark_class)
    yield from (svg.dot(x(value), middle, 2.6, format_number(value), "point") for value in row.points)
    yield svg.dot(x(row.value), middle, 5, words, class_)


# Attacks of a stored audit, for its own page and for the report of a run.

ADVERSARY_KNOWLEDGE = {
    Adversary.PRIMARY: "It knows its links, all that it received and, in a job with a coordinator, the linkage key.",
    Adversary.SECONDARY: "It knows the gradients sent to it and its own network.",
    Adversary.COORDINATOR: "It knows the filters of all parties, but no key.",
}
MARKS_NOTE = "The short line marks blind guessing, the dashed line the upper bound that the job guarantees."


def attack_figures(findings: Sequence[Mapping[str, Any]], limit: float) -> list[Figure]:
    """Draw the success of all attacks, one figure per adversary, from the findings of an audit in JSON.

    Attacks that gain more than the limit and certainly more than guessing, or break a guarantee, are red.
    """
    figures = []
    for adversary in Adversary:
        found = [finding for finding in findings if finding["adversary"] == adversary.value]
        if not found:
            continue
        several = len({finding["about"] for finding in findings}) > 1
        rows, cells = [], []
        for one in found:
            name = f"{one['attack']}, {one['about']}" if several else one["attack"]
            numbers = [one["score"]["value"], one["score"]["low"], one["score"]["high"], one["blind"]]
            value, low, high, guess = map(format_number, numbers)
            words, promised = f"{name}: {value} ({low} to {high}), guessing {guess}", one["promised_at_most"]
            is_guess = one["score"]["low"] <= one["blind"] <= one["score"]["high"]
            bad = one["verdict"] == BROKEN_VERDICT or (one["leak"] > limit and not is_guess)
            middle, left, right, blind = (min(1.0, max(0.0, number)) for number in numbers)
            rows.append(ChartRow(name, middle, value, (left, right), (), blind, promised, bad=bad, tooltip=words))
            cells.append((name, value, f"{low} to {high}", guess))
        caption = f"{ADVERSARY_KNOWLEDGE[adversary]} {MARKS_NOTE}"
        labels = ChartLabels(f"Attacks by the {adversary.value}", caption, "success", ("", ""))
        head = ("attack", "success", "95 % interval", "guessing")
        figures.append(replace(rows_figure(rows, labels, include=(0.0, 1.0)), head=head, rows=tuple(cells)))
    return figures


# Lines over common steps (epochs, ranks, thresholds, or named places), with bands behind them.

LINE_CLASSES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")  # colours and dashes differ
BAND_CLASSES = ("band inner", "band outer")
BAND_QUANTILES = ("5 %", "25 %", "median", "75 %", "95 %")
LEGEND_STEP, LEGEND_COLUMNS = 112, 3
PLOT_TOP = 34  # below one row of the legend


@dataclass(frozen=True)
class LineSeries:
    """Values at the steps 1, 2, ...; a value that is not finite leaves a gap.

    ``deviation`` draws error bars, ``reference`` rings of values to compare with.
    """

    name: str
    values: Sequence[float]
    deviation: Sequence[float] = ()
    reference: Sequence[float] = ()


@dataclass(frozen=True)
class AxisLabels:
    """Titles of both axes; ``marker`` labels one step; ``names`` replaces the numbers of the steps."""

    x: str
    y: str
    marker: tuple[int, str] | None = None
    names: Sequence[str] = ()


def lines_figure(
    lines: Sequence[LineSeries],
    axes: AxisLabels,
    *,
    title: str,
    caption: str,
    bands: Mapping[str, tuple[Floats, Floats]] | None = None,
) -> Figure:
    """Draw lines of equal length; ``bands`` are at most two pairs of a lower and an upper edge, the inner one first."""
    bands, steps = bands or {}, len(lines[0].values)
    top = PLOT_TOP + 15 * ((len(lines) + len(bands) - 1) // LEGEND_COLUMNS)
    values = [value for line in lines for value in (*line.values, *line.reference)]
    values += [value for edges in bands.values() for edge in edges for value in edge]
    finite = [float(value) for value in values if math.isfinite(value)] or [0.0]
    margin = 0.3 if axes.names else 0.0
    x = svg.x_scale(1 - margin, steps + margin) if steps > 1 else svg.x_scale(0.5, 1.5)
    y = svg.y_scale(*svg.nice_range(min(finite), max(finite)), top=top)
    labels: dict[float, str] = dict(enumerate(axes.names, start=1)) or {step: f"{step:,}" for step in rank_ticks(steps)}
    parts = [svg.left_axis(y, axes.y)]
    # A band over a single step is drawn a little to its left and right.
    places = np.arange(1.0, steps + 1) if steps > 1 else np.array([0.7, 1.3])
    for edges, class_ in reversed(list(zip(bands.values(), BAND_CLASSES, strict=False))):  # the outer band first
        low, high = ([(x(a), y(b)) for a, b in np.broadcast(places, edge)] for edge in edges)
        parts.append(svg.path([*high, *reversed(low)], closed=True, class_=class_))
    parts += [part for line, class_ in zip(lines, LINE_CLASSES, strict=False) for part in _line(line, class_, x, y)]
    if axes.marker:
        parts.append(svg.vertical_marker(x(axes.marker[0]), axes.marker[1], top))
    entries = [(f"line {kind}", line.name) for line, kind in zip(lines, LINE_CLASSES, strict=False)]
    entries += zip(BAND_CLASSES, bands, strict=False)
    words = []
    for step in range(steps):
        texts = [f"{line.name} {format_number(line.values[step])}" for line in lines]
        texts += [f"{name} {format_number(a[step])} to {format_number(b[step])}" for name, (a, b) in bands.items()]
        words.append(f"{axes.names[step] if axes.names else step + 1}: {', '.join(texts)}")
    parts += [svg.bottom_axis(x, axes.x, labels), svg.hover_columns(x, words, top), legend(entries)]
    ends = [(line.name, *map(format_number, (line.values[0], line.values[-1]))) for line in lines]
    description = "; ".join(f"{name} goes from {first} to {last}" for name, first, last in ends)
    rows = tuple((label, *(format_number(line.values[int(at) - 1]) for line in lines)) for at, label in labels.items())
    head = (axes.x, *(line.name for line in lines))
    return Figure(title, caption, svg.image(title, f"{description}.", parts), head, rows)


def band_figure(quantiles: Floats, *, title: str, caption: str, axis: str) -> Figure:
    """Draw a quantity by rank; ``quantiles`` has one row per rank and the columns of BAND_QUANTILES."""
    low, quarter, median, upper_quarter, high = quantiles.T
    bands = {"middle half": (quarter, upper_quarter), "middle 90 %": (low, high)}
    axes = AxisLabels(RANK_AXIS, axis)
    figure = lines_figure([LineSeries("median", median.tolist())], axes, title=title, caption=caption, bands=bands)
    rows = [(f"{rank:,}", *map(format_number, quantiles[rank - 1])) for rank in rank_ticks(len(quantiles))]
    return replace(figure, head=("rank", *BAND_QUANTILES), rows=tuple(rows))


def rank_ticks(ranks: int) -> list[int]:
    """Return 1, the round ranks, and the last one where it does not crowd its neighbour.

    >>> rank_ticks(50), rank_ticks(7), rank_ticks(23)
    ([1, 10, 20, 30, 40, 50], [1, 2, 3, 4, 5, 6, 7], [1, 5, 10, 15, 20, 23])
    """
    step = max(1, math.ceil(svg.tick_step(0, ranks, about=7))) if ranks > 1 else 1
    shown = [1, *(rank for rank in range(step, ranks + 1, step) if rank > 1)]
    return [*shown, ranks] if ranks - shown[-1] > 0.5 * step else shown


def legend(entries: Sequence[tuple[str, str]], start: float = 8) -> Markup:
    """Return a legend, by default above a plot, from classes and names."""
    parts = []
    for number, (class_, name) in enumerate(entries):
        left, top = svg.LEFT + LEGEND_STEP * (number % LEGEND_COLUMNS), start + 15 * (number // LEGEND_COLUMNS)
        if class_.startswith("line"):
            parts.append(svg.path([(left, top + 5), (left + 18, top + 5)], class_=class_))
        else:
            parts.append(svg.element("rect", class_=f"swatch {class_}", x=left, y=top, width=18, height=10, rx=2))
        parts.append(svg.text(name, left + 24, top + 9))
    return svg.join(parts)


def _line(line: LineSeries, class_: str, x: svg.LinearScale, y: svg.LinearScale) -> Iterator[Markup]:
    for finite, steps in groupby(enumerate(line.values, start=1), key=lambda step: math.isfinite(step[1])):
        points = [(x(step), y(value)) for step, value in steps] if finite else []
        if len(points) == 1:
            yield svg.dot(*points[0], 4, class_=f"dot {class_}")
        elif points:
            yield svg.path(points, class_=f"line {class_}")
    for step, (value, deviation) in enumerate(zip(line.values, line.deviation, strict=False), start=1):
        if math.isfinite(value):
            ends = (max(y.low, value - deviation), min(y.high, value + deviation))
            yield svg.path([(x(step), y(end)) for end in ends], class_=f"line thin {class_}")
            yield svg.dot(x(step), y(value), 3.5, f"{line.name}: {format_number(value)}", f"dot {class_}")
    for step, value in enumerate(line.reference, start=1):
        if math.isfinite(value):
            yield svg.dot(x(step), y(value), 6, f"{line.name}: {format_number(value)}", f"ring {class_}")


# Histograms: records per bin.

MAX_BINS = 40
MAX_INTEGER = 2.0**51  # above it, x - 0.5 is not exact
FINE_BINS_FROM = 500
TAIL_RATIO = 1.5
HEADROOM = 1.12
MAX_HIDDEN_SHARE = 0.2  # of the records may lie in bins that are too small to be shown


def hide_small(counts: Integers | Floats) -> Integers:
    """Replace counts below MIN_RECORDS_SHOWN by zero."""
    return np.where(counts >= MIN_RECORDS_SHOWN, counts, 0).astype(np.int64)


def hidden_note(records: int, bins: str = "bins", also: str = "far away or ") -> str:
    """Return a sentence about the records that are not drawn, with a leading space; empty where there are none."""
    if not records:
        return ""
    return f" Not drawn: {pluralise(records, 'record')} {also}in {bins} with fewer than {MIN_RECORDS_SHOWN} records."


def bin_edges(values: Floats) -> Floats:
    """Return round edges around the values; a far tail is cut off, whole numbers get one bin each.

    >>> bin_edges(np.array([2.0, 3.0, 3.0, 4.0])).tolist()
    [1.5, 2.5, 3.5, 4.5]
    """
    low, high = float(values.min()), float(values.max())
    usual = float(np.quantile(values, 0.99))
    high = usual if usual > low and high - low > TAIL_RATIO * (usual - low) else high
    if high - low <= MAX_BINS and high < MAX_INTEGER and (values == values.round()).all():
        return np.arange(np.floor(low), np.ceil(high) + 2, dtype=np.float64) - 0.5
    low, high = svg.nice_range(low, high)
    step = svg.tick_step(low, high) / (10 if len(values) >= FINE_BINS_FROM else 5)
    return low + step * np.arange(np.ceil((high - low) / step - 1e-9) + 1, dtype=np.float64)


def histogram_figure(values: Floats, *, title: str, caption: str, axis: str) -> Figure:
    """Draw the records per bin with the median; the caption counts the records that are left out."""
    finite = values[np.isfinite(values)]
    counts, edges = np.zeros(1, dtype=np.int64), np.array([0.0, 1.0])
    if len(finite) >= MIN_RECORDS_SHOWN:
        edges = bin_edges(finite)
        counts = hide_small(np.histogram(finite, edges)[0])
        while len(counts) > 1 and counts.sum() < (1.0 - MAX_HIDDEN_SHARE) * len(finite):  # too many hidden: wider bins
            edges = (edges if len(counts) % 2 == 0 else np.append(edges, 2 * edges[-1] - edges[-2]))[::2]
            counts = hide_small(np.histogram(finite, edges)[0])
        first, last = _filled_range(counts)
        counts, edges = counts[first:last], edges[first : last + 1]
    most, about = _count_axis(HEADROOM * counts.max())
    x, y = svg.x_scale(edges[0], edges[-1]), svg.y_scale(0.0, most)
    bins = [(low, high, int(n)) for (low, high), n in zip(pairwise(edges), counts, strict=True)]
    parts = [svg.left_axis(y, "records", about)]
    for low, high, n in bins:
        words = f"{format_number(low)} to {format_number(high)}: {pluralise(n, 'record')}"
        parts.append(svg.bar(x(low) + 0.5, x(high) - 0.5, y(n), svg.BOTTOM, words))
    description = "There are too few records to show."
    if len(finite) >= MIN_RECORDS_SHOWN:
        median = float(np.median(finite))
        description = f"The median is {format_number(median)}."
        if edges[0] <= median <= edges[-1]:
            parts.append(svg.vertical_marker(x(median), f"median {format_number(median)}"))
    parts.append(svg.bottom_axis(x, axis))
    note = hidden_note(len(values) - int(counts.sum()))
    rows = tuple((format_number(low), format_number(high), f"{n:,}") for low, high, n in bins if n)
    return Figure(title, caption + note, svg.image(title, description + note, parts), ("from", "to", "records"), rows)


def _filled_range(counts: Integers) -> tuple[int, int]:
    filled = np.flatnonzero(counts)
    return (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 1)


def _count_axis(most: float) -> tuple[float, int]:
    """Return the upper end of an axis of counts, and a number of ticks that are whole numbers."""
    about = max(1, min(5, int(most)))
    return svg.nice_range(0.0, max(1.0, most), about)[1], about


def reuse_figure(used: Integers, *, title: str, caption: str) -> Figure:
    """Draw the candidates by how many records list them, in ranges that double."""
    rows = []
    for low, high in doubling_ranges(int(used.max())):
        count = int(((used >= low) & (used <= high)).sum())
        name = "in no list" if not high else "in 1 list" if high == 1 else f"in {low:,} to {high:,} lists"
        rows.append(ChartRow(name, count, f"{count:,} ({format_percent(count / len(used))})"))
    labels = ChartLabels(title, caption, "candidates", ("candidates", "number and share"))
    return rows_figure(rows, labels, bars=True)


def doubling_ranges(most: int) -> list[tuple[int, int]]:
    """Return 0, 1, and ranges that double until they include ``most``.

    >>> doubling_ranges(9)
    [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15)]
    """
    bounds = [(0, 0)]
    while bounds[-1][1] < most:
        start = bounds[-1][1] + 1
        bounds.append((start, 2 * start - 1))
    return bounds
