"""The pages of an audit and of a privacy-utility trade-off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedsim.attack.finding import Adversary
from fedsim.audit.attack_runner import NO_GUARANTEE, AuditRow, Verdict
from fedsim.audit.report import MEDIAN_ERROR_METRES, AuditReport
from fedsim.audit.tradeoff import TradeoffPoint
from fedsim.report.charts import AttackScore, attack_scores_figure
from fedsim.report.formatting import format_count, format_duration, format_number, format_percent
from fedsim.report.page import Figure, render_template
from fedsim.report.svg import (
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

# One page about one audit: who could learn what, and what would change it


ADVERSARY_KNOWLEDGE = {
    Adversary.PRIMARY: "It has the links, the similarities, the activations and, as a party, the key.",
    Adversary.SECONDARY: "It has the gradients sent back to it and its own network.",
    Adversary.COORDINATOR: "It has the filters of all parties, and no key.",
}


def audit_page(report: AuditReport) -> str:
    """One HTML text that needs nothing else: no script, no font, no network, and no record in it."""
    numbers = _number_guarantees(report.rows)
    return render_template(
        "audit_page.html",
        title=f"Audit of {report.job}",
        report=report,
        headline=report.headline,
        calm=not (report.over or report.broken),
        tiles=_tiles(report),
        figures=_adversary_figures(report),
        tried=_effort_text(report),
        lines=[(_attack_label(row, report.rows), *_cells(row, report.limit, numbers)) for row in report.rows],
        promises=list(numbers),
        advice=[(a.attack, a.setting, format_percent(a.leak), a.cost, a.reached) for a in report.advice],
    )


def _number_guarantees(rows: Sequence[AuditRow]) -> dict[str, int]:
    """Every promise once, with its number in the list below the table."""
    sentences = dict.fromkeys(row.guarantee.sentence for row in rows if row.guarantee != NO_GUARANTEE)
    return {sentence: number for number, sentence in enumerate(sentences, 1)}


def _effort_text(report: AuditReport) -> str:
    settings = report.settings
    if settings is None:
        return ""
    words, epochs = "quick, " if settings.quick else "", "epoch" if settings.epochs == 1 else "epochs"
    return (
        f"{words}at most {format_count(settings.most_records)} records of a table, {format_count(settings.epochs)} {epochs}, a place "
        f"is found within {format_number(settings.metres)} m"
    )


def _adversary_figures(report: AuditReport) -> list[Figure]:
    drawn = []
    for who in Adversary:
        rows = [row for row in report.rows if row.found.adversary is who]
        if rows:
            drawn.append(_adversary_figure(who, rows))
    return drawn


def _adversary_figure(who: Adversary, rows: Sequence[AuditRow]) -> Figure:
    dots = [
        AttackScore(
            _attack_label(row, rows),
            row.found.score.value,
            row.found.score.low,
            row.found.score.high,
            row.found.blind,
            row.guarantee.most,
        )
        for row in rows
    ]
    caption = f"{ADVERSARY_KNOWLEDGE[who]} The short bar is blind guessing, the dashed one the most that was promised."
    return attack_scores_figure(
        dots, title=f"The {who.value}", caption=caption, axis="success; what it counts is in the table"
    )


def _attack_label(row: AuditRow, rows: Sequence[AuditRow]) -> str:
    """The attack, and the secondary where there are several."""
    return row.found.attack if len({other.about for other in rows}) == 1 else f"{row.found.attack}, {row.about}"


def _tiles(report: AuditReport) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a word more."""
    metres = [row.found.figures[MEDIAN_ERROR_METRES] for row in report.rows if MEDIAN_ERROR_METRES in row.found.figures]
    checks = sum(row.is_check for row in report.rows)
    others = f"{format_count(len(report.skipped))} not; {format_count(checks)} {'check' if checks == 1 else 'checks'} of the build"
    tiles = [
        (format_count(len(report.rows) - checks), "attacks run", others),
        (format_count(len(report.over)), "above the limit", f"gain over guessing > {format_number(report.limit)}"),
        (format_count(len(report.broken)), "guarantees broken", "beyond doubt"),
    ]
    if metres:
        tiles.append((f"{format_number(min(metres))} m", "best location", "median error of the best attack"))
    seconds = sum(row.found.seconds for row in report.rows if row.found.seconds == row.found.seconds)
    return [*tiles, (format_duration(seconds), "all attacks", "on this machine")]


def _cells(row: AuditRow, limit: float, numbers: Mapping[str, int]) -> tuple[str, ...]:
    """Who, what is learnt, measure, success, guessing, promise, verdict, mark."""
    found = row.found
    success = (
        f"{format_number(found.score.value)} ({format_number(found.score.low)} to {format_number(found.score.high)})"
    )
    error = f"; {format_number(found.figures[MEDIAN_ERROR_METRES])} m" if MEDIAN_ERROR_METRES in found.figures else ""
    mark = "broken" if row.verdict is Verdict.BROKEN else ("over" if row.leak > limit else "under")
    return (
        found.adversary.value,
        row.learns,
        found.measure,
        f"{success}{error}",
        format_number(found.blind),
        _guarantee_cell(row, numbers),
        row.verdict.value,
        mark,
    )


def _guarantee_cell(row: AuditRow, numbers: Mapping[str, int]) -> str:
    """The most that may be reached, and which sentence says so."""
    if row.guarantee == NO_GUARANTEE:
        return "none"
    most = "" if row.guarantee.most is None else f"at most {format_number(row.guarantee.most)} "
    return f"{most}({numbers[row.guarantee.sentence]})"


# One page about one sweep: what the attacker gains against what the model loses


EDGE_SHARE = 0.2


def tradeoff_page(points: Sequence[TradeoffPoint], *, title: str) -> str:
    """One HTML text that needs nothing else."""
    return render_template("tradeoff_page.html", title=title, figures=[_tradeoff_figure(points)], points=points)


def _tradeoff_figure(points: Sequence[TradeoffPoint]) -> Figure:
    """Gain from left to right, quality upwards; the settings of one seed joined in their order."""
    low, high = nice_range(min(point.quality for point in points), max(point.quality for point in points))
    x, y, shown = x_scale(0.0, 1.0), y_scale(low, high), tick_values(0.0, 1.0)
    metric = points[0].metric
    labels = [tick_label(value, tick_step(0.0, 1.0)) for value in shown]
    parts = [left_axis(y, f"validation {metric}"), bottom_axis(x, shown, labels, "what the best attacker gains")]
    for seed in dict.fromkeys(point.seed for point in points):
        here = [point for point in points if point.seed == seed]
        parts.append(svg_path([(x(point.gain), y(point.quality)) for point in here], class_="line"))
        for point in here:
            words = f"{point.setting}: gain {format_number(point.gain)}, {metric} {format_number(point.quality)}"
            parts.append(element("circle", tooltip(words), class_="bar", cx=x(point.gain), cy=y(point.quality), r=4.5))
    for point in (points[0], points[-1]):
        place = {"x": x(point.gain), "y": y(point.quality) - 8}
        parts.append(element("text", point.setting, class_="tick", text_anchor=_label_anchor(point.gain), **place))
    better = "lower" if metric == "rmse" else "higher"
    rows = tuple(
        (point.setting, format_number(point.gain), format_number(point.quality), point.attack) for point in points
    )
    head, said = ("setting", "gain", metric, "best attack"), f"{len(points)} settings"
    title = "What protection costs"
    caption = f"Left is safer; {better} is the better model. 0 is blind guessing, 1 certainty."
    return Figure(title, caption, svg_image(title, said, join_markup(parts)), head, rows)


def _label_anchor(gain: float) -> str:
    """Words stay within the figure."""
    if gain < EDGE_SHARE:
        return "start"
    return "end" if gain > 1.0 - EDGE_SHARE else "middle"
