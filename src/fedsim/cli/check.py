"""Run the checks of a job and print findings, fixes and the estimate (``fedsim check``)."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedsim.cli.options import OutputMode, print_json
from fedsim.cli.output import as_text, print_renderable, two_column_grid
from fedsim.preflight.check import CheckReport, check_job
from fedsim.preflight.estimate import CostEstimate, NetworkLink
from fedsim.preflight.finding import CheckFinding, CheckLevel
from fedsim.protocol.messages import replace_unprintable
from fedsim.report.formatting import format_bytes, format_duration, pluralise

NAME_WIDTH = 14
LEVEL_STYLES = {CheckLevel.OK: "green", CheckLevel.WARNING: "yellow", CheckLevel.FAILS: "bold red"}


def run_check(
    job: Path, parties: Sequence[Path], network: tuple[float, float], mode: OutputMode, *, call_peers: bool
) -> bool:
    """Check a job, print the findings and return whether it passed; ``network`` is Mbit/s and latency in ms."""
    link = NetworkLink(*network)
    report = check_job(job, parties, link=link, now=datetime.now(UTC), call_peers=call_peers)
    if mode.json:
        print_json({"passed": report.passed, **asdict(report)})
    elif mode.quiet:
        for section in report.sections:
            for finding in section.findings:
                if finding.level is CheckLevel.FAILS:
                    fix = f"; {finding.fix}" if finding.fix else ""
                    print(replace_unprintable(f"error: {section.title}: {finding.result}{fix}"), file=sys.stderr)
    else:
        _print_report(report, link, mode.verbose)
    return report.passed


def _print_report(report: CheckReport, link: NetworkLink, verbose: bool) -> None:
    parts: list[Text | Table] = []
    for section in report.sections:
        grid = two_column_grid(NAME_WIDTH)
        findings = list(section.findings)
        if not verbose:  # failures, warnings and informative findings; then the names of the other checks on one line
            findings = [found for found in findings if found.telling or found.level is not CheckLevel.OK]
            shown = {found.check for found in findings}
            names = dict.fromkeys(found.check for found in section.findings if found.check not in shown)
            findings += [CheckFinding("ok", CheckLevel.OK, ", ".join(names))] if names else []
        for finding in findings:
            style = LEVEL_STYLES[finding.level]
            mark = "" if finding.level is CheckLevel.OK else f"{finding.level}: "
            result = Text.assemble((mark, style), replace_unprintable(finding.result))
            grid.add_row(Text(f"  {finding.check}", style=style), result)
            if finding.fix:
                grid.add_row("", Text.assemble(("fix: ", "bold"), replace_unprintable(finding.fix)))
        parts += [Text(replace_unprintable(section.title), style="bold"), grid]
    if report.estimate:
        grid = two_column_grid(NAME_WIDTH)
        for name, value in _estimate_lines(report.estimate):
            grid.add_row(Text(f"  {name}"), as_text(value))
        parts += [Text(f"\nestimate at {link.mbit:g} Mbit/s, latency {link.ping_ms:g} ms", style="bold"), grid]
    failures, warnings = report.count(CheckLevel.FAILS), report.count(CheckLevel.WARNING)
    also = f", {pluralise(warnings, 'warning')}" if warnings else ""
    failed = f"{pluralise(failures, 'check')} failed{also}; fix this and run `fedsim check` again"
    verdict, level = (f"ready to run{also}", CheckLevel.OK) if report.passed else (failed, CheckLevel.FAILS)
    print_renderable(Group(*parts, Text(f"\n{verdict}", style=LEVEL_STYLES[level])))


def _estimate_lines(estimate: CostEstimate) -> Iterator[tuple[str, str]]:
    seconds, memory = estimate.linkage_seconds, format_bytes(estimate.coordinator_memory)
    work = "under a second" if seconds < 1 else f"about {format_duration(seconds)} of one core"
    transfer = f"{format_bytes(estimate.linkage_bytes)}, {format_duration(estimate.linkage_line_seconds)} to transfer"
    yield "linkage", f"{transfer}; the coordinator needs {work} and {memory} of memory"
    epoch, training, spent = estimate.epoch_bytes, estimate.training_bytes, estimate.training_seconds
    between = f"{_format_size(epoch.least)} if records share all partners, {_format_size(epoch.most)} if none"
    yield "an epoch", f"{pluralise(estimate.steps, 'step')}: about {_format_size(epoch.expected)} ({between})"
    between = f"{_format_size(training.least)} to {_format_size(training.most)}"
    yield "training", f"{pluralise(estimate.epochs, 'epoch')}: about {_format_size(training.expected)} ({between})"
    between = f"{format_duration(spent.least)} to {format_duration(spent.most)}"
    yield "transfer", f"about {format_duration(spent.expected)} ({between}), plus the time to compute"
    yield "disk", ", ".join(f"{name} {_format_size(need)}" for name, need in estimate.disk.items())
    yield "assumed", "; ".join([*estimate.assumed, "all candidates are partners equally often (else less is sent)"])


def _format_size(n_bytes: float) -> str:
    return format_bytes(round(n_bytes))
