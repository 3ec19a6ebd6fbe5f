"""The draft that a data protection officer asks for, from job, policies, approvals, ledgers and audits, as Markdown.

What no file of a job can say is listed as an open question.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.config import Job, PartyFile, disclosure, stored_audit
from fedsim.config.party_file import resolve_columns
from fedsim.protocol.messages import Party
from fedsim.report.formatting import format_bytes, format_number, format_percent, pluralise
from fedsim.report.page import write_page
from fedsim.report.run_report import escape_markdown, markdown_table, visibility_table
from fedsim.runs.approval import Approval, find_approval
from fedsim.runs.run_folder import read_ledger, run_path

LEAD = (
    "A draft for the parties' data protection officers. It repeats what was agreed in files or measured; the last "
    "section lists what no file answers. Quality and limits of the model are in its model card (model-card.md)."
)
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
        return cls(
            file, find_approval(job, file), None if file.data is None else stored_audit.read_stored_audit(job, file)
        )


def write_governance(job: Job, files: Sequence[PartyFile], path: Path) -> None:
    """Write the document from the job and any number of party files."""
    parties = [PartyEvidence.read(job, file) for file in files]
    lines = [f"# Data protection: job {escape_markdown(job.name)}\n", LEAD, "\n## Agreed by all parties (job file)\n"]
    agreed = [("parties", ", ".join(map(str, job.parties))), *disclosure.summarise_settings(job)]
    lines += markdown_table(("", "setting"), agreed)
    for party in parties:
        lines += [f"\n## Processed by {party.file.party}\n", *markdown_table(("", "content"), _processing(job, party))]
    flows = [
        (str(sender), str(receiver), what, _counted(job, parties, sender, receiver))
        for sender, receiver, what in data_flows(job)
    ]
    lines += [
        "\n## Data flows (job file; sizes from ledgers)\n",
        *markdown_table(("from", "to", "what", "sent"), flows),
    ]
    seen = visibility_table(job, next((party.audit for party in parties if party.audit), None))
    lines += [f"\n**{seen.caption}**\n", *markdown_table(seen.head, list(seen.rows)), "\n## Risks and measures\n"]
    lines += [f"- {escape_markdown(sentence)}" for sentence in disclosure.privacy_guarantees(job)]
    for party in parties:
        if party.audit is not None:
            lines += _risks(party, party.audit)
    lines += ["\n## Open questions\n", *(f"- {escape_markdown(text)}" for text in open_questions(job, parties))]
    write_page("\n".join(lines) + "\n", path)


def _processing(job: Job, party: PartyEvidence) -> list[tuple[str, str]]:
    columns, approval = resolve_columns(job, party.file), party.approval
    approved = approval.columns.get("features") if approval else None
    features = columns.features or approved or ("all other columns of its table",)
    by = "by the policy in the party file" if job.hash in party.file.policy.approve else "none is stored"
    terms = party.file.policy.model_dump(mode="json", include=party.file.policy.model_fields_set - {"approve"})
    return [
        ("identifiers", ", ".join(columns.linking) or "none"),
        ("features", ", ".join(features) if party.file.data else "none"),
        ("label", columns.label or "none"),
        ("approval", f"by {approval.by} at {approval.time}" if approval else by),
        ("policy", "; ".join(f"{name} = {json.dumps(terms[name])}" for name in sorted(terms)) or "no conditions"),
    ]


def data_flows(job: Job) -> list[tuple[Party, Party, str]]:
    """Return who sends what to whom, as the job prescribes it."""
    coordinator, primary, *secondaries = job.parties
    flows = []
    for secondary in secondaries:
        terms, sealed = job.secondaries[secondary.name], job.protection.sealed
        embedded = f"every linked row once, as {job.protection.embedding_name} embedding"
        if sealed:
            days = job.protection.retention.days
            sent = f"{embedded}, stored for {days} days or until its owner asks for deletion"
        else:
            sent = "activations of requested rows, every step" + (f"; {embedded}" if job.sends_embedding else "")
        encoded = f"{', '.join(terms.encoding.columns)}, encoded with a key, {terms.encoding.n_bits:,} bits"
        noise = disclosure.describe_noise(terms)
        links = f"{terms.k} pseudonymous partners per record, with similarities ({noise})"
        flows += [(primary, coordinator, encoded), (secondary, coordinator, encoded), (coordinator, primary, links)]
        flows.append((coordinator, secondary, "secret order of its linked rows"))
        flows.append((primary, secondary, "row numbers" if sealed else "row numbers and gradients, every step"))
        flows.append((secondary, primary, sent))
    return flows


def _counted(job: Job, parties: Sequence[PartyEvidence], sender: Party, receiver: Party) -> str:
    """Return messages and bytes between two parties, from the first ledger that counts them."""
    for party in parties:
        total = Counter[str]()
        for entry in read_ledger(run_path(job, party.file)):
            if (entry.sender, entry.receiver) == (str(sender), str(receiver)):
                total.update(messages=entry.messages, bytes=entry.bytes)
        if total:
            return f"{pluralise(total['messages'], 'message')}, {format_bytes(total['bytes'])}"
    return "no ledger"


def _risks(party: PartyEvidence, audit: dict[str, Any]) -> Iterator[str]:
    yield f"\n**Risks to {party.file.party}**: {escape_markdown(audit['headline'])} (audit of its table; 0 % is"
    yield f"guessing, 100 % certainty; its limit is {format_percent(audit['limit'])}).\n"
    attacks = sorted(stored_audit.attacks_on(party.file, audit), key=lambda attack: -attack["leak"])
    rows = [
        (
            f"the {attack['adversary']} learns {attack['learns']} ({attack['attack']})",
            f"{attack['measure']} {format_number(attack['score']['value'])}",
            format_number(attack["blind"]),
            format_percent(attack["leak"]),
            f"{attack['guarantee']}: {attack['verdict']}",
        )
        for attack in attacks
    ]
    yield from markdown_table(("risk", "measured", "guessing", "residual risk", "guarantee"), rows)
    yield from (f"\nNote: {escape_markdown(note)}." for note in audit.get("notes", []))


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
