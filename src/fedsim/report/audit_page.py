"""One page about one audit: who could learn what, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedsim.attack.finding import Adversary
from fedsim.audit.report import METRES, Report
from fedsim.audit.rows import NOTHING, Row, Verdict
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
    numbers = _numbered(report.rows)
    return rendered(
        "audit_page.html",
        title=f"Audit of {report.job}",
        report=report,
        headline=report.headline,
        calm=not (report.over or report.broken),
        tiles=_tiles(report),
        figures=_figures(report),
        tried=_how_hard(report),
        lines=[(_named(row, report.rows), *_cells(row, report.limit, numbers)) for row in report.rows],
        promises=list(numbers),
        advice=[(a.attack, a.setting, percent(a.leak), a.cost, a.reached) for a in report.advice],
    )


def _numbered(rows: Sequence[Row]) -> dict[str, int]:
    """Every promise once, with its number in the list below the table."""
    sentences = dict.fromkeys(row.guarantee.sentence for row in rows if row.guarantee != NOTHING)
    return {sentence: number for number, sentence in enumerate(sentences, 1)}


def _how_hard(report: Report) -> str:
    settings = report.settings
    if settings is None:
        return ""
    words, epochs = "quick, " if settings.quick else "", "epoch" if settings.epochs == 1 else "epochs"
    return (
        f"{words}at most {count(settings.most_records)} records of a table, {count(settings.epochs)} {epochs}, a place "
        f"is found within {measure(settings.metres)} m"
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
    checks = sum(row.is_check for row in report.rows)
    others = f"{count(len(report.skipped))} not; {count(checks)} {'check' if checks == 1 else 'checks'} of the build"
    tiles = [
        (count(len(report.rows) - checks), "attacks run", others),
        (count(len(report.over)), "above the limit", f"gain over guessing > {measure(report.limit)}"),
        (count(len(report.broken)), "guarantees broken", "beyond doubt"),
    ]
    if metres:
        tiles.append((f"{measure(min(metres))} m", "best location", "median error of the best attack"))
    seconds = sum(row.found.seconds for row in report.rows if row.found.seconds == row.found.seconds)
    return [*tiles, (duration(seconds), "all attacks", "on this machine")]


def _cells(row: Row, limit: float, numbers: Mapping[str, int]) -> tuple[str, ...]:
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
        _promised(row, numbers),
        row.verdict.value,
        mark,
    )


def _promised(row: Row, numbers: Mapping[str, int]) -> str:
    """The most that may be reached, and which sentence says so."""
    if row.guarantee == NOTHING:
        return "none"
    most = "" if row.guarantee.most is None else f"at most {measure(row.guarantee.most)} "
    return f"{most}({numbers[row.guarantee.sentence]})"
