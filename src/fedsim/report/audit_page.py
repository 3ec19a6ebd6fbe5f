"""The page of an audit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedsim.attack.finding import MEDIAN_ERROR_METRES, Adversary
from fedsim.audit.report import NO_GUARANTEE, AuditReport, AuditRow, Verdict
from fedsim.config import policy
from fedsim.report import charts, page
from fedsim.report.formatting import format_duration, format_number, format_percent, pluralise

ADVERSARY_KNOWLEDGE = {
    Adversary.PRIMARY: "It knows the links, the similarities, the activations and, as a party, the linkage key.",
    Adversary.SECONDARY: "It knows the gradients sent to it and its own network.",
    Adversary.COORDINATOR: "It knows the filters of all parties, but no key.",
}
MARKS_NOTE = "The short line marks blind guessing, the dashed line the upper bound that the job guarantees."


def audit_page(report: AuditReport) -> str:
    """Return a self-contained HTML page about an audit, without any record."""
    sentences = dict.fromkeys(row.guarantee.sentence for row in report.rows if row.guarantee != NO_GUARANTEE)
    numbers = {sentence: number for number, sentence in enumerate(sentences, 1)}
    several = len({row.about for row in report.rows}) > 1
    effort, settings = "", report.settings
    if settings is not None:
        effort = (
            f"{'quick, ' if settings.quick else ''}at most {settings.most_records:,} records per table, "
            f"{pluralise(settings.epochs, 'epoch')}; a place counts as found within {format_number(settings.metres)} m"
        )
    metres = [row.found.figures[MEDIAN_ERROR_METRES] for row in report.rows if MEDIAN_ERROR_METRES in row.found.figures]
    checks = sum(row.is_check for row in report.rows)
    others = f"{len(report.skipped):,} skipped; {pluralise(checks, 'build check')}"
    tiles = [
        (f"{len(report.rows) - checks:,}", "attacks run", others),
        (f"{len(report.over):,}", "above the limit", f"gain over guessing > {format_number(report.limit)}"),
        (f"{len(report.broken):,}", "guarantees broken", "with 99.9 % confidence"),
    ]
    if metres:
        tiles.append((f"{format_number(min(metres))} m", "best location", "median error of the best attack"))
    seconds = sum(row.found.seconds for row in report.rows if row.found.seconds == row.found.seconds)
    tiles.append((format_duration(seconds), "all attacks", "on this machine"))
    return page.render_template(
        "audit_page.html",
        title=f"Audit of {report.job}",
        report=report,
        calm=not (report.over or report.broken),
        tiles=tiles,
        figures=attack_figures([row.as_dict() for row in report.rows], report.limit),
        effort=effort,
        rows=[_cells(row, report.limit, numbers, several) for row in report.rows],
        guarantees=list(numbers),
        advice=[(a.attack, a.setting, format_percent(a.leak), a.cost, a.reached) for a in report.advice],
    )


def plot_audit(report: AuditReport) -> page.FigureGroup:
    """Return the charts of an audit for a notebook."""
    figures = attack_figures([row.as_dict() for row in report.rows], report.limit)
    return page.FigureGroup(f"Audit of job {report.job}", tuple(figures))


def attack_figures(findings: Sequence[Mapping[str, Any]], limit: float) -> list[page.Figure]:
    """Draw the success of all attacks, one figure per adversary, from the findings of an audit in JSON.

    Attacks that gain more than the limit, or break a guarantee, are red.
    """
    figures = []
    for adversary in Adversary:
        found = [finding for finding in findings if finding["adversary"] == adversary.value]
        if not found:
            continue
        several = len({finding["about"] for finding in findings}) > 1
        rows, cells = [], []
        for one in found:
            name = f"{one['attack']}, {one['about']}" if several else one["attack"]
            numbers = [one["score"]["value"], one["score"]["low"], one["score"]["high"], one["blind"]]
            value, low, high, guess = map(format_number, numbers)
            words, promised = f"{name}: {value} ({low} to {high}), guessing {guess}", one["promised_at_most"]
            bad = one["verdict"] == policy.BROKEN_VERDICT or one["leak"] > limit
            middle, left, right, blind = (min(1.0, max(0.0, number)) for number in numbers)
            rows.append(
                charts.ChartRow(name, middle, value, (left, right), (), blind, promised, bad=bad, tooltip=words)
            )
            cells.append((name, value, f"{low} to {high}", guess))
        caption = f"{ADVERSARY_KNOWLEDGE[adversary]} {MARKS_NOTE}"
        labels = charts.ChartLabels(f"Attacks by the {adversary.value}", caption, "success", ("", ""))
        head = ("attack", "success", "95 % interval", "guessing")
        figures.append(replace(charts.rows_figure(rows, labels, include=(0.0, 1.0)), head=head, rows=tuple(cells)))
    return figures


def _cells(row: AuditRow, limit: float, numbers: Mapping[str, int], several: bool) -> tuple[str, ...]:
    """Return name, adversary, secret, explanation of a failing attack, measure, success, guessing, guarantee, verdict
    and the class of the table row."""
    found, guarantee = row.found, row.guarantee
    value, low, high = (format_number(part) for part in (found.score.value, found.score.low, found.score.high))
    error = f"; {format_number(found.figures[MEDIAN_ERROR_METRES])} m" if MEDIAN_ERROR_METRES in found.figures else ""
    most = "" if guarantee.most is None else f"at most {format_number(guarantee.most)} "
    return (
        f"{found.attack}, {row.about}" if several else found.attack,
        found.adversary.value,
        row.learns,
        row.explanation if row.fails(limit) else "",
        found.measure,
        f"{value} ({low} to {high}){error}",
        format_number(found.blind),
        "none" if guarantee == NO_GUARANTEE else f"{most}({numbers[guarantee.sentence]})",
        row.verdict.value,
        "broken" if row.verdict is Verdict.BROKEN else ("over" if row.leak > limit else "under"),
    )
