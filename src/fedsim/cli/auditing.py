"""The work behind ``fedsim audit``: its report for people, for programs and as a page."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from fedsim.attack.finding import Adversary
from fedsim.audit.report import METRES, Report
from fedsim.audit.rows import Row, Verdict
from fedsim.audit.run import audit_job
from fedsim.audit.settings import Settings
from fedsim.cli.options import keep_quiet
from fedsim.errors import FileError
from fedsim.linkage.whole_file import whole_file
from fedsim.party.job import read_job
from fedsim.party.party_file import read_party_file
from fedsim.party.run_folder import private_folder
from fedsim.report.audit_page import audit_page
from fedsim.report.page import write_page
from fedsim.report.words import duration, measure

MARKS = {Verdict.KEPT: "kept", Verdict.BROKEN: "BROKEN", Verdict.UNTESTED: "untested", Verdict.NONE: "-"}
WIDTH = 118


def audit_and_tell(
    job: Path, parties: Sequence[Path], settings: Settings, out: Path, *, quiet: bool, as_json: bool
) -> bool:
    """Audit, write both files, print; true where the limit is exceeded or a guarantee broken."""
    silent = quiet or as_json or not sys.stderr.isatty()
    files = [read_party_file(path) for path in parties]
    _make_folder(out)
    report = audit_job(read_job(job), files, settings, keep_quiet if silent else _progress)
    page = audit_page(report)  # both are ready before either is written
    text = json.dumps(report.as_dict(), indent=1, allow_nan=False)
    write_page(page, out.with_name(f"{out.name}.html"))
    with whole_file(out.with_name(f"{out.name}.json")) as part:
        part.write_text(f"{text}\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report.as_dict(), allow_nan=False))
    elif not quiet:
        for line in lines_of(report):
            typer.echo(line)
        typer.echo(f"written: {out}.html, {out}.json")
    return bool(report.over or report.broken)


def _make_folder(out: Path) -> None:
    """Where a party keeps its audits nobody else may look: they say what is weak."""
    private_folder(out.parent, remedy="choose another --out")
    if not os.access(out.parent, os.W_OK):
        raise FileError(f"nothing can be written into {out.parent}; choose another --out")


def _progress(words: str) -> None:
    typer.echo(f"  {words} ...", err=True)


def free_memory() -> int:
    """Bytes that are free on this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def lines_of(report: Report) -> Iterator[str]:
    """The report in some forty lines."""
    yield from textwrap.wrap(report.headline, WIDTH)
    for note in report.notes:
        yield from textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="      ")
    yield ""
    yield f"{'attack':<32}{'success (95 %)':<28}{'guessing':<10}{'error':<10}{'promised':<10}{'verdict':<9}cost"
    for who in Adversary:
        rows = [row for row in report.rows if row.found.adversary is who]
        if rows:
            yield from _by(who, rows, report.limit)
    yield ""
    yield from _advice(report)
    yield "not attacked:"
    for skipped in report.skipped:
        yield textwrap.shorten(f"  {skipped.who.value}: {skipped.what} - {skipped.why}", WIDTH, placeholder=" ...")


def _by(who: Adversary, rows: Sequence[Row], limit: float) -> Iterator[str]:
    """The attacks of one adversary, one secondary after the other."""
    abouts = dict.fromkeys(row.about for row in rows)
    for about in abouts:
        yield f"by the {who.value}, in its links with {about}" if len(abouts) > 1 else f"by the {who.value}"
        yield from (_line(row, limit) for row in rows if row.about == about)


def _line(row: Row, limit: float) -> str:
    found = row.found
    success = f"{measure(found.score.value)} ({measure(found.score.low)} to {measure(found.score.high)})"
    error = f"{found.figures[METRES]:,.0f} m" if METRES in found.figures else ""
    promised = "none" if row.guarantee.most is None else f"{row.guarantee.most:.3g}"
    mark = "!" if row.leak > limit else " "
    return (
        f"{mark} {found.attack:<30}{success:<28}{measure(found.blind):<10}{error:<10}{promised:<10}"
        f"{MARKS[row.verdict]:<9}{duration(found.seconds)}"
    )


def _advice(report: Report) -> Iterator[str]:
    if report.over and not report.advice:
        yield f"{len(report.over)} of {len(report.rows)} attacks gain more than {report.limit:g}; no setting was sought"
    elif report.advice:
        yield f"to stay under {report.limit:g}:"
    for advice in report.advice:
        means = f"{advice.setting} ({measure(advice.leak)}; {advice.cost})"
        words = means if advice.reached else f"not even {means}"
        words = words if advice.setting else f"no setting was found; {advice.cost}"
        yield textwrap.shorten(f"  {advice.attack}: {words}", WIDTH, placeholder=" ...")
