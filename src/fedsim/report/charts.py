"""Charts of a few values: horizontal bars, dots with intervals, quantile bands and lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from markupsafe import Markup

from fedsim.report.formatting import format_number
from fedsim.report.page import Figure
from fedsim.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    LinearScale,
    bottom_axis,
    element,
    hover_columns,
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
from fedsim.types import Floats

# Names of any length, each with a value on a line of its own: lying bars from zero, or dots with their intervals


ROW_HEIGHT, ROW_LEFT, NAME_INSET = 40, 16, 5  # names stand a little off the line at the left
ROW_TICKS = 4
LETTER_WIDTH, STRONG_LETTER_WIDTH, VALUE_LETTER_WIDTH = 6.8, 7.5, 8.0  # about the widths, on a phone
NAME_GAP = 8.0
IntervalEnds = tuple[float, float]


@dataclass(frozen=True)
class ChartRow:
    """A value with its words; ``interval`` around it, single ``points`` behind it, ``strong`` where it stands out."""

    name: str
    value: float
    words: str = ""
    interval: IntervalEnds | None = None
    points: tuple[float, ...] = ()
    strong: bool = False

    @property
    def all_values(self) -> list[float]:
        """Everything that the axis must reach."""
        return [self.value, *(self.interval or ()), *self.points]

    @property
    def said(self) -> str:
        """The value in words."""
        return self.words or format_number(self.value)


@dataclass(frozen=True)
class ChartLabels:
    """What a figure of rows says: title, caption, the axis, and the heads of its table."""

    title: str
    caption: str
    axis: str
    head: tuple[str, str]


def bar_rows_figure(rows: Sequence[ChartRow], labels: ChartLabels) -> Figure:
    """One lying bar per row, from zero."""
    low, high = nice_range(min(0.0, *(row.value for row in rows)), max(0.0, *(row.value for row in rows)), ROW_TICKS)
    x = LinearScale(low, high, ROW_LEFT, RIGHT)
    return _rows_figure(rows, labels, x, [_row_bar(row, x, _row_top(place)) for place, row in enumerate(rows)])


def dot_rows_figure(rows: Sequence[ChartRow], labels: ChartLabels, reaching: Sequence[float] = ()) -> Figure:
    """One dot per row with its interval and its single points; the axis shows the values ``reaching`` as well."""
    values = [*reaching, *(value for row in rows for value in row.all_values)]
    x = LinearScale(*nice_range(min(values), max(values), ROW_TICKS), ROW_LEFT, RIGHT)
    return _rows_figure(rows, labels, x, [_row_dot(row, x, _row_top(place)) for place, row in enumerate(rows)])


def _rows_figure(rows: Sequence[ChartRow], labels: ChartLabels, x: LinearScale, drawn: list[Markup]) -> Figure:
    bottom, step = TOP + ROW_HEIGHT * len(rows) + 4, tick_step(x.low, x.high, ROW_TICKS)
    shown = tick_values(x.low, x.high, ROW_TICKS)
    grid = [svg_path([(x(value), TOP), (x(value), bottom)], class_="grid") for value in shown]
    zero = [svg_path([(x(0), TOP), (x(0), bottom)], class_="axis")] if x.low <= 0.0 <= x.high else []
    texts = [
        element(
            "text",
            tick_label(value, step),
            class_="tick",
            x=x(value),
            y=bottom + 15,
            text_anchor=_tick_anchor(value, x),
        )
        for value in shown
    ]
    title = element(
        "text", labels.axis, class_="axis-title", x=(ROW_LEFT + RIGHT) / 2, y=bottom + 34, text_anchor="middle"
    )
    said = "; ".join(f"{row.name} {row.said}" for row in rows)
    picture = svg_image(labels.title, said, join_markup([*grid, *zero, *drawn, *texts, title]), bottom + 44)
    return Figure(labels.title, labels.caption, picture, labels.head, tuple((row.name, row.said) for row in rows))


def _tick_anchor(value: float, x: LinearScale) -> str:
    """Labels at the ends stay inside the drawing."""
    if x(value) <= x.start + 1:
        return "start"
    return "end" if x(value) >= x.end - 1 else "middle"


def _row_top(place: int) -> float:
    return TOP + ROW_HEIGHT * place


def _row_texts(row: ChartRow, top: float) -> list[Markup]:
    left = RIGHT - ROW_LEFT - NAME_INSET - NAME_GAP - VALUE_LETTER_WIDTH * len(row.said)
    room = max(8, int(left / (STRONG_LETTER_WIDTH if row.strong else LETTER_WIDTH)))
    short = row.name if len(row.name) <= room else f"{row.name[: room - 1]}…"
    return [
        element("text", short, class_="name strong" if row.strong else "name", x=ROW_LEFT + NAME_INSET, y=top + 14),
        element("text", row.said, class_="figure", x=RIGHT, y=top + 14, text_anchor="end"),
    ]


def _row_bar(row: ChartRow, x: LinearScale, top: float) -> Markup:
    left, right = sorted((x(0), x(row.value)))
    bar = element(
        "rect",
        tooltip(f"{row.name}: {row.said}"),
        class_="bar strong" if row.strong else "bar",
        x=left,
        y=top + 20,
        width=round(max(1.0, right - left), 2),
        height=12,
        rx=2,
    )
    return join_markup([*_row_texts(row, top), bar])


def _row_dot(row: ChartRow, x: LinearScale, top: float) -> Markup:
    middle = top + 26
    parts = [*_row_texts(row, top), svg_path([(x.start, middle), (x.end, middle)], class_="grid")]
    if row.interval:
        ends = [(x(value), middle) for value in row.interval]
        parts.append(svg_path(ends, class_="line"))
        parts += [svg_path([(end, middle - 4), (end, middle + 4)], class_="line") for end, _ in ends]
    parts += [
        element("circle", tooltip(format_number(value)), class_="point", cx=x(value), cy=middle, r=2.6)
        for value in row.points
    ]
    kind = "bar strong" if row.strong else "bar"
    parts.append(element("circle", tooltip(f"{row.name}: {row.said}"), class_=kind, cx=x(row.value), cy=middle, r=5))
    return join_markup(parts)


# Measured numbers on one line each: a dot with its interval, and marks to hold it against


SCORE_ROW_HEIGHT = 40
SCORE_ROW_LEFT = 16


@dataclass(frozen=True)
class AttackScore:
    """``value`` between ``low`` and ``high``; ``mark`` is what guessing gives, ``most`` what was promised."""

    name: str
    value: float
    low: float
    high: float
    mark: float
    most: float | None = None


def attack_scores_figure(dots: Sequence[AttackScore], *, title: str, caption: str, axis: str) -> Figure:
    """One line per dot on an axis from 0 to 1: names above the lines, guessing as a short bar, promises dashed."""
    x, bottom = LinearScale(0.0, 1.0, SCORE_ROW_LEFT, RIGHT), TOP + SCORE_ROW_HEIGHT * len(dots) + 4
    parts = [svg_path([(x(value), TOP), (x(value), bottom)], class_="grid") for value in tick_values(0.0, 1.0)]
    parts += [_score_row(dot, x, TOP + SCORE_ROW_HEIGHT * place) for place, dot in enumerate(dots)]
    parts += [
        element("text", f"{value:g}", class_="tick", x=x(value), y=bottom + 15, text_anchor="middle")
        for value in tick_values(0.0, 1.0)
    ]
    parts.append(
        element("text", axis, class_="axis-title", x=(SCORE_ROW_LEFT + RIGHT) / 2, y=bottom + 34, text_anchor="middle")
    )
    said = ", ".join(f"{dot.name} {format_number(dot.value)}" for dot in dots)
    rows = tuple(
        (
            dot.name,
            format_number(dot.value),
            f"{format_number(dot.low)} to {format_number(dot.high)}",
            format_number(dot.mark),
        )
        for dot in dots
    )
    head = ("attack", "success", "95 % interval", "guessing")
    return Figure(title, caption, svg_image(title, said, join_markup(parts), bottom + 44), head, rows)


def _score_row(dot: AttackScore, x: LinearScale, top: float) -> Markup:
    middle = top + 27
    ends = [x(min(1.0, max(0.0, value))) for value in (dot.low, dot.high, dot.mark, dot.value)]
    parts = [
        element("text", dot.name, class_="name", x=SCORE_ROW_LEFT, y=top + 14),
        element("text", format_number(dot.value), class_="figure", x=RIGHT, y=top + 14, text_anchor="end"),
        svg_path([(SCORE_ROW_LEFT, middle), (RIGHT, middle)], class_="grid"),
        svg_path([(ends[0], middle), (max(ends[1], ends[0] + 0.5), middle)], class_="line"),
        svg_path([(ends[2], middle - 6), (ends[2], middle + 6)], class_="axis"),
    ]
    if dot.most is not None:
        parts.append(svg_path([(x(dot.most), middle - 9), (x(dot.most), middle + 9)], class_="marker"))
    words = f"{dot.name}: {format_number(dot.value)} ({format_number(dot.low)} to {format_number(dot.high)}), guessing {format_number(dot.mark)}"
    parts.append(element("circle", tooltip(words), class_="bar", cx=ends[3], cy=middle, r=5))
    return join_markup(parts)


# How a quantity changes with the rank of the partner: median, middle half and middle nine tenths of the records


BAND_QUANTILES = ("5 %", "25 %", "median", "75 %", "95 %")
BAND_PLOT_TOP = 34


def band_figure(quantiles: Floats, *, title: str, caption: str, axis: str) -> Figure:
    """``quantiles`` has one row per rank and the columns of ``QUANTILES``."""
    ranks = len(quantiles)
    # A single rank has no width to draw a band over, so it is drawn as if it stood twice.
    drawn = quantiles if ranks > 1 else np.repeat(quantiles, 2, axis=0)
    places = np.arange(1.0, ranks + 1) if ranks > 1 else np.array([0.7, 1.3])
    x = x_scale(1, ranks) if ranks > 1 else x_scale(0.5, 1.5)
    y = y_scale(*nice_range(float(quantiles.min()), float(quantiles.max())), top=BAND_PLOT_TOP)
    shown = rank_ticks(ranks)
    parts = [
        left_axis(y, axis),
        _band(drawn[:, 0], drawn[:, 4], places, (x, y), "band outer"),
        _band(drawn[:, 1], drawn[:, 3], places, (x, y), "band inner"),
        svg_path([(x(place), y(value)) for place, value in zip(places, drawn[:, 2], strict=True)], class_="line"),
        bottom_axis(x, shown, [f"{rank:,}" for rank in shown], "rank of the partner (1 = most similar)"),
        hover_columns(x, _band_tooltips(quantiles), BAND_PLOT_TOP),
        _band_legend(),
    ]
    picture = svg_image(title, _band_description(quantiles), join_markup(parts))
    return Figure(title, caption, picture, ("rank", *BAND_QUANTILES), _band_table(quantiles))


def rank_ticks(ranks: int) -> list[int]:
    """1, the round ranks, and the last one where it does not crowd its neighbour.

    >>> rank_ticks(50), rank_ticks(7), rank_ticks(23)
    ([1, 10, 20, 30, 40, 50], [1, 2, 3, 4, 5, 6, 7], [1, 5, 10, 15, 20, 23])
    """
    step = max(1, math.ceil(tick_step(0, ranks, about=7))) if ranks > 1 else 1
    shown = [1, *(rank for rank in range(step, ranks + 1, step) if rank > 1)]
    return [*shown, ranks] if ranks - shown[-1] > 0.5 * step else shown


def _band(low: Floats, high: Floats, places: Floats, scales: tuple[LinearScale, LinearScale], kind: str) -> Markup:
    x, y = scales
    upper = [(x(place), y(value)) for place, value in zip(places, high, strict=True)]
    lower = [(x(place), y(value)) for place, value in zip(places, low, strict=True)]
    return svg_path([*upper, *reversed(lower)], closed=True, class_=kind)


def _band_tooltips(quantiles: Floats) -> list[str]:
    return [
        f"rank {rank}: median {format_number(row[2])}, half between {format_number(row[1])} and {format_number(row[3])}"
        for rank, row in enumerate(quantiles, start=1)
    ]


def _band_legend() -> Markup:
    """Where each kind of band is named, above the plot."""
    entries = [("line", "median", LEFT), ("inner", "middle half", LEFT + 80), ("outer", "middle 90 %", LEFT + 194)]
    parts = []
    for kind, word, place in entries:
        swatch = element("rect", class_=f"swatch {kind}", x=place, y=8, width=16, height=10, rx=2)
        parts.append(swatch + element("text", word, class_="tick", x=place + 22, y=17))
    return join_markup(parts)


def _band_table(quantiles: Floats) -> tuple[tuple[str, ...], ...]:
    chosen = rank_ticks(len(quantiles))
    return tuple((f"{rank:,}", *(format_number(value) for value in quantiles[rank - 1])) for rank in chosen)


def _band_description(quantiles: Floats) -> str:
    first, last = quantiles[0, 2], quantiles[-1, 2]
    return f"The median goes from {format_number(first)} at rank 1 to {format_number(last)} at rank {len(quantiles):,}."


# Quantities that change together: one line each over the same steps


LINE_PLOT_TOP = 34
LINE_CLASSES = ("first", "second", "third")  # lines are told apart by colour and by their dashes
LEGEND_STEP = 118


@dataclass(frozen=True)
class AxisLabels:
    """Names of both axes; ``marked`` is the step that counts, with its words."""

    steps: str
    values: str
    marked: tuple[int, str] | None = None


def lines_figure(lines: Mapping[str, Sequence[float]], axes: AxisLabels, *, title: str, caption: str) -> Figure:
    """Steps count from 1; all lines are equally long, and have a gap where a value is no number."""
    steps = len(next(iter(lines.values())))
    everything = [value for line in lines.values() for value in line if math.isfinite(value)] or [0.0]
    x = x_scale(1, steps) if steps > 1 else x_scale(0.5, 1.5)
    y = y_scale(*nice_range(min(everything), max(everything)), top=LINE_PLOT_TOP)
    shown = rank_ticks(steps)
    parts = [left_axis(y, axes.values), bottom_axis(x, shown, [f"{step:,}" for step in shown], axes.steps)]
    parts += [_line(line, kind, x, y) for line, kind in zip(lines.values(), LINE_CLASSES, strict=False)]
    if axes.marked:
        parts.append(_step_marker(x(axes.marked[0]), axes.marked[1]))
    parts += [hover_columns(x, _line_tooltips(lines), LINE_PLOT_TOP), line_legend(lines)]
    said = "; ".join(
        f"{name} goes from {format_number(line[0])} to {format_number(line[-1])}" for name, line in lines.items()
    )
    rows = tuple((f"{step:,}", *(format_number(line[step - 1]) for line in lines.values())) for step in shown)
    return Figure(title, caption, svg_image(title, f"{said}.", join_markup(parts)), (axes.steps, *lines), rows)


def _line(values: Sequence[float], kind: str, x: LinearScale, y: LinearScale) -> Markup:
    parts = []
    for finite, steps in groupby(enumerate(values, start=1), key=lambda step: math.isfinite(step[1])):
        points = [(x(step), y(value)) for step, value in steps] if finite else []
        if len(points) == 1:
            parts.append(element("circle", class_=f"dot {kind}", cx=points[0][0], cy=points[0][1], r=4))
        elif points:
            parts.append(svg_path(points, class_=f"line {kind}"))
    return join_markup(parts)


def _step_marker(place: float, words: str) -> Markup:
    near_the_end = place > (LEFT + RIGHT) / 2
    label = element(
        "text",
        words,
        class_="tick",
        x=place - 5 if near_the_end else place + 5,
        y=LINE_PLOT_TOP + 10,
        text_anchor="end" if near_the_end else "start",
    )
    return svg_path([(place, LINE_PLOT_TOP), (place, BOTTOM)], class_="marker") + label


def _line_tooltips(lines: Mapping[str, Sequence[float]]) -> list[str]:
    steps = len(next(iter(lines.values())))
    return [
        f"{step:,}: " + ", ".join(f"{name} {format_number(line[step - 1])}" for name, line in lines.items())
        for step in range(1, steps + 1)
    ]


def line_legend(names: Iterable[str]) -> Markup:
    """What each kind of line stands for, above the plot."""
    parts = []
    for place, (name, kind) in enumerate(zip(names, LINE_CLASSES, strict=False)):
        left = LEFT + LEGEND_STEP * place
        parts.append(svg_path([(left, 13), (left + 18, 13)], class_=f"line {kind}"))
        parts.append(element("text", name, class_="tick", x=left + 24, y=17))
    return join_markup(parts)
