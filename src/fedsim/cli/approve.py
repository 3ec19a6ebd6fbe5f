"""Show what a job discloses and record the owner's decision (``fedsim approve``)."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import typer

from fedsim.cli.options import OutputMode, print_json, print_nothing, prompt_user
from fedsim.config.disclosure import Paragraph, describe_disclosure, privacy_guarantees, summarise_settings
from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, columns_outside_policy, read_party_file, resolve_columns
from fedsim.config.policy import PolicyViolation, audit_command, audit_shortfall, policy_violations
from fedsim.config.toml_file import shorten
from fedsim.data.table_reader import read_table
from fedsim.errors import SettingError
from fedsim.runs.approval import ApprovalError, approve, current_user, require_approval
from fedsim.runs.run_folder import open_audit_log

PrintLine = Callable[[str], None]


@dataclass(frozen=True)
class ApprovalDecision:
    """What a job discloses of a party, and the owner's decision; ``how`` names who approved and when."""

    party: str
    job: str
    hash: str
    leaves: tuple[Paragraph, ...]
    approved: bool = False
    how: str = ""


def run_approve(job: Path, party: Path, mode: OutputMode, *, yes: bool) -> bool:
    """Show the job, ask its owner, print the decision and return whether the job is approved."""
    if mode.quiet and not yes:
        raise SettingError("--quiet cannot ask for approval; add --yes or omit --quiet", code="quiet-without-yes")
    echo = partial(typer.echo, err=mode.json)  # with --json, standard output is for the object alone

    def ask() -> bool:
        answer = prompt_user(lambda: typer.confirm("Approve?", default=False, err=mode.json))
        if answer is None:
            echo("no answer; use --yes to approve without being asked")
        return bool(answer)

    say = print_nothing if mode.quiet or (mode.json and yes) else echo
    decision = approve_job(job, party, ask=(lambda: True) if yes else ask, say=say)
    if mode.json:
        print_json(asdict(decision))
    if not decision.approved:
        echo("not approved; only a line in the audit log was written")
    return decision.approved


def approve_job(
    job_path: Path, party_path: Path, ask: Callable[[], bool], say: PrintLine = typer.echo
) -> ApprovalDecision:
    """Show the job, check it against the party's policy, ask, and record the answer."""
    job, party_file = read_job(job_path), read_party_file(party_path)
    header: Sequence[str] | None = None
    n_records: int | None = None
    if party_file.data is not None:  # a coordinator has no table
        table = read_table(party_file.data.source, separator=party_file.data.separator, option="data.separator =")
        header, n_records = table.columns, len(table)
    leaves = (
        *describe_disclosure(job, party_file, resolve_columns(job, party_file, header)),
        Paragraph("what the job promises", tuple(privacy_guarantees(job))),
    )
    for name, value in (("party", str(party_file.party)), *summarise_settings(job)):
        say(f"{name:<11} {value}")
    for paragraph in leaves:
        say(f"\n{shorten(paragraph.heading, 10_000)}")
        for sentence in paragraph.sentences:
            say(f"  - {shorten(sentence, 100_000)}")
    say("")
    if broken := policy_violations(job, party_file, n_records):
        _raise_refusal(job, party_file, broken)
    say("policy      the job complies with the policy of this party")
    decision = ApprovalDecision(str(party_file.party), job.name, job.hash, leaves)
    with suppress(ApprovalError):
        earlier = require_approval(job, party_file, header)
        say(f"already approved {earlier}; nothing has changed since")
        return replace(decision, approved=True, how=earlier)
    facts = {"job": job.name, "hash": job.hash, "by": current_user()}
    if not ask():
        open_audit_log(party_file).append("approval declined", facts)
        return decision
    _, path = approve(job, party_file, header, by=facts["by"], time=datetime.now(UTC))
    open_audit_log(party_file).append("job approved", facts)
    say(f"Approved. Wrote {path}")
    return replace(decision, approved=True, how=require_approval(job, party_file, header))


def _raise_refusal(job: Job, party_file: PartyFile, broken: Sequence[PolicyViolation]) -> None:
    reasons = [violation.message for violation in broken]
    open_audit_log(party_file).append("job refused by policy", {"job": job.name, "hash": job.hash, "reasons": reasons})
    columns = columns_outside_policy(job, party_file)
    named = f" (columns {', '.join(columns)})" if columns else ""
    command = f": {audit_command(job, party_file)}" if audit_shortfall(job, party_file) else ""
    message = f"the policy of this party refuses job '{job.name}': {'; '.join(reasons)}{command}{named}"
    raise SettingError(message, code="policy-violation", rules=[broke.rule for broke in broken], columns=columns)
