"""Quantities that change together: one line each over the same steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from fedsim.report.bands import rank_ticks
from fedsim.report.figure import Figure
from fedsim.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    Scale,
    across,
    bottom_axis,
    drawing,
    element,
    hover_columns,
    join,
    left_axis,
    path,
    upward,
    widened,
)
from fedsim.report.words import measure

PLOT_TOP = 34
KINDS = ("first", "second", "third")  # lines are told apart by colour and by their dashes
LEGEND_STEP = 118


@dataclass(frozen=True)
class Axes:
    """Names of both axes; ``marked`` is the step that counts, with its words."""

    steps: str
    values: str
    marked: tuple[int, str] | None = None


def lines_figure(lines: Mapping[str, Sequence[float]], axes: Axes, *, title: str, caption: str) -> Figure:
    """Steps count from 1; all lines are equally long, and have a gap where a value is no number."""
    steps = len(next(iter(lines.values())))
    everything = [value for line in lines.values() for value in line if math.isfinite(value)] or [0.0]
    x = across(1, steps) if steps > 1 else across(0.5, 1.5)
    y = upward(*widened(min(everything), max(everything)), top=PLOT_TOP)
    shown = rank_ticks(steps)
    parts = [left_axis(y, axes.values), bottom_axis(x, shown, [f"{step:,}" for step in shown], axes.steps)]
    parts += [_line(line, kind, x, y) for line, kind in zip(lines.values(), KINDS, strict=False)]
    if axes.marked:
        parts.append(_marked(x(axes.marked[0]), axes.marked[1]))
    parts += [hover_columns(x, _tips(lines), PLOT_TOP), legend(lines)]
    said = "; ".join(f"{name} goes from {measure(line[0])} to {measure(line[-1])}" for name, line in lines.items())
    rows = tuple((f"{step:,}", *(measure(line[step - 1]) for line in lines.values())) for step in shown)
    return Figure(title, caption, drawing(title, f"{said}.", join(parts)), (axes.steps, *lines), rows)


def _line(values: Sequence[float], kind: str, x: Scale, y: Scale) -> Markup:
    parts = []
    for finite, steps in groupby(enumerate(values, start=1), key=lambda step: math.isfinite(step[1])):
        points = [(x(step), y(value)) for step, value in steps] if finite else []
        if len(points) == 1:
            parts.append(element("circle", class_=f"dot {kind}", cx=points[0][0], cy=points[0][1], r=4))
        elif points:
            parts.append(path(points, class_=f"line {kind}"))
    return join(parts)


def _marked(place: float, words: str) -> Markup:
    near_the_end = place > (LEFT + RIGHT) / 2
    label = element(
        "text",
        words,
        class_="tick",
        x=place - 5 if near_the_end else place + 5,
        y=PLOT_TOP + 10,
        text_anchor="end" if near_the_end else "start",
    )
    return path([(place, PLOT_TOP), (place, BOTTOM)], class_="marker") + label


def _tips(lines: Mapping[str, Sequence[float]]) -> list[str]:
    steps = len(next(iter(lines.values())))
    return [
        f"{step:,}: " + ", ".join(f"{name} {measure(line[step - 1])}" for name, line in lines.items())
        for step in range(1, steps + 1)
    ]


def legend(names: Iterable[str]) -> Markup:
    """What each kind of line stands for, above the plot."""
    parts = []
    for place, (name, kind) in enumerate(zip(names, KINDS, strict=False)):
        left = LEFT + LEGEND_STEP * place
        parts.append(path([(left, 13), (left + 18, 13)], class_=f"line {kind}"))
        parts.append(element("text", name, class_="tick", x=left + 24, y=17))
    return join(parts)
