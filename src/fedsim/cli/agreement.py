"""Agree on a job: checks and the owner's approval (``fedsim check`` and ``approve``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedsim import config
from fedsim.cli.options import OutputMode, echo, print_json, print_nothing, prompt_user
from fedsim.cli.output import as_text, print_renderable, table_lines, two_column_grid, wrap_text
from fedsim.config.party_file import columns_outside_policy, party_credentials, resolve_columns
from fedsim.config.policy import PolicyViolation, audit_shortfall
from fedsim.config.stored_audit import (
    attacks_on,
    audit_command,
    read_stored_audit,
)
from fedsim.config.toml_file import require_filled_in, shorten
from fedsim.errors import FileError, SettingError, replace_unprintable
from fedsim.preflight import CheckReport, CostEstimate, NetworkLink, check_job
from fedsim.preflight.finding import CheckFinding, CheckLevel
from fedsim.protocol.messages import Role
from fedsim.registry import SERVICES
from fedsim.report.formatting import format_bytes, format_duration, format_percent, pluralise
from fedsim.runs.approval import ApprovalError, approve, current_user, require_approval
from fedsim.runs.budget import PrimaryBudget, tokens_spent
from fedsim.runs.run_folder import open_audit_log

# Checks

NAME_WIDTH = 14
FAILURE_TITLES = {"needed to train:": False, "needed only where every party runs on its own machine:": True}
LEVEL_STYLES = {CheckLevel.OK: "green", CheckLevel.WARNING: "yellow", CheckLevel.FAILS: "bold red"}


def run_check(
    job: Path, parties: Sequence[Path], network: tuple[float, float], mode: OutputMode, *, call_peers: bool
) -> bool:
    """Check a job, print the findings and return whether it passed; ``network`` is Mbit/s and latency in ms."""
    link = NetworkLink(*network)
    report = check_job(job, parties, link=link, now=datetime.now(UTC), call_peers=call_peers)
    if mode.json:
        print_json({"passed": report.passed, "ready_to_train": report.ready_to_train, **asdict(report)})
    elif mode.quiet:
        for section, finding in report.failures:
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
            findings = [found for found in findings if found.informative or found.level is not CheckLevel.OK]
            shown = {found.check for found in findings}
            # Every party of a new job lacks its approval; the list at the end is enough.
            findings = [found for found in findings if found.check != "approval" or found.level is CheckLevel.OK]
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
    parts += _failure_lines(report)
    verdict, level = _verdict(report)
    print_renderable(Group(*parts, Text(f"\n{verdict}", style=LEVEL_STYLES[level])))


def _verdict(report: CheckReport) -> tuple[str, CheckLevel]:
    """Return the closing line; checks that only separate machines need are not counted as failed."""
    failed = [finding for _, finding in report.failures if not finding.only_for_deployment]
    later = [finding for _, finding in report.failures if finding.only_for_deployment]
    warnings = report.count(CheckLevel.WARNING)
    also = f", {pluralise(warnings, 'warning')}" if warnings else ""
    if failed:
        them = "it" if len(failed) == 1 else "them"
        return f"{pluralise(len(failed), 'check')} failed{also}; fix {them} first", CheckLevel.FAILS
    if later:
        names = ", ".join(dict.fromkeys(finding.check for finding in later))
        fix = f"before parties run on separate machines, fix {pluralise(len(later), 'check')} ({names})"
        return f"ready for `fedsim train`{also}; {fix}", CheckLevel.WARNING
    return f"ready to run{also}", CheckLevel.OK


def _failure_lines(report: CheckReport) -> Iterator[Text]:
    """Yield the failures once more, by what they are needed for; those of one party with one fix are one line."""
    for title, deployment in FAILURE_TITLES.items():
        groups: dict[tuple[str, str, str], list[str]] = {}
        for section, finding in report.failures:
            if finding.only_for_deployment is deployment:
                where = section.title.partition(" (")[0]
                groups.setdefault((where, finding.check, finding.fix), []).append(finding.result)
        if groups:
            yield Text(f"\n{title}", style="bold")
        for (where, check, fix), results in groups.items():
            more = f", and {len(results) - 1} more" if len(results) > 1 else ""
            line = replace_unprintable(f"{where}, {check}: {results[0]}{more}")
            shown = wrap_text("    fix: ", replace_unprintable(fix))
            yield Text.assemble((wrap_text("  ", line, hanging=2), "red"), *([f"\n{shown}"] if fix else []))


def _estimate_lines(estimate: CostEstimate) -> Iterator[tuple[str, str]]:
    seconds, memory = estimate.linkage_seconds, format_bytes(estimate.coordinator_memory)
    work = "under a second" if seconds < 1 else f"about {format_duration(seconds)} of one core"
    transfer = f"{format_bytes(estimate.linkage_bytes)}, {format_duration(estimate.linkage_line_seconds)} to transfer"
    needs = f"the coordinator needs {work} and {memory} of memory" if estimate.filter_bytes else f"both need {work}"
    if estimate.bounded:
        transfer = f"at most {transfer} (records that share tokens need less; with both tables they are counted)"
    yield "linkage", f"{transfer}; {needs}"
    epoch, training, spent = estimate.epoch_bytes, estimate.training_bytes, estimate.training_seconds
    if epoch.most:  # nothing is sent in an epoch under sealed labels
        between = f"{_format_size(epoch.least)} if records share all partners, {_format_size(epoch.most)} if none"
        yield "an epoch", f"{pluralise(estimate.steps, 'step')}: about {_format_size(epoch.expected)} ({between})"
    epochs = f"at most {pluralise(estimate.epochs, 'epoch')}"
    if training.most:
        between = f"{_format_size(training.least)} to {_format_size(training.most)}"
        yield "training", f"{epochs}: about {_format_size(training.expected)} ({between})"
        between = f"{format_duration(spent.least)} to {format_duration(spent.most)}"
        yield "transfer", f"about {format_duration(spent.expected)} ({between})"
    else:
        yield "training", f"{epochs}; nothing is sent"
    compute = format_duration(estimate.compute_seconds)
    yield (
        "compute",
        f"about {compute} of one core for all epochs; depending on the machine, between a third and three times that",
    )
    yield "disk", ", ".join(f"{name} {_format_size(need)}" for name, need in estimate.disk.items())
    yield (
        "assumed",
        "; ".join([*estimate.assumed, "all candidates are partners equally often (otherwise less is sent)"]),
    )


def _format_size(n_bytes: float) -> str:
    return format_bytes(round(n_bytes))


# Approval

PrintLine = Callable[[str], None]


@dataclass(frozen=True)
class ApprovalDecision:
    """What a job discloses of a party, and the owner's decision; ``how`` names who approved and when."""

    party: str
    job: str
    hash: str
    leaves: tuple[config.Paragraph, ...]
    approved: bool = False
    how: str = ""


APPROVER_VARIABLE, MAX_NAME = "FEDSIM_APPROVER", 200


def run_approve(job: Path, party: Path, mode: OutputMode, *, yes: bool, by: str = "") -> bool:
    """Show the job, ask its owner, print the decision and return whether the job is approved."""
    if mode.quiet and not yes:
        raise SettingError("--quiet cannot ask for approval; add --yes or omit --quiet", code="quiet-without-yes")
    tell = partial(echo, err=mode.json)  # with --json, standard output is for the object alone

    def ask() -> bool:
        answer = prompt_user(lambda: typer.confirm("Approve?", default=False, err=mode.json))
        if answer is None:
            tell("no answer; use --yes to approve without being asked")
        return bool(answer)

    def ask_name() -> str:
        if yes:
            return ""
        return prompt_user(lambda: typer.prompt("Your name", default="", show_default=False, err=mode.json)) or ""

    say = print_nothing if mode.quiet or (mode.json and yes) else tell
    approver = _check_name(by) if by else ""
    decision = approve_job(job, party, (lambda: True) if yes else ask, say, by=approver, ask_name=ask_name)
    if mode.json:
        print_json(asdict(decision))
    if not decision.approved:
        tell("not approved; only a line in the audit log was written")
    return decision.approved


def _check_name(name: str) -> str:
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        fault = f"the name of the approver must be printable and have 1 to {MAX_NAME} characters"
        raise SettingError(f"{fault}; add --by NAME", code="bad-approver", limit=MAX_NAME)
    return name.strip()


def approve_job(
    job_path: Path,
    party_path: Path,
    ask: Callable[[], bool],
    say: PrintLine = echo,
    *,
    by: str = "",
    ask_name: Callable[[], str] = lambda: "",
) -> ApprovalDecision:
    """Show the job, check it against the party's policy, ask, and record the answer and who gave it.

    Without ``by``, the environment variable FEDSIM_APPROVER or the user's account names the approver, or ``ask_name``.
    """
    job, party_file = config.read_job(job_path), config.read_party_file(party_path)
    for path in (job_path, party_path):
        require_filled_in(path)
    header: Sequence[str] | None = None
    n_records: int | None = None
    if party_file.data is not None:  # a coordinator has no table
        table = party_file.data.read()
        header, n_records = table.columns, len(table)
    leaves = _show_disclosure(job, party_file, header, say)
    if broken := config.policy_violations(job, party_file, n_records):
        _raise_refusal(job, party_file, broken)
    say("policy      the job complies with the policy of this party")
    decision = ApprovalDecision(str(party_file.party), job.name, job.hash, leaves)
    with suppress(ApprovalError):
        earlier = require_approval(job, party_file, header)
        if not by:
            say(wrap_text("", f"already approved {earlier}; nothing has changed since"))
            return replace(decision, approved=True, how=earlier)
    account, agreed = current_user(), ask()
    name = by or os.environ.get(APPROVER_VARIABLE, "") or account or (ask_name() if agreed else "")
    if agreed and not name:
        raise SettingError("nobody is named as the approver; add --by NAME", code="no-approver")
    facts = {"job": job.name, "hash": job.hash, "by": name and _check_name(name), "account": account}
    open_audit_log(party_file).append("job approved" if agreed else "approval declined", facts)
    if not agreed:
        return decision
    credentials = None
    with suppress(FileError):  # the certificates may come later; the approval is shown as unsigned
        credentials = party_credentials(party_file)
    _, path = approve(job, party_file, header, by=facts["by"], time=datetime.now(UTC), credentials=credentials)
    how = require_approval(job, party_file, header)
    say(wrap_text("", f"Approved {how}. Wrote {path}"))
    return replace(decision, approved=True, how=how)


def _show_disclosure(
    job: config.Job, party_file: config.PartyFile, header: Sequence[str] | None, say: PrintLine
) -> tuple[config.Paragraph, ...]:
    """Print the settings of a job and what it discloses of a party, and return the latter."""
    disclosed = config.describe_disclosure(job, party_file, resolve_columns(job, party_file, header))
    promises = config.Paragraph("Guarantees of this job", tuple(config.privacy_guarantees(job)))
    leaves = (*disclosed, promises)
    if party_file.role is Role.SECONDARY:
        leaves = (*leaves, _describe_spending(job, party_file))
        if job.sends_embedding:
            leaves = (*leaves, SERVICES["embedding-leaks"](job, party_file))
    if party_file.role is not Role.COORDINATOR:
        leaves = (*leaves, _describe_audit(job, party_file))
    for name, value in (("party", str(party_file.party)), *config.summarise_settings(job)):
        say(wrap_text(f"{name:<11} ", value))
    for paragraph in leaves:
        say("\n" + wrap_text("", shorten(paragraph.heading, 10_000)))
        for sentence in paragraph.sentences:
            say(wrap_text("  - ", shorten(sentence, 100_000)))
        for line in table_lines(paragraph.table) if paragraph.table else ():
            say(line)
    say("")
    return leaves


def _describe_audit(job: config.Job, party_file: config.PartyFile) -> config.Paragraph:
    """State the worst findings of the audit of this job, or the command that runs it."""
    heading, report = "Audit of this job", read_stored_audit(job, party_file)
    if report is None:
        return config.Paragraph(heading, (f"there is none yet; run {audit_command(job, party_file)}",))
    worst: dict[str, dict[str, Any]] = {}  # by adversary
    for attack in sorted(attacks_on(party_file, report), key=lambda attack: attack["leak"]):
        worst[attack["adversary"]] = attack
    sentences = [str(report.get("headline", "an older report without a headline"))]
    for adversary, attack in worst.items():
        gain, name, learns = format_percent(attack["leak"]), attack.get("attack", "unnamed"), attack.get("learns", "?")
        sentences.append(f"the {adversary} learns {learns}, {gain} of the way from guessing to certainty ({name})")
    quick = (report.get("settings") or {}).get("quick") is not False
    return config.Paragraph(f"{heading}{' (quick, less thorough)' if quick else ''}", tuple(sentences))


def _describe_spending(job: config.Job, party_file: config.PartyFile) -> config.Paragraph:
    """Say what earlier jobs of the same primary have spent of its budget."""
    spent = PrimaryBudget.of(party_file, job.primary.name).read()
    counts = (
        f"{pluralise(len(spent.jobs), 'job')}, {pluralise(spent.epochs, 'epoch')}, "
        f"{pluralise(spent.studies, 'comparison run')}, {pluralise(spent.records, 'record')}"
    )
    tokens = f"{tokens_spent(party_file, job.primary.name):,} tokens evaluated"
    return config.Paragraph(f"Spent by primary '{job.primary.name}' so far", (counts, tokens))


def _raise_refusal(job: config.Job, party_file: config.PartyFile, broken: Sequence[PolicyViolation]) -> None:
    reasons = [violation.message for violation in broken]
    open_audit_log(party_file).append("job refused by policy", {"job": job.name, "hash": job.hash, "reasons": reasons})
    columns = columns_outside_policy(job, party_file)
    named = f" (columns {', '.join(columns)})" if columns else ""
    audited = audit_shortfall(job, party_file)
    command = f": {audit_command(job, party_file)}" if audited else ""
    message = f"the policy of this party refuses job '{job.name}': {'; '.join(reasons)}{command}{named}"
    raise SettingError(message, code="policy-violation", rules=[broke.rule for broke in broken], columns=columns)
