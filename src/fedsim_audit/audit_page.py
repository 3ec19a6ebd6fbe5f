"""The page of an audit."""

from collections.abc import Mapping

from fedsim.report import page
from fedsim.report.charts import attack_figures
from fedsim.report.formatting import format_duration, format_number, pluralise
from fedsim_audit.attacks.attack_finding import MEDIAN_ERROR_METRES
from fedsim_audit.audit_report import NO_GUARANTEE, AuditReport, AuditRow, Verdict


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
    tiles = [
        (f"{len(report.rows):,}", "attacks run", f"{len(report.skipped):,} skipped"),
        (f"{len(report.over):,}", "above the limit", f"gain over guessing > {format_number(report.limit)}"),
        (f"{len(report.broken):,}", "guarantees broken", "with 99.9 % confidence"),
    ]
    if metres:
        tiles.append((f"{format_number(min(metres))} m", "best location", "median error of the best attack"))
    seconds = sum(row.found.seconds for row in report.rows if row.found.seconds == row.found.seconds)
    tiles.append((format_duration(seconds), "all attacks", "on this machine"))
    return page.render_template(
        "audit_page.html",
        "fedsim_audit",
        title=f"Audit of {report.job}",
        report=report,
        calm=not (report.over or report.broken),
        tiles=tiles,
        figures=attack_figures([row.as_dict() for row in report.rows], report.limit),
        effort=effort,
        rows=[_cells(row, report.limit, numbers, several) for row in report.rows],
        guarantees=list(numbers),
    )


def plot_audit(report: AuditReport) -> page.FigureGroup:
    """Return the charts of an audit for a notebook."""
    figures = attack_figures([row.as_dict() for row in report.rows], report.limit)
    return page.FigureGroup(f"Audit of job {report.job}", tuple(figures))


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
        f"{row.explanation} To limit it, {row.remedy}." if row.fails(limit) else "",
        found.measure,
        f"{value} ({low} to {high}){error}",
        format_number(found.blind),
        "none" if guarantee == NO_GUARANTEE else f"{most}({numbers[guarantee.sentence]})",
        row.verdict.value,
        "broken" if row.verdict is Verdict.BROKEN else ("over" if row.leak > limit else "under"),
    )
