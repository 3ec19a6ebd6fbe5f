"""The draft that a data protection officer asks for, from job, policies, approvals, ledgers and audits, as Markdown.

What no file of a job can say is listed as an open question.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsim.config import Job, Paragraph, PartyFile, describe_disclosure, disclosure, stored_audit
from fedsim.config.party_file import PartyColumns, resolve_columns
from fedsim.report.formatting import format_bytes, format_number, format_percent, pluralise
from fedsim.report.page import PageTable, render_markdown, write_page
from fedsim.report.run_report import visibility_table
from fedsim.runs.approval import Approval, find_approval
from fedsim.runs.run_folder import read_ledger, run_path

QUESTIONS = (
    "What is the purpose of the processing, and on what legal basis does each party process and disclose data?",
    "Whose data is processed (categories of data subjects), and how were these people informed?",
    "Which party is a controller, joint controller or processor, and which contract says so?",
    "Where does each party run its process, and does any data leave the country?",
    "Who uses the predictions, for which decisions, and who can object?",
    "How long are models, links, predictions, logs and backups kept?",
)


@dataclass(frozen=True, eq=False)
class PartyEvidence:
    """What the files of one party say about a job."""

    file: PartyFile
    approval: Approval | None
    audit: dict[str, Any] | None

    @classmethod
    def read(cls, job: Job, file: PartyFile) -> "PartyEvidence":
        """Read the approval and the audit that a party stores; what is missing stays None."""
        audit = None if file.data is None else stored_audit.read_stored_audit(job, file)
        return cls(file, find_approval(job, file), audit)

    def columns(self, job: Job) -> PartyColumns:
        """Return the columns that the party uses; the features by name where an approval has them."""
        columns = resolve_columns(job, self.file)
        approved = self.approval.columns.get("features") if self.approval else None
        return replace(columns, features=columns.features or (tuple(approved) if approved else None))

    def processing(self, job: Job) -> PageTable:
        """Return what the party processes, who approved it and under which policy."""
        columns, policy = self.columns(job), self.file.policy
        by = "by the policy in the party file" if job.hash in policy.approve else "none is stored"
        terms = policy.model_dump(mode="json", include=policy.model_fields_set - {"approve"})
        features = columns.features or ("all other columns of its table",)
        rows = (
            ("identifiers", ", ".join(columns.linking) or "none"),
            ("features", ", ".join(features) if self.file.data else "none"),
            ("label", columns.label or "none"),
            ("approval", f"by {self.approval.by} at {self.approval.time}" if self.approval else by),
            ("policy", "; ".join(f"{name} = {json.dumps(terms[name])}" for name in sorted(terms)) or "no conditions"),
        )
        return PageTable("", ("", "content"), rows)

    def disclosure(self, job: Job) -> list[Paragraph]:
        """Return what leaves the party, to whom, and what it receives."""
        return describe_disclosure(job, self.file, self.columns(job))

    @property
    def limit(self) -> str:
        """The share of the way from guessing to certainty that no attack should exceed."""
        return format_percent(self.audit["limit"]) if self.audit else ""

    def risks(self) -> PageTable:
        """Return the attacks on the party, the most successful first."""
        attacks = sorted(stored_audit.attacks_on(self.file, self.audit or {}), key=lambda attack: -attack["leak"])
        rows = tuple(
            (
                f"the {attack['adversary']} learns {attack['learns']} ({attack['attack']})",
                f"{attack['measure']} {format_number(attack['score']['value'])}",
                format_number(attack["blind"]),
                format_percent(attack["leak"]),
                f"{attack['guarantee']}: {attack['verdict']}",
            )
            for attack in attacks
        )
        return PageTable("", ("risk", "measured", "guessing", "residual risk", "guarantee"), rows)


def write_governance(job: Job, files: Sequence[PartyFile], path: Path) -> None:
    """Write the document from the job and any number of party files."""
    parties = [PartyEvidence.read(job, file) for file in files]
    agreed = (("parties", ", ".join(map(str, job.parties))), *disclosure.summarise_settings(job))
    text = render_markdown(
        "governance.md",
        "fedsim_audit",
        job=job,
        parties=parties,
        agreed=PageTable("", ("", "setting"), agreed),
        sent=PageTable("", ("from", "to", "sent"), tuple(_sent(job, files))),
        seen=visibility_table(job),
        guarantees=disclosure.privacy_guarantees(job),
        questions=open_questions(job, parties),
    )
    write_page(text, path)


def _sent(job: Job, files: Sequence[PartyFile]) -> Iterator[tuple[str, str, str]]:
    """Yield messages and bytes between every two parties, from the first ledger that counts them."""
    seen: set[tuple[str, str]] = set()
    for ledger in (read_ledger(run_path(job, file)) for file in files):
        pairs = dict.fromkeys((entry.sender, entry.receiver) for entry in ledger)
        for pair in (pair for pair in pairs if pair not in seen):
            entries = [entry for entry in ledger if (entry.sender, entry.receiver) == pair]
            messages = pluralise(sum(entry.messages for entry in entries), "message")
            yield *pair, f"{messages}, {format_bytes(sum(entry.bytes for entry in entries))}"
        seen.update(pairs)


def open_questions(job: Job, parties: Sequence[PartyEvidence]) -> Iterator[str]:
    """Yield what the files do not answer."""
    yield from QUESTIONS
    known = {party.file.party for party in parties}
    for missing in (party for party in job.parties if party not in known):
        yield f"{missing}: its file was not given, so its columns, policy, approval and audit are not shown."
    for party in parties:
        if party.approval is None and job.hash not in party.file.policy.approve:
            yield f"{party.file.party}: has its owner approved this job? No approval is stored."
        if party.file.data is not None and party.audit is None:
            command = stored_audit.audit_command(job, party.file)
            yield f"{party.file.party}: what can be inferred? No audit is stored; run {command}."
    skipped = [attack for party in parties if party.audit for attack in party.audit.get("not_attacked", [])]
    for text in dict.fromkeys(f"{attack['adversary']}: {attack['what']} ({attack['why']})" for attack in skipped):
        yield f"Not attacked, so not measured. {text}"
