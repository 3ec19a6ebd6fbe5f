"""Measured numbers on one line each: a dot with its interval, and marks to hold it against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedsim.report.figure import Figure
from fedsim.report.svg import RIGHT, TOP, Scale, drawing, element, join, path, ticks, tip
from fedsim.report.words import measure

STEP = 40
START = 16


@dataclass(frozen=True)
class Dot:
    """``value`` between ``low`` and ``high``; ``mark`` is what guessing gives, ``most`` what was promised."""

    name: str
    value: float
    low: float
    high: float
    mark: float
    most: float | None = None


def dots_figure(dots: Sequence[Dot], *, title: str, caption: str, axis: str) -> Figure:
    """One line per dot on an axis from 0 to 1: names above the lines, guessing as a short bar, promises dashed."""
    x, bottom = Scale(0.0, 1.0, START, RIGHT), TOP + STEP * len(dots) + 4
    parts = [path([(x(value), TOP), (x(value), bottom)], class_="grid") for value in ticks(0.0, 1.0)]
    parts += [_drawn(dot, x, TOP + STEP * place) for place, dot in enumerate(dots)]
    parts += [
        element("text", f"{value:g}", class_="tick", x=x(value), y=bottom + 15, text_anchor="middle")
        for value in ticks(0.0, 1.0)
    ]
    parts.append(element("text", axis, class_="axis-title", x=(START + RIGHT) / 2, y=bottom + 34, text_anchor="middle"))
    said = ", ".join(f"{dot.name} {measure(dot.value)}" for dot in dots)
    rows = tuple(
        (dot.name, measure(dot.value), f"{measure(dot.low)} to {measure(dot.high)}", measure(dot.mark)) for dot in dots
    )
    head = ("attack", "success", "95 % interval", "guessing")
    return Figure(title, caption, drawing(title, said, join(parts), bottom + 44), head, rows)


def _drawn(dot: Dot, x: Scale, top: float) -> Markup:
    middle = top + 27
    ends = [x(min(1.0, max(0.0, value))) for value in (dot.low, dot.high, dot.mark, dot.value)]
    parts = [
        element("text", dot.name, class_="name", x=START, y=top + 14),
        element("text", measure(dot.value), class_="figure", x=RIGHT, y=top + 14, text_anchor="end"),
        path([(START, middle), (RIGHT, middle)], class_="grid"),
        path([(ends[0], middle), (max(ends[1], ends[0] + 0.5), middle)], class_="line"),
        path([(ends[2], middle - 6), (ends[2], middle + 6)], class_="axis"),
    ]
    if dot.most is not None:
        parts.append(path([(x(dot.most), middle - 9), (x(dot.most), middle + 9)], class_="marker"))
    words = (
        f"{dot.name}: {measure(dot.value)} ({measure(dot.low)} to {measure(dot.high)}), guessing {measure(dot.mark)}"
    )
    parts.append(element("circle", tip(words), class_="bar", cx=ends[3], cy=middle, r=5))
    return join(parts)
