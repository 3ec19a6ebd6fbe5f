"""Attack a job's tables and convert noise to bounds (``fedsim audit``, ``fedsim privacy``)."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from fedsim.cli.options import OutputMode, parse_names
from fedsim.cli.output import (
    as_text,
    print_lines,
    print_renderable,
    print_table,
    progress_bar,
    wrap_text,
    write_json,
)
from fedsim.config import read_job, read_party_file
from fedsim.config.stored_audit import Adversary, audit_path, read_stored_audit
from fedsim.errors import FileError, SettingError
from fedsim.privacy.bounds import bayes_success, lowest_bound, sigma_for_bound
from fedsim.privacy.mechanisms import gaussian_epsilon
from fedsim.report.formatting import format_duration, format_number
from fedsim.report.page import write_page
from fedsim.runs.run_folder import make_private_folder
from fedsim_audit.attacks.attack_finding import MEDIAN_ERROR_METRES
from fedsim_audit.audit_page import audit_page
from fedsim_audit.audit_report import AuditReport, AuditRow, AuditSettings, Verdict
from fedsim_audit.audit_run import audit_job, prepare_audit, read_audit_tables

VERDICT_LABELS = {
    Verdict.KEPT: "kept",
    Verdict.BROKEN: "BROKEN",
    Verdict.UNTESTED: "untested",
    Verdict.DISCLOSED: "disclosed",
    Verdict.NONE: "-",
}
DELTA = 1e-5  # of the epsilon that is printed
COLUMNS = ("attack", "success (95 %)", "guessing", "error", "promised", "verdict", "time")


def _wrap_item(text: str) -> str:
    """Return an indented entry of a list, wrapped."""
    return wrap_text("  ", text, hanging=2)


def run_audit(job: Path, parties: Sequence[Path], settings: AuditSettings, out: Path, mode: OutputMode) -> bool:
    """Audit a job, write and print the report; return whether the limit is exceeded or a guarantee broken."""
    files = [read_party_file(path) for path in parties]
    make_private_folder(out.parent, remedy="choose another --out")  # an audit says what is weak
    if not os.access(out.parent, os.W_OK):
        raise FileError(f"cannot write to {out.parent}; choose another --out", code="folder-not-writable")
    settings = replace(settings, memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))  # what is free
    agreed = read_job(job)
    with progress_bar("auditing", hidden=mode.silent) as move:
        report = audit_job(agreed, files, settings, lambda share: move(round(1000 * share), 1000) if move else None)
    page, value = audit_page(report), report.as_dict()  # both are ready before either is written
    write_page(page, out.with_name(f"{out.name}.html"))
    write_json(out.with_name(f"{out.name}.json"), value)
    for own in files:
        if own.data is not None and not (settings.quick and read_stored_audit(agreed, own)):  # the thorough one stays
            make_private_folder(audit_path(agreed, own).parent)
            write_json(audit_path(agreed, own), value)
    mode.show(value, lambda: _print_audit(report, out))
    return bool(report.over or report.broken)


def _print_audit(report: AuditReport, out: Path) -> None:
    typer.echo(wrap_text("", report.headline))
    print_lines(wrap_text("note: ", note) for note in report.notes)
    typer.echo()
    print_renderable(findings_table(report))
    typer.echo()
    failing = [row for row in report.rows if row.fails(report.limit)]
    print_lines(["what the attacks marked ! mean:"] if failing else [])
    print_lines(_wrap_item(f"{row.found.attack}: {row.explanation}") for row in failing)
    remedies = dict.fromkeys(row.remedy for row in failing)
    print_lines(["what limits them:"] if remedies else [])
    print_lines(map(_wrap_item, remedies))
    print_lines(["not attacked:"] if report.skipped else [])
    print_lines(_wrap_item(f"{skipped.who.value}: {skipped.what} - {skipped.why}") for skipped in report.skipped)
    typer.echo(f"Wrote {out}.html and {out}.json")


def findings_table(report: AuditReport) -> Table:
    """Return the attacks of each adversary, one secondary after the other."""
    table = Table(*COLUMNS, box=None, pad_edge=False, padding=(0, 1, 0, 0))  # fits into 80 columns
    table.columns[0].min_width = max(len(f"by the {adversary.value}") for adversary in Adversary)
    for adversary in Adversary:
        rows = [row for row in report.rows if row.found.adversary is adversary]
        secondaries = list(dict.fromkeys(row.about for row in rows))
        for about in secondaries:
            links = f", links with {about}" if len(secondaries) > 1 else ""
            table.add_row(Text(f"by the {adversary.value}{links}", style="bold"))
            for row in rows:
                if row.about == about:
                    table.add_row(*map(as_text, _attack_cells(row, report.limit)), style=row_style(row, report.limit))
    return table


def row_style(row: AuditRow, limit: float) -> str:
    """Return the style of an attack in the terminal: red where it fails."""
    return "red" if row.fails(limit) else ""


def _attack_cells(row: AuditRow, limit: float) -> Iterator[str]:
    found = row.found
    yield f"{'!' if row.fails(limit) else ' '} {found.attack}"
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
    """Print noise and epsilon for every tau; the spread is given, or measured on the tables of a job.

    With tables, a column has the exact success of an attacker who knows how often each of their distances occurs.
    """
    job, parties = tables
    if (spread is None) == (job is None):
        raise SettingError("use either --spread, or --job with --party", code="spread-or-job")
    measured, distance = float(spread or 0.0), None
    if job is not None:
        agreed, settings, files = read_job(job), AuditSettings(), [read_party_file(path) for path in parties]
        read = read_audit_tables(agreed, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
        setup = prepare_audit(agreed, read, next(iter(read.secondaries)), settings)[0]
        measured, distance = setup.linkage.view.known_scale().deviation, setup.linkage.distances()
    try:
        bounds = [float(tau) for tau in parse_names(taus)]
    except ValueError:
        message = "--taus is not a list of numbers separated by commas, such as 0.01,0.001"
        raise SettingError(message, code="invalid-taus") from None
    # How far all similarities move together when one bit of a partner's filter changes; each moves by 1 / spread.
    sensitivity = math.sqrt(links) / measured
    rows = []
    for tau in bounds:
        sigma = sigma_for_bound(tau, measured)
        row = {"tau": tau, "sigma": sigma}
        if distance is not None:
            row["bayes"] = bayes_success(sigma, measured, distance)
        row["epsilon"] = gaussian_epsilon(sigma=sigma, delta=DELTA, sensitivity=sensitivity)
        rows.append(row)
    lowest = lowest_bound(measured)

    def print_text() -> None:
        typer.echo(f"spread {measured:.6g}; no tau at or below {lowest:.4e} can be guaranteed")
        title = f"epsilon (delta {DELTA:g}, {links} links, filters that differ in one bit)"
        forms = {"tau": "g", "sigma": ".6g", "bayes": ".4g", "epsilon": ".4g"}
        cells = [tuple(format(value, forms[name]) for name, value in row.items()) for row in rows]
        print_table(("tau", "sigma", *(("bayes",) if distance is not None else ()), title), cells)
        about = (
            "tau applies to integer Hamming distances; for metres or degrees it would depend on the unit. It assumes "
            "normal similarities and an attacker who assumes them, too; one who knows which distances are frequent "
            "guesses more"
        )
        typer.echo(wrap_text("", f"{about}{'.' if distance is None else ': column bayes, for these tables.'}"))

    mode.show({"spread": measured, "floor": lowest, "delta": DELTA, "links": links, "rows": rows}, print_text)
