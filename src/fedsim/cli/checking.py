"""The work behind ``fedsim check``: its report for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.party.check import Report, check_job
from fedsim.party.checks.finding import Finding, Level, Section
from fedsim.party.estimate import Estimate, Link
from fedsim.protocol.words import printable
from fedsim.report.words import duration, many, size

PIPED = 120  # columns where no terminal says how many there are
NAME = 14  # of them for the name of a check
COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILS: "bold red"}


def check_and_tell(
    job: Path,
    parties: Sequence[Path],
    line: tuple[float, float],
    *,
    call_peers: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> bool:
    """Check, print, and say whether all is well; ``line`` is its Mbit/s and its ping in ms."""
    link = Link(*line)
    report = check_job(job, parties, link=link, now=datetime.now(UTC), call_peers=call_peers)
    if as_json:
        typer.echo(json.dumps({"passed": report.passed, **asdict(report)}))
    elif quiet:
        _tell_faults(report)
    else:
        _tell(report, link, verbose)
    return report.passed


def _tell(report: Report, link: Link, verbose: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED)
    result, fix = _widths(report, console.width - NAME - 4)
    with console.capture() as printed:
        console.print(_rows([("Check", "Result", "How to fix" if fix else "")], result, fix), style="bold")
        for section in report.sections:
            console.print(Text(printable(section.title), style="bold"))
            findings = section.findings if verbose else tuple(_folded(section))
            console.print(_rows([_row(finding) for finding in findings], result, fix))
        if report.estimate:
            console.print(Text(f"\nestimate at {link.mbit:g} Mbit/s, ping {link.ping_ms:g} ms", style="bold"))
            lines = [(f"  {name}", value, "") for name, value in _estimate_lines(report.estimate)]
            console.print(_rows(lines, console.width - NAME - 2, 0))
        console.print(Text(f"\n{_verdict(report)}", style=COLOURS[Level.OK if report.passed else Level.FAILS]))
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())


def _widths(report: Report, room: int) -> tuple[int, int]:
    """Columns for results and for ways out; none for these where there are none."""
    fixes = [finding.fix for section in report.sections for finding in section.findings]
    fix = min(max(map(len, fixes), default=0), 2 * room // 5)
    return room - fix, fix


def _rows(rows: Sequence[tuple[str | Text, str | Text, str]], result: int, fix: int) -> Table:
    """Rows whose columns are as wide in every table."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (NAME, result, fix):
        if width:
            table.add_column(width=width, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row[: 3 if fix else 2]))
    return table


def _row(finding: Finding) -> tuple[Text, Text, str]:
    mark = "" if finding.level is Level.OK else f"{finding.level}: "
    result = Text.assemble((mark, COLOURS[finding.level]), printable(finding.result))
    return Text(f"  {finding.check}", style=COLOURS[finding.level]), result, printable(finding.fix)


def _tell_faults(report: Report) -> None:
    for section in report.sections:
        for finding in section.findings:
            if finding.level is Level.FAILS:
                fix = f"; {finding.fix}" if finding.fix else ""
                print(printable(f"error: {section.title}: {finding.result}{fix}"), file=sys.stderr)


def _folded(section: Section) -> Iterator[Finding]:
    """What is wrong or worth knowing; of all else only the names, on one line."""
    shown = [finding for finding in section.findings if finding.telling or finding.level is not Level.OK]
    yield from shown
    rest = dict.fromkeys(finding.check for finding in section.findings if finding not in shown)
    names = [name for name in rest if name not in {finding.check for finding in shown}]
    if names:
        yield Finding("ok", Level.OK, ", ".join(names))


def _estimate_lines(estimate: Estimate) -> Iterator[tuple[str, str]]:
    work = (
        "under a second" if estimate.linkage_seconds < 1 else f"about {duration(estimate.linkage_seconds)} of one core"
    )
    memory, line = size(estimate.coordinator_memory), duration(estimate.linkage_line_seconds)
    yield (
        "linkage",
        f"{size(estimate.linkage_bytes)}, {line} on the line; at the coordinator {work} and {memory} of memory",
    )
    epoch, training, spent = estimate.epoch_bytes, estimate.training_bytes, estimate.training_seconds
    shared = f"{_size(epoch.least)} if all partners were shared, {_size(epoch.most)} if none"
    yield "an epoch", f"{many(estimate.steps, 'step')}: about {_size(epoch.expected)} ({shared})"
    between = f"{_size(training.least)} to {_size(training.most)}"
    yield "training", f"{many(estimate.epochs, 'epoch')}: about {_size(training.expected)} ({between})"
    between = f"{duration(spent.least)} to {duration(spent.most)}"
    yield "on the line", f"about {duration(spent.expected)} ({between}); computing comes on top"
    yield "disk", ", ".join(f"{name} {_size(need)}" for name, need in estimate.disk.items())
    yield "assumed", _assumptions(estimate)


def _size(n_bytes: float) -> str:
    return size(round(n_bytes))


def _assumptions(estimate: Estimate) -> str:
    uniform = "every candidate is a partner as often as any other; the more partners records share, the less is sent"
    return "; ".join([*estimate.assumed, uniform])


def _verdict(report: Report) -> str:
    warnings = report.count(Level.WARNING)
    also = f", {many(warnings, 'warning')}" if warnings else ""
    if report.passed:
        return f"all is ready{also}"
    failures = report.count(Level.FAILS)
    return f"{many(failures, 'check')} {'fails' if failures == 1 else 'fail'}{also}: mend this and check again"
