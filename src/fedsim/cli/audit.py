"""Run attacks on a job's own tables and report the results (``fedsim audit``, ``fedsim privacy table`` and ``tradeoff``)."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import typer

from fedsim.attack.finding import Adversary
from fedsim.audit.attack_runner import AuditRow, Verdict
from fedsim.audit.report import MEDIAN_ERROR_METRES, AuditReport, AuditSettings
from fedsim.audit.run import audit_job, prepare_audit, read_audit_tables
from fedsim.audit.tradeoff import TradeoffPoint, sweep_mechanism
from fedsim.cli.options import parse_names, print_nothing
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.errors import FileError, SettingError
from fedsim.privacy.bounds import lowest_bound, sigma_for_bound
from fedsim.privacy.differential_privacy import gaussian_epsilon, link_sensitivity
from fedsim.report.audit_page import audit_page, tradeoff_page
from fedsim.report.formatting import format_duration, format_number
from fedsim.report.page import write_page
from fedsim.runs.run_folder import make_private_folder
from fedsim.storage.files import atomic_write

# The work behind ``fedsim audit``: its report for people, for programs and as a page


VERDICT_LABELS = {Verdict.KEPT: "kept", Verdict.BROKEN: "BROKEN", Verdict.UNTESTED: "untested", Verdict.NONE: "-"}
WIDTH = 118


def run_audit(
    job: Path, parties: Sequence[Path], settings: AuditSettings, out: Path, *, quiet: bool, as_json: bool
) -> bool:
    """Audit, write both files, print; true where the limit is exceeded or a guarantee broken."""
    silent = quiet or as_json or not sys.stderr.isatty()
    files = [read_party_file(path) for path in parties]
    _prepare_output_folder(out)
    report = audit_job(read_job(job), files, settings, print_nothing if silent else _print_progress)
    page = audit_page(report)  # both are ready before either is written
    text = json.dumps(report.as_dict(), indent=1, allow_nan=False)
    write_page(page, out.with_name(f"{out.name}.html"))
    with atomic_write(out.with_name(f"{out.name}.json")) as part:
        part.write_text(f"{text}\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report.as_dict(), allow_nan=False))
    elif not quiet:
        for line in audit_lines(report):
            typer.echo(line)
        typer.echo(f"written: {out}.html, {out}.json")
    return bool(report.over or report.broken)


def _prepare_output_folder(out: Path) -> None:
    """Where a party keeps its audits nobody else may look: they say what is weak."""
    make_private_folder(out.parent, remedy="choose another --out")
    if not os.access(out.parent, os.W_OK):
        raise FileError(f"nothing can be written into {out.parent}; choose another --out")


def _print_progress(words: str) -> None:
    typer.echo(f"  {words} ...", err=True)


def free_memory() -> int:
    """Bytes that are free on this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def audit_lines(report: AuditReport) -> Iterator[str]:
    """The report in some forty lines."""
    yield from textwrap.wrap(report.headline, WIDTH)
    for note in report.notes:
        yield from textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="      ")
    yield ""
    yield f"{'attack':<32}{'success (95 %)':<28}{'guessing':<10}{'error':<10}{'promised':<10}{'verdict':<9}cost"
    for who in Adversary:
        rows = [row for row in report.rows if row.found.adversary is who]
        if rows:
            yield from _adversary_lines(who, rows, report.limit)
    yield ""
    yield from _advice_lines(report)
    yield "not attacked:"
    for skipped in report.skipped:
        yield textwrap.shorten(f"  {skipped.who.value}: {skipped.what} - {skipped.why}", WIDTH, placeholder=" ...")


def _adversary_lines(who: Adversary, rows: Sequence[AuditRow], limit: float) -> Iterator[str]:
    """The attacks of one adversary, one secondary after the other."""
    abouts = dict.fromkeys(row.about for row in rows)
    for about in abouts:
        yield f"by the {who.value}, in its links with {about}" if len(abouts) > 1 else f"by the {who.value}"
        yield from (_attack_line(row, limit) for row in rows if row.about == about)


def _attack_line(row: AuditRow, limit: float) -> str:
    found = row.found
    success = (
        f"{format_number(found.score.value)} ({format_number(found.score.low)} to {format_number(found.score.high)})"
    )
    error = f"{found.figures[MEDIAN_ERROR_METRES]:,.0f} m" if MEDIAN_ERROR_METRES in found.figures else ""
    promised = "none" if row.guarantee.most is None else f"{row.guarantee.most:.3g}"
    mark = "!" if row.leak > limit else " "
    return (
        f"{mark} {found.attack:<30}{success:<28}{format_number(found.blind):<10}{error:<10}{promised:<10}"
        f"{VERDICT_LABELS[row.verdict]:<9}{format_duration(found.seconds)}"
    )


def _advice_lines(report: AuditReport) -> Iterator[str]:
    if report.over and not report.advice:
        yield f"{len(report.over)} of {len(report.rows)} attacks gain more than {report.limit:g}; no setting was sought"
    elif report.advice:
        yield f"to stay under {report.limit:g}:"
    for advice in report.advice:
        means = f"{advice.setting} ({format_number(advice.leak)}; {advice.cost})"
        words = means if advice.reached else f"not even {means}"
        words = words if advice.setting else f"no setting was found; {advice.cost}"
        yield textwrap.shorten(f"  {advice.attack}: {words}", WIDTH, placeholder=" ...")


# The work behind ``fedsim privacy table`` and ``fedsim privacy tradeoff``


DELTA = 1e-5


@dataclass(frozen=True)
class PrivacyTableRow:
    """A bound, the noise it takes, and the epsilon that this gives."""

    tau: float
    sigma: float
    epsilon: float


def print_privacy_table(
    spread: float | None, taus: str, links: int, linkage: tuple[Path | None, Sequence[Path]], *, as_json: bool
) -> None:
    """One line per tau; a spread comes from the caller or from a linkage of the caller's tables."""
    job, parties = linkage
    if (spread is None) == (job is None):
        raise SettingError("the table needs one spread: give --spread, or --job with --party")
    found = _distance_spread(job, parties) if job is not None else float(spread or 0.0)
    sensitivity = link_sensitivity(links=links, changed_bits=1, spread=found)
    noises = [(tau, sigma_for_bound(tau, found)) for tau in _parse_numbers(taus)]
    rows = [
        PrivacyTableRow(tau, sigma, gaussian_epsilon(sigma=sigma, delta=DELTA, sensitivity=sensitivity))
        for tau, sigma in noises
    ]
    if as_json:
        figures = {"spread": found, "floor": lowest_bound(found), "delta": DELTA, "links": links}
        typer.echo(json.dumps({**figures, "rows": [asdict(row) for row in rows]}))
        return
    typer.echo(f"spread {found:.6g}; no tau at or below {lowest_bound(found):.4e} can be promised")
    typer.echo(f"{'tau':<12}{'sigma':<14}epsilon (delta {DELTA:g}, {links} links, filters one bit apart)")
    for row in rows:
        typer.echo(f"{row.tau:<12g}{row.sigma:<14.6g}{row.epsilon:.4g}")
    typer.echo("tau speaks of whole Hamming distances: in metres or degrees it changes with the unit")


def run_tradeoff(
    job: Path,
    parties: Sequence[Path],
    asked: tuple[Sequence[AuditSettings], str],
    out: Path,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Sweep for every seed, write both files, print a table."""
    described, files, (each, sweep) = read_job(job), [read_party_file(path) for path in parties], asked
    points = [
        point for settings in each for point in sweep_mechanism(described, files, settings, sweep, lambda _: None)
    ]
    page = tradeoff_page(points, title=f"{described.name}: {sweep}")
    write_page(page, out.with_name(f"{out.name}.html"))
    about = {"format": "fedsim tradeoff 1", "job": described.hash, "sweep": sweep}
    found = {**about, "points": [point.as_dict() for point in points]}
    with atomic_write(out.with_name(f"{out.name}.json")) as part:
        part.write_text(f"{json.dumps(found, indent=1, allow_nan=False)}\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found, allow_nan=False))
    elif not quiet:
        _print_tradeoff(points)
        typer.echo(f"written: {out}.html, {out}.json")


def _print_tradeoff(points: Sequence[TradeoffPoint]) -> None:
    typer.echo(f"{'setting':<24}{'attacker gains':<16}{'validation ' + points[0].metric:<20}best attack")
    for setting in dict.fromkeys(point.setting for point in points):
        here = [point for point in points if point.setting == setting]
        gain, quality = (float(np.mean([getattr(point, name) for point in here])) for name in ("gain", "quality"))
        attacks = ", ".join(dict.fromkeys(point.attack for point in here))
        typer.echo(f"{setting:<24}{gain:<16.3f}{format_number(quality):<20}{attacks}")


def _distance_spread(job: Path, parties: Sequence[Path]) -> float:
    described, settings = read_job(job), AuditSettings()
    files = [read_party_file(path) for path in parties]
    tables = read_audit_tables(described, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    linkage = prepare_audit(described, tables, next(iter(tables.secondaries)), settings)[0].linkage
    return linkage.view.known_scale().deviation


def _parse_numbers(taus: str) -> list[float]:
    try:
        return [float(word) for word in parse_names(taus)]
    except ValueError:
        raise SettingError("--taus is a list of numbers between commas, such as 0.01,0.001") from None
