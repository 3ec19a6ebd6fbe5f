"""Attack a job's own tables and report the results (``fedsim audit``, ``privacy table`` and ``privacy tradeoff``)."""

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from fedsim.attack.finding import MEDIAN_ERROR_METRES, Adversary
from fedsim.audit.report import AuditReport, AuditRow, AuditSettings, Verdict
from fedsim.audit.run import audit_job, prepare_audit, read_audit_tables, sweep_mechanism
from fedsim.cli.options import OutputMode, parse_names
from fedsim.cli.output import print_lines, print_renderable, print_table, progress_printer, write_json
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.errors import FileError, SettingError
from fedsim.privacy.bounds import lowest_bound, sigma_for_bound
from fedsim.privacy.differential_privacy import gaussian_epsilon, link_sensitivity
from fedsim.report.audit_page import audit_page, tradeoff_page
from fedsim.report.formatting import format_duration, format_number
from fedsim.report.page import write_page
from fedsim.runs.run_folder import make_private_folder

VERDICT_LABELS = {Verdict.KEPT: "kept", Verdict.BROKEN: "BROKEN", Verdict.UNTESTED: "untested", Verdict.NONE: "-"}
COLUMNS = ("attack", "success (95 %)", "guessing", "error", "promised", "verdict", "time")
WIDTH = 118
DELTA = 1e-5


def run_audit(job: Path, parties: Sequence[Path], settings: AuditSettings, out: Path, mode: OutputMode) -> bool:
    """Audit a job, write and print the report; return whether the limit is exceeded or a guarantee broken."""
    files = [read_party_file(path) for path in parties]
    make_private_folder(out.parent, remedy="choose another --out")  # an audit says what is weak
    if not os.access(out.parent, os.W_OK):
        raise FileError(f"cannot write to {out.parent}; choose another --out", code="folder-not-writable")
    settings = replace(settings, memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))  # what is free
    report = audit_job(read_job(job), files, settings, progress_printer(silent=mode.silent or not sys.stderr.isatty()))
    page, value = audit_page(report), report.as_dict()  # both are ready before either is written
    write_page(page, out.with_name(f"{out.name}.html"))
    write_json(out.with_name(f"{out.name}.json"), value)
    mode.show(value, lambda: _print_audit(report, out))
    return bool(report.over or report.broken)


def _print_audit(report: AuditReport, out: Path) -> None:
    print_lines(textwrap.wrap(report.headline, WIDTH))
    for note in report.notes:
        print_lines(textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="      "))
    typer.echo()
    print_renderable(findings_table(report))
    typer.echo()
    if report.over and not report.advice:
        over = f"{len(report.over)} of {len(report.rows)} attacks gain more than {report.limit:g}"
        typer.echo(f"{over}; settings not searched")
    print_lines([f"to stay under {report.limit:g}:"] if report.advice else [])
    for advice in report.advice:
        found = f"{advice.setting} ({format_number(advice.leak)}; {advice.cost})" if advice.setting else ""
        text = (found if advice.reached else f"not even {found}") if found else f"no setting found; {advice.cost}"
        typer.echo(textwrap.shorten(f"  {advice.attack}: {text}", WIDTH, placeholder=" ..."))
    print_lines(["not attacked:"] if report.skipped else [])
    for skipped in report.skipped:
        line = f"  {skipped.who.value}: {skipped.what} - {skipped.why}"
        typer.echo(textwrap.shorten(line, WIDTH, placeholder=" ..."))
    typer.echo(f"Wrote {out}.html and {out}.json")


def findings_table(report: AuditReport) -> Table:
    """Return the attacks of each adversary, one secondary after the other."""
    table = Table(*COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for adversary in Adversary:
        rows = [row for row in report.rows if row.found.adversary is adversary]
        secondaries = list(dict.fromkeys(row.about for row in rows))
        for about in secondaries:
            links = f", links with {about}" if len(secondaries) > 1 else ""
            table.add_row(Text(f"by the {adversary.value}{links}", style="bold", no_wrap=True))
            for row in rows:
                if row.about == about:
                    table.add_row(*map(Text, _attack_cells(row, report.limit)))
    return table


def _attack_cells(row: AuditRow, limit: float) -> Iterator[str]:
    found = row.found
    yield f"{'!' if row.leak > limit else ' '} {found.attack}"
    low, high = format_number(found.score.low), format_number(found.score.high)
    yield f"{format_number(found.score.value)} ({low} to {high})"
    yield format_number(found.blind)
    yield f"{found.figures[MEDIAN_ERROR_METRES]:,.0f} m" if MEDIAN_ERROR_METRES in found.figures else ""
    yield "none" if row.guarantee.most is None else f"{row.guarantee.most:.3g}"
    yield VERDICT_LABELS[row.verdict]
    yield format_duration(found.seconds)


def print_privacy_table(
    spread: float | None, taus: str, links: int, tables: tuple[Path | None, Sequence[Path]], mode: OutputMode
) -> None:
    """Print noise and epsilon for every tau; the spread is given, or measured on the tables of a job."""
    job, parties = tables
    if (spread is None) == (job is None):
        raise SettingError("use either --spread, or --job with --party", code="spread-or-job")
    measured = float(spread or 0.0)
    if job is not None:
        agreed, settings, files = read_job(job), AuditSettings(), [read_party_file(path) for path in parties]
        read = read_audit_tables(agreed, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
        setup = prepare_audit(agreed, read, next(iter(read.secondaries)), settings)[0]
        measured = setup.linkage.view.known_scale().deviation
    try:
        bounds = [float(tau) for tau in parse_names(taus)]
    except ValueError:
        message = "--taus is not a list of numbers separated by commas, such as 0.01,0.001"
        raise SettingError(message, code="invalid-taus") from None
    sensitivity = link_sensitivity(links=links, changed_bits=1, spread=measured)
    noise = [(tau, sigma_for_bound(tau, measured)) for tau in bounds]
    rows = [
        {"tau": tau, "sigma": sigma, "epsilon": gaussian_epsilon(sigma=sigma, delta=DELTA, sensitivity=sensitivity)}
        for tau, sigma in noise
    ]
    lowest = lowest_bound(measured)

    def print_text() -> None:
        typer.echo(f"spread {measured:.6g}; no tau at or below {lowest:.4e} can be guaranteed")
        title = f"epsilon (delta {DELTA:g}, {links} links, filters that differ in one bit)"
        cells = [(f"{row['tau']:g}", f"{row['sigma']:.6g}", f"{row['epsilon']:.4g}") for row in rows]
        print_table(("tau", "sigma", title), cells)
        typer.echo("tau applies to integer Hamming distances; for metres or degrees it would depend on the unit")

    mode.show({"spread": measured, "floor": lowest, "delta": DELTA, "links": links, "rows": rows}, print_text)


def run_tradeoff(
    job_path: Path, parties: Sequence[Path], plan: tuple[Sequence[AuditSettings], str], out: Path, mode: OutputMode
) -> None:
    """Sweep one protection for every seed, write both files and print a table."""
    job, files, (settings, sweep) = read_job(job_path), [read_party_file(path) for path in parties], plan
    points = [point for each in settings for point in sweep_mechanism(job, files, each, sweep, lambda _: None)]
    value = {"format": "fedsim tradeoff 1", "job": job.hash, "sweep": sweep, "points": [p.as_dict() for p in points]}
    write_page(tradeoff_page(points, title=f"{job.name}: {sweep}"), out.with_name(f"{out.name}.html"))
    write_json(out.with_name(f"{out.name}.json"), value)

    def print_text() -> None:
        rows = []
        for setting in dict.fromkeys(point.setting for point in points):
            here = [point for point in points if point.setting == setting]
            gain, quality = (float(np.mean([getattr(point, name) for point in here])) for name in ("gain", "quality"))
            attacks = ", ".join(dict.fromkeys(point.attack for point in here))
            rows.append((setting, f"{gain:.3f}", format_number(quality), attacks))
        print_table(("setting", "attacker's gain", f"validation {points[0].metric}", "best attack"), rows)
        typer.echo(f"Wrote {out}.html and {out}.json")

    mode.show(value, print_text)
