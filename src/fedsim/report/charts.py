"""Pictures of reproductions: lines over what is varied, and methods beside the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedsim.experiment.sheet import Chart, Series
from fedsim.report.figure import Figure
from fedsim.report.svg import (
    LEFT,
    RIGHT,
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
from fedsim.report.words import measure

COLOURS = ("#17708c", "#b4531f", "#2f7d4f", "#7d5ba6", "#8d969e", "#b8901f", "#c2577f")
ROW, PLOT_TOP = 26, 46
NAME_WIDTH = 6.3  # of a letter
STYLE = """
text{font-family:system-ui,sans-serif;fill:#1c2329}.tick,.axis-title{font-size:11px;fill:#5b6670}.name{font-size:12px}
.grid{stroke:#e3e0d9;fill:none}.axis{stroke:#8d969e;fill:none}.line{fill:none;stroke-width:2.2}.bar{fill:#17708c}
"""


def chart_figure(chart: Chart) -> Figure:
    """A chart of a sheet with its numbers."""
    return lines_figure(chart) if chart.axis else rows_figure(chart)


def lines_figure(chart: Chart) -> Figure:
    """A line per method over the places; rings are the paper's figures."""
    figures = [value for each in chart.series for value in (*each.mean, *each.paper) if value is not None]
    x = across(-0.3, len(chart.places) - 0.7)
    y = upward(*widened(min(figures), max(figures)), top=PLOT_TOP)
    labels = bottom_axis(x, list(range(len(chart.places))), chart.places, chart.axis)
    parts = [left_axis(y, chart.measure), labels, _legend([each.name for each in chart.series])]
    parts += [_line(each, x, y, colour) for each, colour in zip(chart.series, _colours(chart.series), strict=True)]
    head = ("", *chart.places)
    rows = tuple((each.name, *(_shown(value) for value in each.mean)) for each in chart.series)
    picture = drawing(chart.title, f"{chart.measure} over {chart.axis}", join(parts))
    return Figure(chart.title, "Lines are ours, rings the paper's where it names a figure.", picture, head, rows)


def rows_figure(chart: Chart) -> Figure:
    """A row per method: a dot with its deviation is ours, a ring the paper's."""
    ours = chart.series[0]
    figures = [value for value in (*ours.mean, *ours.paper) if value is not None]
    start = min(265.0, 20 + NAME_WIDTH * max(len(name) for name in chart.places))
    x, bottom = Scale(*widened(min(figures), max(figures)), start, RIGHT), 14 + ROW * len(chart.places)
    step = step_for(x.low, x.high)
    parts = [path([(x(value), 8), (x(value), bottom)], class_="grid") for value in ticks(x.low, x.high)]
    parts += [
        element("text", tick_label(value, step), class_="tick", x=x(value), y=bottom + 15, text_anchor="middle")
        for value in ticks(x.low, x.high)
    ]
    for place, name in enumerate(chart.places):
        middle = 22 + ROW * place
        parts.append(element("text", name, class_="name", x=8, y=middle + 4))
        parts.append(_dot(ours, place, x, middle))
    title = element(
        "text", chart.measure, class_="axis-title", x=(start + RIGHT) / 2, y=bottom + 34, text_anchor="middle"
    )
    parts.append(title)
    rows = tuple(
        (name, _shown(mean), _shown(paper))
        for name, mean, paper in zip(chart.places, ours.mean, ours.paper, strict=True)
    )
    picture = drawing(chart.title, chart.measure, join(parts), bottom + 44)
    caption = "Dots are ours, with their deviation; rings the paper's."
    return Figure(chart.title, caption, picture, ("method", "ours", "paper"), rows)


def standalone(figure: Figure) -> str:
    """The picture as a file of its own, for places without our style sheet."""
    start = f'<svg xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>'.replace("\n", "")
    head, rest = str(figure.picture).split(">", 1)
    return start.replace("<svg ", f"{head} ", 1) + rest + "\n"


def _line(series: Series, x: Scale, y: Scale, colour: str) -> Markup:
    points = [(x(place), y(value)) for place, value in enumerate(series.mean) if value is not None]
    parts = [path(points, class_="line", style=f"stroke:{colour}")] if len(points) > 1 else []
    for place, (mean, deviation, paper) in enumerate(zip(series.mean, series.deviation, series.paper, strict=True)):
        if mean is not None:
            spread = deviation or 0.0
            ends = [(x(place), y(max(y.low, mean - spread))), (x(place), y(min(y.high, mean + spread)))]
            parts.append(path(ends, class_="line", style=f"stroke:{colour};stroke-width:1"))
            words = f"{series.name}: {measure(mean)}"
            parts.append(element("circle", tip(words), style=f"fill:{colour}", cx=x(place), cy=y(mean), r=3.5))
        if paper is not None:
            parts.append(_ring(x(place), y(paper), colour, f"{series.name} in the paper: {measure(paper)}"))
    return join(parts)


def _dot(series: Series, place: int, x: Scale, middle: float) -> Markup:
    mean, spread, paper = series.mean[place], series.deviation[place] or 0.0, series.paper[place]
    parts = [path([(x.start, middle), (RIGHT, middle)], class_="grid")]
    if paper is not None:
        parts.append(_ring(x(paper), middle, COLOURS[1], f"the paper's: {measure(paper)}"))
    if mean is not None:
        ends = [(x(max(x.low, mean - spread)), middle), (x(min(x.high, mean + spread)), middle)]
        parts.append(path(ends, class_="line", style=f"stroke:{COLOURS[0]}"))
        parts.append(element("circle", tip(measure(mean)), class_="bar", cx=x(mean), cy=middle, r=4.5))
    return join(parts)


def _ring(x: float, y: float, colour: str, words: str) -> Markup:
    return element("circle", tip(words), style=f"fill:none;stroke:{colour};stroke-width:1.6", cx=x, cy=y, r=6)


def _legend(names: Sequence[str]) -> Markup:
    parts = []
    for place, name in enumerate(names):
        left, top = LEFT + 112 * (place % 3), 6 + 15 * (place // 3)
        colour = COLOURS[place % len(COLOURS)]
        parts.append(element("rect", style=f"fill:{colour}", x=left, y=top, width=14, height=8, rx=2))
        parts.append(element("text", name, class_="tick", x=left + 19, y=top + 8))
    return join(parts)


def _colours(series: Sequence[Series]) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(series))]


def _shown(value: float | None) -> str:
    return "-" if value is None else measure(value)
