"""The page and charts of a reproduced table or figure of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedsim.report.formatting import format_number
from fedsim.report.page import Figure, render_template
from fedsim.report.svg import (
    LEFT,
    RIGHT,
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
from fedsim_lab.result_table import ChartSeries, ResultChart, ResultSheet

# Pictures of reproductions: lines over what is varied, and methods beside the paper's figures


COLOURS = ("#17708c", "#b4531f", "#2f7d4f", "#7d5ba6", "#8d969e", "#b8901f", "#c2577f")
DOT_ROW_HEIGHT, PLOT_TOP = 26, 46
NAME_LETTER_WIDTH = 6.3  # of a letter
STANDALONE_STYLE = """
text{font-family:system-ui,sans-serif;fill:#1c2329}.tick,.axis-title{font-size:11px;fill:#5b6670}.name{font-size:12px}
.grid{stroke:#e3e0d9;fill:none}.axis{stroke:#8d969e;fill:none}.line{fill:none;stroke-width:2.2}.bar{fill:#17708c}
"""


def chart_figure(chart: ResultChart) -> Figure:
    """A chart of a sheet with its numbers."""
    return line_chart(chart) if chart.axis else dot_chart(chart)


def line_chart(chart: ResultChart) -> Figure:
    """A line per method over the places; rings are the paper's figures."""
    figures = [value for each in chart.series for value in (*each.mean, *each.paper) if value is not None]
    x = x_scale(-0.3, len(chart.places) - 0.7)
    y = y_scale(*nice_range(min(figures), max(figures)), top=PLOT_TOP)
    labels = bottom_axis(x, list(range(len(chart.places))), chart.places, chart.axis)
    parts = [left_axis(y, chart.measure), labels, _legend([each.name for each in chart.series])]
    parts += [
        _series_line(each, x, y, colour) for each, colour in zip(chart.series, _colours(chart.series), strict=True)
    ]
    head = ("", *chart.places)
    rows = tuple((each.name, *(_value_text(value) for value in each.mean)) for each in chart.series)
    picture = svg_image(chart.title, f"{chart.measure} over {chart.axis}", join_markup(parts))
    return Figure(chart.title, "Lines are ours, rings the paper's where it names a figure.", picture, head, rows)


def dot_chart(chart: ResultChart) -> Figure:
    """A row per method: a dot with its deviation is ours, a ring the paper's."""
    ours = chart.series[0]
    figures = [value for value in (*ours.mean, *ours.paper) if value is not None]
    start = min(265.0, 20 + NAME_LETTER_WIDTH * max(len(name) for name in chart.places))
    x, bottom = (
        LinearScale(*nice_range(min(figures), max(figures)), start, RIGHT),
        14 + DOT_ROW_HEIGHT * len(chart.places),
    )
    step = tick_step(x.low, x.high)
    parts = [svg_path([(x(value), 8), (x(value), bottom)], class_="grid") for value in tick_values(x.low, x.high)]
    parts += [
        element("text", tick_label(value, step), class_="tick", x=x(value), y=bottom + 15, text_anchor="middle")
        for value in tick_values(x.low, x.high)
    ]
    for place, name in enumerate(chart.places):
        middle = 22 + DOT_ROW_HEIGHT * place
        parts.append(element("text", name, class_="name", x=8, y=middle + 4))
        parts.append(_series_dot(ours, place, x, middle))
    title = element(
        "text", chart.measure, class_="axis-title", x=(start + RIGHT) / 2, y=bottom + 34, text_anchor="middle"
    )
    parts.append(title)
    rows = tuple(
        (name, _value_text(mean), _value_text(paper))
        for name, mean, paper in zip(chart.places, ours.mean, ours.paper, strict=True)
    )
    picture = svg_image(chart.title, chart.measure, join_markup(parts), bottom + 44)
    caption = "Dots are ours, with their deviation; rings the paper's."
    return Figure(chart.title, caption, picture, ("method", "ours", "paper"), rows)


def standalone_svg(figure: Figure) -> str:
    """The picture as a file of its own, for places without our style sheet."""
    start = f'<svg xmlns="http://www.w3.org/2000/svg"><style>{STANDALONE_STYLE}</style>'.replace("\n", "")
    head, rest = str(figure.picture).split(">", 1)
    return start.replace("<svg ", f"{head} ", 1) + rest + "\n"


def _series_line(series: ChartSeries, x: LinearScale, y: LinearScale, colour: str) -> Markup:
    points = [(x(place), y(value)) for place, value in enumerate(series.mean) if value is not None]
    parts = [svg_path(points, class_="line", style=f"stroke:{colour}")] if len(points) > 1 else []
    for place, (mean, deviation, paper) in enumerate(zip(series.mean, series.deviation, series.paper, strict=True)):
        if mean is not None:
            spread = deviation or 0.0
            ends = [(x(place), y(max(y.low, mean - spread))), (x(place), y(min(y.high, mean + spread)))]
            parts.append(svg_path(ends, class_="line", style=f"stroke:{colour};stroke-width:1"))
            words = f"{series.name}: {format_number(mean)}"
            parts.append(element("circle", tooltip(words), style=f"fill:{colour}", cx=x(place), cy=y(mean), r=3.5))
        if paper is not None:
            parts.append(_ring(x(place), y(paper), colour, f"{series.name} in the paper: {format_number(paper)}"))
    return join_markup(parts)


def _series_dot(series: ChartSeries, place: int, x: LinearScale, middle: float) -> Markup:
    mean, spread, paper = series.mean[place], series.deviation[place] or 0.0, series.paper[place]
    parts = [svg_path([(x.start, middle), (RIGHT, middle)], class_="grid")]
    if paper is not None:
        parts.append(_ring(x(paper), middle, COLOURS[1], f"the paper's: {format_number(paper)}"))
    if mean is not None:
        ends = [(x(max(x.low, mean - spread)), middle), (x(min(x.high, mean + spread)), middle)]
        parts.append(svg_path(ends, class_="line", style=f"stroke:{COLOURS[0]}"))
        parts.append(element("circle", tooltip(format_number(mean)), class_="bar", cx=x(mean), cy=middle, r=4.5))
    return join_markup(parts)


def _ring(x: float, y: float, colour: str, words: str) -> Markup:
    return element("circle", tooltip(words), style=f"fill:none;stroke:{colour};stroke-width:1.6", cx=x, cy=y, r=6)


def _legend(names: Sequence[str]) -> Markup:
    parts = []
    for place, name in enumerate(names):
        left, top = LEFT + 112 * (place % 3), 6 + 15 * (place // 3)
        colour = COLOURS[place % len(COLOURS)]
        parts.append(element("rect", style=f"fill:{colour}", x=left, y=top, width=14, height=8, rx=2))
        parts.append(element("text", name, class_="tick", x=left + 19, y=top + 8))
    return join_markup(parts)


def _colours(series: Sequence[ChartSeries]) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(series))]


def _value_text(value: float | None) -> str:
    return "-" if value is None else format_number(value)


# One page about one reproduced table or figure of the paper


def chart_figures(sheet: ResultSheet) -> list[Figure]:
    """The pictures of a sheet."""
    return [chart_figure(chart) for chart in sheet.charts]


def reproduce_page(sheet: ResultSheet, more: Sequence[Figure] = ()) -> str:
    """One HTML text that needs nothing else; ``more`` are pictures that no chart describes."""
    told = {**sheet.facts, "seeds": _seeds_text(sheet.facts.get("seeds", []))}
    facts = [(name.replace("_", " "), words) for name, value in told.items() if (words := _fact_text(value))]
    return render_template(
        "reproduce_page.html", title=sheet.title, sheet=sheet, figures=[*chart_figures(sheet), *more], facts=facts
    )


def _seeds_text(seeds: Sequence[int]) -> str:
    """How many seeds, and their numbers.

    >>> _seeds_text([0]), _seeds_text([0, 1, 2]), _seeds_text([])
    ('1 (number 0)', '3 (numbers 0, 1, 2)', '')
    """
    numbers = f"number{'s' if len(seeds) > 1 else ''} {_fact_text(list(seeds))}"
    return f"{len(seeds)} ({numbers})" if seeds else ""


def _fact_text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
