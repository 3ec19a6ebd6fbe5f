"""One page about one reproduced table or figure of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.experiment.sheet import Sheet
from fedsim.report.charts import chart_figure
from fedsim.report.figure import Figure
from fedsim.report.page import rendered


def sheet_figures(sheet: Sheet) -> list[Figure]:
    """The pictures of a sheet."""
    return [chart_figure(chart) for chart in sheet.charts]


def reproduce_page(sheet: Sheet, more: Sequence[Figure] = ()) -> str:
    """One HTML text that needs nothing else; ``more`` are pictures that no chart describes."""
    facts = [(name.replace("_", " "), _words(value)) for name, value in sheet.facts.items()]
    return rendered(
        "reproduce_page.html", title=sheet.title, sheet=sheet, figures=[*sheet_figures(sheet), *more], facts=facts
    )


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
