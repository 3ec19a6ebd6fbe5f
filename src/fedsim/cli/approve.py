"""Show what a job discloses, check it against the party's policy and record the owner's decision (``fedsim approve``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import typer

from fedsim.config.disclosure import Paragraph, describe_disclosure, privacy_guarantees, summarise_settings
from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, columns_outside_policy, read_party_file, resolve_columns
from fedsim.config.policy import PolicyViolation, audit_command, audit_shortfall, policy_violations
from fedsim.config.toml_file import shorten
from fedsim.data.table_reader import read_table
from fedsim.errors import SettingError
from fedsim.runs.approval import ApprovalError, approve, current_user, require_approval
from fedsim.runs.audit_log import open_audit_log

PrintLine = Callable[[str], None]


@dataclass(frozen=True)
class ApprovalDecision:
    """What leaves the party, and its owner's answer; ``how`` says who approved and when."""

    party: str
    job: str
    hash: str
    leaves: tuple[Paragraph, ...]
    approved: bool = False
    how: str = ""


def approve_job(
    job_path: Path, party_path: Path, ask: Callable[[], bool], say: PrintLine = typer.echo
) -> ApprovalDecision:
    """Show the job, check it against the party's policy, ask, and write the answer down."""
    job, party_file = read_job(job_path), read_party_file(party_path)
    header, n_records = _header_and_size(party_file)
    leaves = (
        *describe_disclosure(job, party_file, resolve_columns(job, party_file, header)),
        Paragraph("what the job promises", tuple(privacy_guarantees(job))),
    )
    _print_disclosure(job, party_file, leaves, say)
    broken = policy_violations(job, party_file, n_records)
    if broken:
        _raise_refusal(job, party_file, broken)
    say("policy      the job keeps every rule of this party's policy")
    asked = ApprovalDecision(str(party_file.party), job.name, job.hash, leaves)
    earlier = _earlier_approval(job, party_file, header)
    if earlier:
        say(f"already approved {earlier}; nothing has changed since")
        return replace(asked, approved=True, how=earlier)
    facts = {"job": job.name, "hash": job.hash, "by": current_user()}
    if not ask():
        open_audit_log(party_file).append("approval declined", facts)
        return asked
    _, path = approve(job, party_file, header, by=facts["by"], time=datetime.now(UTC))
    open_audit_log(party_file).append("job approved", facts)
    say(f"approved: {path}")
    return replace(asked, approved=True, how=require_approval(job, party_file, header))


def _header_and_size(party_file: PartyFile) -> tuple[Sequence[str] | None, int | None]:
    """Header and number of records of the party's table; a coordinator has none."""
    if party_file.data is None:
        return None, None
    table = read_table(party_file.data.source, separator=party_file.data.separator, option="data.separator =")
    return table.columns, len(table)


def _print_disclosure(job: Job, party_file: PartyFile, leaves: Sequence[Paragraph], say: PrintLine) -> None:
    for name, value in (("party", str(party_file.party)), *summarise_settings(job)):
        say(f"{name:<11} {value}")
    for paragraph in leaves:
        say(f"\n{shorten(paragraph.heading, 10_000)}")
        for sentence in paragraph.sentences:
            say(f"  - {shorten(sentence, 100_000)}")
    say("")


def _raise_refusal(job: Job, party_file: PartyFile, broken: Sequence[PolicyViolation]) -> None:
    reasons = [violation.message for violation in broken]
    open_audit_log(party_file).append("job refused by policy", {"job": job.name, "hash": job.hash, "reasons": reasons})
    columns = columns_outside_policy(job, party_file)
    named = f" (columns {', '.join(columns)})" if columns else ""
    command = f": {audit_command(job, party_file)}" if audit_shortfall(job, party_file) else ""
    raise SettingError(
        f"the policy of this party refuses job '{job.name}': {'; '.join(reasons)}{command}{named}",
        code="policy-violation",
        rules=[violation.rule for violation in broken],
    )


def _earlier_approval(job: Job, party_file: PartyFile, header: Sequence[str] | None) -> str:
    try:
        return require_approval(job, party_file, header)
    except ApprovalError:
        return ""
