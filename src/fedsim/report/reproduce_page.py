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
    told = {**sheet.facts, "seeds": _seed_words(sheet.facts.get("seeds", []))}
    facts = [(name.replace("_", " "), words) for name, value in told.items() if (words := _words(value))]
    return rendered(
        "reproduce_page.html", title=sheet.title, sheet=sheet, figures=[*sheet_figures(sheet), *more], facts=facts
    )


def _seed_words(seeds: Sequence[int]) -> str:
    """How many seeds, and their numbers.

    >>> _seed_words([0]), _seed_words([0, 1, 2]), _seed_words([])
    ('1 (number 0)', '3 (numbers 0, 1, 2)', '')
    """
    numbers = f"number{'s' if len(seeds) > 1 else ''} {_words(list(seeds))}"
    return f"{len(seeds)} ({numbers})" if seeds else ""


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
