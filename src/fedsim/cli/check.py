"""Run the checks of a job and print findings, fixes and the estimate (``fedsim check``)."""

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

from fedsim.preflight.check import CheckReport, check_job
from fedsim.preflight.estimate import CostEstimate, NetworkLink
from fedsim.preflight.finding import CheckFinding, CheckLevel, CheckSection
from fedsim.protocol.messages import replace_unprintable
from fedsim.report.formatting import format_bytes, format_duration, pluralise

PIPED_WIDTH = 120  # columns where no terminal says how many there are
NAME_WIDTH = 14  # of them for the name of a check
LEVEL_STYLES = {CheckLevel.OK: "green", CheckLevel.WARNING: "yellow", CheckLevel.FAILS: "bold red"}


def run_check(
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
    link = NetworkLink(*line)
    report = check_job(job, parties, link=link, now=datetime.now(UTC), call_peers=call_peers)
    if as_json:
        typer.echo(json.dumps({"passed": report.passed, **asdict(report)}))
    elif quiet:
        _print_failures(report)
    else:
        _print_report(report, link, verbose)
    return report.passed


def _print_report(report: CheckReport, link: NetworkLink, verbose: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED_WIDTH)
    result, fix = _column_widths(report, console.width - NAME_WIDTH - 4)
    with console.capture() as printed:
        console.print(_aligned_grid([("Check", "Result", "How to fix" if fix else "")], result, fix), style="bold")
        for section in report.sections:
            console.print(Text(replace_unprintable(section.title), style="bold"))
            findings = section.findings if verbose else tuple(_shown_findings(section))
            console.print(_aligned_grid([_finding_cells(finding) for finding in findings], result, fix))
        if report.estimate:
            console.print(Text(f"\nestimate at {link.mbit:g} Mbit/s, ping {link.ping_ms:g} ms", style="bold"))
            lines = [(f"  {name}", value, "") for name, value in _estimate_lines(report.estimate)]
            console.print(_aligned_grid(lines, console.width - NAME_WIDTH - 2, 0))
        console.print(
            Text(
                f"\n{_format_verdict(report)}", style=LEVEL_STYLES[CheckLevel.OK if report.passed else CheckLevel.FAILS]
            )
        )
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())


def _column_widths(report: CheckReport, room: int) -> tuple[int, int]:
    """Columns for results and for ways out; none for these where there are none."""
    fixes = [finding.fix for section in report.sections for finding in section.findings]
    fix = min(max(map(len, fixes), default=0), 2 * room // 5)
    return room - fix, fix


def _aligned_grid(rows: Sequence[tuple[str | Text, str | Text, str]], result: int, fix: int) -> Table:
    """Rows whose columns are as wide in every table."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (NAME_WIDTH, result, fix):
        if width:
            table.add_column(width=width, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row[: 3 if fix else 2]))
    return table


def _finding_cells(finding: CheckFinding) -> tuple[Text, Text, str]:
    mark = "" if finding.level is CheckLevel.OK else f"{finding.level}: "
    result = Text.assemble((mark, LEVEL_STYLES[finding.level]), replace_unprintable(finding.result))
    return Text(f"  {finding.check}", style=LEVEL_STYLES[finding.level]), result, replace_unprintable(finding.fix)


def _print_failures(report: CheckReport) -> None:
    for section in report.sections:
        for finding in section.findings:
            if finding.level is CheckLevel.FAILS:
                fix = f"; {finding.fix}" if finding.fix else ""
                print(replace_unprintable(f"error: {section.title}: {finding.result}{fix}"), file=sys.stderr)


def _shown_findings(section: CheckSection) -> Iterator[CheckFinding]:
    """What is wrong or worth knowing; of all else only the names, on one line."""
    shown = [finding for finding in section.findings if finding.telling or finding.level is not CheckLevel.OK]
    yield from shown
    rest = dict.fromkeys(finding.check for finding in section.findings if finding not in shown)
    names = [name for name in rest if name not in {finding.check for finding in shown}]
    if names:
        yield CheckFinding("ok", CheckLevel.OK, ", ".join(names))


def _estimate_lines(estimate: CostEstimate) -> Iterator[tuple[str, str]]:
    work = (
        "under a second"
        if estimate.linkage_seconds < 1
        else f"about {format_duration(estimate.linkage_seconds)} of one core"
    )
    memory, line = format_bytes(estimate.coordinator_memory), format_duration(estimate.linkage_line_seconds)
    yield (
        "linkage",
        f"{format_bytes(estimate.linkage_bytes)}, {line} on the line; at the coordinator {work} and {memory} of memory",
    )
    epoch, training, spent = estimate.epoch_bytes, estimate.training_bytes, estimate.training_seconds
    shared = f"{_format_size(epoch.least)} if all partners were shared, {_format_size(epoch.most)} if none"
    yield "an epoch", f"{pluralise(estimate.steps, 'step')}: about {_format_size(epoch.expected)} ({shared})"
    between = f"{_format_size(training.least)} to {_format_size(training.most)}"
    yield "training", f"{pluralise(estimate.epochs, 'epoch')}: about {_format_size(training.expected)} ({between})"
    between = f"{format_duration(spent.least)} to {format_duration(spent.most)}"
    yield "on the line", f"about {format_duration(spent.expected)} ({between}); computing comes on top"
    yield "disk", ", ".join(f"{name} {_format_size(need)}" for name, need in estimate.disk.items())
    yield "assumed", _format_assumptions(estimate)


def _format_size(n_bytes: float) -> str:
    return format_bytes(round(n_bytes))


def _format_assumptions(estimate: CostEstimate) -> str:
    uniform = "every candidate is a partner as often as any other; the more partners records share, the less is sent"
    return "; ".join([*estimate.assumed, uniform])


def _format_verdict(report: CheckReport) -> str:
    warnings = report.count(CheckLevel.WARNING)
    also = f", {pluralise(warnings, 'warning')}" if warnings else ""
    if report.passed:
        return f"all is ready{also}"
    failures = report.count(CheckLevel.FAILS)
    return f"{pluralise(failures, 'check')} {'fails' if failures == 1 else 'fail'}{also}: mend this and check again"
