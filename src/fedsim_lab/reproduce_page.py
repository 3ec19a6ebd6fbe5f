"""The page and charts of a reproduced table or figure of the paper."""

import math
from collections.abc import Sequence
from dataclasses import replace

from fedsim.report.charts import AxisLabels, ChartLabels, ChartRow, LineSeries, lines_figure, rows_figure
from fedsim.report.formatting import format_number
from fedsim.report.page import Figure, render_template
from fedsim_lab.result_table import ResultChart, ResultSheet

# The part of the page's style sheet that a chart needs as a file of its own.
STANDALONE_STYLE = """
text{font-family:system-ui,sans-serif;fill:#1c2329}.tick,.axis-title{font-size:11px;fill:#5b6670}.name{font-size:12px}
.figure{font-size:12px;font-weight:600}.grid{stroke:#e3e0d9;fill:none}.axis{stroke:#8d969e;fill:none}
.first{--line:#17708c}.second{--line:#b4531f}.third{--line:#5b6670}.fourth{--line:#2f7d4f}.fifth{--line:#7d5ba6}
.sixth{--line:#b8901f}.seventh{--line:#c2577f}.line{fill:none;stroke:var(--line,#17708c);stroke-width:2.2}
path.second{stroke-dasharray:6 3}path.third{stroke-dasharray:2 3}path.thin{stroke-width:1;stroke-dasharray:none}
.baseline{stroke:#1c2329;stroke-width:2}.dot{fill:var(--line)}.ring{fill:none;stroke:var(--line);stroke-width:1.6}.bar{fill:#17708c}.hover{fill:transparent}
"""


def chart_figures(sheet: ResultSheet) -> list[Figure]:
    """Draw the charts of a sheet."""
    return [_line_chart(chart) if chart.axis else _dot_chart(chart) for chart in sheet.charts]


def _line_chart(chart: ResultChart) -> Figure:
    """Draw a line per method over the places, with rings for the scores of the paper."""

    def numbers(values: Sequence[float | None]) -> list[float]:
        return [math.nan if value is None else value for value in values]

    lines = [
        LineSeries(s.name, numbers(s.mean), [value or 0.0 for value in s.deviation], numbers(s.paper))
        for s in chart.series
    ]
    axes, caption = AxisLabels(chart.axis, chart.measure, names=chart.places), "Lines: this run. Rings: the paper."
    return lines_figure(lines, axes, title=chart.title, caption=caption)


def _dot_chart(chart: ResultChart) -> Figure:
    """Draw a row per method: a dot with its deviation, and a short line for the score of the paper."""
    ours, rows, table = chart.series[0], [], []
    for name, mean, deviation, paper in zip(chart.places, ours.mean, ours.deviation, ours.paper, strict=True):
        table.append((name, *("-" if value is None else format_number(value) for value in (mean, paper))))
        if mean is not None:
            spread = deviation or 0.0
            rows.append(ChartRow(name, mean, interval=(mean - spread, mean + spread), baseline=paper))
    caption = "Dots: this run, with the standard deviation. Short lines: the paper."
    labels = ChartLabels(chart.title, caption, chart.measure, ("", ""))
    return replace(rows_figure(rows, labels), head=("method", "this run", "paper"), rows=tuple(table))


def standalone_svg(figure: Figure) -> str:
    """Return the chart as an SVG file with its own style sheet."""
    start = f'<svg xmlns="http://www.w3.org/2000/svg"><style>{STANDALONE_STYLE}</style>'.replace("\n", "")
    head, rest = str(figure.picture).split(">", 1)
    return start.replace("<svg ", f"{head} ", 1) + rest + "\n"


def reproduce_page(sheet: ResultSheet, more: Sequence[Figure] = ()) -> str:
    """Return a self-contained HTML page; ``more`` are figures in addition to the charts of the sheet."""
    facts = {**sheet.facts, "seeds": _seeds_text(sheet.facts.get("seeds", []))}
    texts = [(name.replace("_", " "), text) for name, value in facts.items() if (text := _fact_text(value))]
    return render_template(
        "reproduce_page.html",
        "fedsim_lab",
        title=sheet.title,
        sheet=sheet,
        figures=[*chart_figures(sheet), *more],
        facts=texts,
    )


def _seeds_text(seeds: Sequence[int]) -> str:
    """Return the number of seeds and the seeds themselves.

    >>> _seeds_text([0]), _seeds_text([0, 1, 2]), _seeds_text([])
    ('1 (number 0)', '3 (numbers 0, 1, 2)', '')
    """
    numbers = f"number{'s' if len(seeds) > 1 else ''} {_fact_text(list(seeds))}"
    return f"{len(seeds)} ({numbers})" if seeds else ""


def _fact_text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
