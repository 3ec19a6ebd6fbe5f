"""One page about one audit: who could learn what, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.attack.finding import Adversary
from fedsim.audit.report import METRES, Report
from fedsim.audit.rows import Row, Verdict
from fedsim.report.dots import Dot, dots_figure
from fedsim.report.figure import Figure
from fedsim.report.page import rendered
from fedsim.report.words import count, duration, measure, percent

LEARNS = {
    Adversary.PRIMARY: "It has the links, the similarities, the activations and, as a party, the key.",
    Adversary.SECONDARY: "It has the gradients sent back to it and its own network.",
    Adversary.COORDINATOR: "It has the filters of all parties, and no key.",
}


def audit_page(report: Report) -> str:
    """One HTML text that needs nothing else: no script, no font, no network, and no record in it."""
    return rendered(
        "audit_page.html",
        title=f"Audit of {report.job}",
        report=report,
        headline=report.headline,
        calm=not (report.over or report.broken),
        tiles=_tiles(report),
        figures=_figures(report),
        lines=[(_named(row, report.rows), *_cells(row, report.limit)) for row in report.rows],
        advice=[(a.attack, a.setting, percent(a.leak), a.cost, a.reached) for a in report.advice],
    )


def _figures(report: Report) -> list[Figure]:
    drawn = []
    for who in Adversary:
        rows = [row for row in report.rows if row.found.adversary is who]
        if rows:
            drawn.append(_figure(who, rows))
    return drawn


def _figure(who: Adversary, rows: Sequence[Row]) -> Figure:
    dots = [
        Dot(
            _named(row, rows),
            row.found.score.value,
            row.found.score.low,
            row.found.score.high,
            row.found.blind,
            row.guarantee.most,
        )
        for row in rows
    ]
    caption = f"{LEARNS[who]} The short bar is blind guessing, the dashed one the most that was promised."
    return dots_figure(dots, title=f"The {who.value}", caption=caption, axis="success; what it counts is in the table")


def _named(row: Row, rows: Sequence[Row]) -> str:
    """The attack, and the secondary where there are several."""
    return row.found.attack if len({other.about for other in rows}) == 1 else f"{row.found.attack}, {row.about}"


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a word more."""
    metres = [row.found.figures[METRES] for row in report.rows if METRES in row.found.figures]
    tiles = [
        (count(len(report.rows)), "attacks run", f"{count(len(report.skipped))} not"),
        (count(len(report.over)), "above the limit", f"gain over guessing > {measure(report.limit)}"),
        (count(len(report.broken)), "guarantees broken", "beyond doubt"),
    ]
    if metres:
        tiles.append((f"{measure(min(metres))} m", "best location", "median error of the best attack"))
    seconds = sum(row.found.seconds for row in report.rows if row.found.seconds == row.found.seconds)
    return [*tiles, (duration(seconds), "all attacks", "on this machine")]


def _cells(row: Row, limit: float) -> tuple[str, ...]:
    """Who, what is learnt, measure, success, guessing, promise, verdict, mark."""
    found = row.found
    success = f"{measure(found.score.value)} ({measure(found.score.low)} to {measure(found.score.high)})"
    error = f"; {measure(found.figures[METRES])} m" if METRES in found.figures else ""
    mark = "broken" if row.verdict is Verdict.BROKEN else ("over" if row.leak > limit else "under")
    return (
        found.adversary.value,
        row.learns,
        found.measure,
        f"{success}{error}",
        measure(found.blind),
        row.guarantee.sentence,
        row.verdict.value,
        mark,
    )
