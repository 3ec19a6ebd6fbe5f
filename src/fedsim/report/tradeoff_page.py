"""One page about one sweep: what the attacker gains against what the model loses."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.audit.tradeoff import Point
from fedsim.report.figure import Figure
from fedsim.report.page import rendered
from fedsim.report.svg import (
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
from fedsim.report.words import measure

EDGE = 0.2


def tradeoff_page(points: Sequence[Point], *, title: str) -> str:
    """One HTML text that needs nothing else."""
    return rendered("tradeoff_page.html", title=title, figures=[_figure(points)], points=points)


def _figure(points: Sequence[Point]) -> Figure:
    """Gain from left to right, quality upwards; the settings of one seed joined in their order."""
    low, high = widened(min(point.quality for point in points), max(point.quality for point in points))
    x, y, shown = across(0.0, 1.0), upward(low, high), ticks(0.0, 1.0)
    metric = points[0].metric
    labels = [tick_label(value, step_for(0.0, 1.0)) for value in shown]
    parts = [left_axis(y, f"validation {metric}"), bottom_axis(x, shown, labels, "what the best attacker gains")]
    for seed in dict.fromkeys(point.seed for point in points):
        here = [point for point in points if point.seed == seed]
        parts.append(path([(x(point.gain), y(point.quality)) for point in here], class_="line"))
        for point in here:
            words = f"{point.setting}: gain {measure(point.gain)}, {metric} {measure(point.quality)}"
            parts.append(element("circle", tip(words), class_="bar", cx=x(point.gain), cy=y(point.quality), r=4.5))
    for point in (points[0], points[-1]):
        place = {"x": x(point.gain), "y": y(point.quality) - 8}
        parts.append(element("text", point.setting, class_="tick", text_anchor=_anchor(point.gain), **place))
    better = "lower" if metric == "rmse" else "higher"
    rows = tuple((point.setting, measure(point.gain), measure(point.quality), point.attack) for point in points)
    head, said = ("setting", "gain", metric, "best attack"), f"{len(points)} settings"
    title = "What protection costs"
    caption = f"Left is safer; {better} is the better model. 0 is blind guessing, 1 certainty."
    return Figure(title, caption, drawing(title, said, join(parts)), head, rows)


def _anchor(gain: float) -> str:
    """Words stay within the figure."""
    if gain < EDGE:
        return "start"
    return "end" if gain > 1.0 - EDGE else "middle"
