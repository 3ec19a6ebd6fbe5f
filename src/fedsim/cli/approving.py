"""The work behind ``fedsim approve``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import typer

from fedsim.data.readers import read_table
from fedsim.errors import SettingError
from fedsim.party.approval import ApprovalError, approve, approved, os_user
from fedsim.party.audit_demand import audit_command, unaudited
from fedsim.party.audit_log import log_of
from fedsim.party.job import Job, read_job
from fedsim.party.leaving import Paragraph, settings_of, what_leaves
from fedsim.party.own_columns import beyond_policy, own_columns
from fedsim.party.party_file import PartyFile, read_party_file
from fedsim.party.policy import refusals
from fedsim.party.promises import promises
from fedsim.party.toml_faults import cut

Say = Callable[[str], None]


@dataclass(frozen=True)
class Decision:
    """What leaves the party, and its owner's answer; ``how`` says who approved and when."""

    party: str
    job: str
    hash: str
    leaves: tuple[Paragraph, ...]
    approved: bool = False
    how: str = ""


def approve_job(job_path: Path, party_path: Path, ask: Callable[[], bool], say: Say = typer.echo) -> Decision:
    """Show the job, check it against the party's policy, ask, and write the answer down."""
    job, party_file = read_job(job_path), read_party_file(party_path)
    header, n_records = _table(party_file)
    leaves = (
        *what_leaves(job, party_file, own_columns(job, party_file, header)),
        Paragraph("what the job promises", tuple(promises(job))),
    )
    _show(job, party_file, leaves, say)
    broken = refusals(job, party_file, n_records)
    if broken:
        _refuse(job, party_file, broken)
    say("policy      the job keeps every rule of this party's policy")
    asked = Decision(str(party_file.party), job.name, job.hash, leaves)
    earlier = _earlier(job, party_file, header)
    if earlier:
        say(f"already approved {earlier}; nothing has changed since")
        return replace(asked, approved=True, how=earlier)
    facts = {"job": job.name, "hash": job.hash, "by": os_user()}
    if not ask():
        log_of(party_file).append("approval declined", facts)
        return asked
    _, path = approve(job, party_file, header, by=facts["by"], time=datetime.now(UTC))
    log_of(party_file).append("job approved", facts)
    say(f"approved: {path}")
    return replace(asked, approved=True, how=approved(job, party_file, header))


def _table(party_file: PartyFile) -> tuple[Sequence[str] | None, int | None]:
    """Header and number of records of the party's table; a coordinator has none."""
    if party_file.data is None:
        return None, None
    table = read_table(party_file.data.source, separator=party_file.data.separator, option="data.separator =")
    return table.columns, len(table)


def _show(job: Job, party_file: PartyFile, leaves: Sequence[Paragraph], say: Say) -> None:
    for name, value in (("party", str(party_file.party)), *settings_of(job)):
        say(f"{name:<11} {value}")
    for paragraph in leaves:
        say(f"\n{cut(paragraph.heading, 10_000)}")
        for sentence in paragraph.sentences:
            say(f"  - {cut(sentence, 100_000)}")
    say("")


def _refuse(job: Job, party_file: PartyFile, broken: Sequence[str]) -> None:
    log_of(party_file).append("job refused by policy", {"job": job.name, "hash": job.hash, "reasons": broken})
    columns = beyond_policy(job, party_file)
    named = f" (columns {', '.join(columns)})" if columns else ""
    command = f": {audit_command(job, party_file)}" if unaudited(job, party_file) else ""
    raise SettingError(f"this party's policy refuses job '{job.name}': {'; '.join(broken)}{command}{named}")


def _earlier(job: Job, party_file: PartyFile, header: Sequence[str] | None) -> str:
    try:
        return approved(job, party_file, header)
    except ApprovalError:
        return ""
