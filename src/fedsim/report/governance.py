"""The documents that a data protection officer asks for, from job, policies, approvals, ledgers, logs and audits.

Every statement names the file that it comes from; what no file says is listed as an open question.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedsim.config import Job, PartyFile, disclosure, policy
from fedsim.config.party_file import PartyColumns, resolve_columns
from fedsim.errors import FileError
from fedsim.protocol.messages import LedgerEntry, Party, Role
from fedsim.report.formatting import format_bytes, format_number, format_percent, pluralise
from fedsim.report.page import Figure, PageSection, PageTable, render_template, write_page
from fedsim.report.run_data import FinishedRun, read_run
from fedsim.report.run_report import escape_markdown, markdown_table, model_card, tree_notes, visibility_table
from fedsim.runs.approval import Approval, find_approval
from fedsim.runs.budget import PrimaryBudget, Spending
from fedsim.runs.deletion import stored_until
from fedsim.runs.record import RECORD_FILE
from fedsim.runs.run_folder import AuditEntry, open_audit_log, read_audit_log, read_ledger, run_path

NOT_STATED = "not stated in any file"
LEAD = (
    "A draft for the parties' data protection officers, generated from their files. It repeats only what was agreed or "
    "measured: each table names its source, and the last section lists what the files do not answer."
)
# What no file of a job can say; people answer it.
QUESTIONS = (
    "What is the purpose of the processing, and on what legal basis does each party process and disclose data?",
    "Whose data is processed (categories of data subjects), and how were these people informed?",
    "Which party is a controller, joint controller or processor, and which contract says so?",
    "Where does each party run its process, and does any data leave the country?",
    "Who uses the predictions, for which decisions, and who can object?",
    "How long are models, links, predictions, logs and backups kept? The files state a time only for activations.",
)
LINE = 'stroke="currentColor"'
STORED = {
    Role.COORDINATOR: "encoded identifiers and links of both parties",
    Role.PRIMARY: "encoded identifiers, links, model, predictions of test records",
    Role.SECONDARY: "encoded identifiers, row order, its part of the model",
}


@dataclass(frozen=True, eq=False)
class PartyEvidence:
    """What the files of one party say about a job."""

    own: PartyFile
    columns: PartyColumns
    approval: Approval | None
    audit: dict[str, Any] | None
    ledger: list[LedgerEntry]
    log: list[AuditEntry]
    log_fault: str = ""
    spent: Spending | None = None
    stored: dict[str, datetime | None] = field(default_factory=dict)  # rows of secondaries at the primary
    run: FinishedRun | None = None

    @classmethod
    def read(cls, job: Job, own: PartyFile) -> "PartyEvidence":
        """Read everything that a party's folder holds about a job; what is missing stays empty."""
        folder, approval = run_path(job, own), find_approval(job, own)
        log, entries, fault = open_audit_log(own).path, list[AuditEntry](), ""
        try:
            entries = list(read_audit_log(log)) if log.is_file() else []
        except FileError as error:
            fault = str(error.code)
        is_primary = own.role is Role.PRIMARY
        return cls(
            own,
            resolve_columns(job, own),
            approval,
            policy.stored_audit(job, own) if own.data is not None else None,
            read_ledger(folder),
            entries,
            fault,
            PrimaryBudget.of(own, job.primary.name).read() if own.role is Role.SECONDARY else None,
            {name: stored_until(job, own, name) for name in job.secondaries} if is_primary else {},
            read_run(folder) if is_primary and (folder / RECORD_FILE).is_file() else None,
        )

    @property
    def name(self) -> str:
        """Role and name of the party."""
        return str(self.own.party)


def governance_sections(job: Job, parties: Sequence[PartyEvidence]) -> list[PageSection]:
    """Return the sections of the documents, in the order in which they are read.

    Parameters
    ----------
    job
        The job.
    parties
        The parties whose files are at hand; any number of them.
    """
    return [
        _processing(job, parties),
        _flows(job, parties),
        _assessment(job, parties),
        _model(parties),
        _retention(job, parties),
        _logs(parties),
        PageSection(
            "questions",
            "Open questions",
            ("The files do not answer these; the parties must.",),
            tables=(PageTable("To be answered", ("question",), tuple((q,) for q in open_questions(job, parties))),),
        ),
    ]


def write_governance(job: Job, parties: Sequence[PartyFile], out: Path) -> list[Path]:
    """Write ``governance.md`` and ``governance.html`` into a folder; return both paths.

    Without the file of a party, the documents have what the job says about it, and list the rest as open questions.
    """
    sections = governance_sections(job, [PartyEvidence.read(job, own) for own in parties])
    title = f"Governance of job {job.name}"
    page = render_template("governance.html", title=title, lead=LEAD, sections=sections)
    paths = [out / "governance.md", out / "governance.html"]
    write_page("\n".join(_markdown(title, sections)) + "\n", paths[0])
    write_page(page, paths[1])
    return paths


# The sections


def _processing(job: Job, parties: Sequence[PartyEvidence]) -> PageSection:
    agreed = PageTable("Agreed by all parties (source: job file)", ("", "setting"), tuple(_job_facts(job)))
    tables = [agreed]
    for one in parties:
        columns, own = one.columns, one.own
        features, source = columns.features, "party file"
        if features is None:  # all other columns of the table, which is not read here
            approved = one.approval.columns.get("features") if one.approval else None
            features, source = tuple(approved or ("all other columns of its table",)), "approval"
        rows = [
            ("identifiers", ", ".join(columns.linking) or "none", "party file"),
            ("features", ", ".join(features) or "none", source),
            ("label", columns.label or "none", "party file"),
            ("approval", _approval_text(job, one), "approvals/HASH.json"),
            ("policy", "; ".join(_policy_terms(own)) or "no conditions", "party file"),
        ]
        if one.spent is not None:
            spent = one.spent
            text = f"{pluralise(len(spent.jobs), 'job')}, {pluralise(spent.epochs, 'epoch')}, "
            text += f"{pluralise(spent.records, 'record')} linked"
            rows.append((f"spent by {job.primary.name} over all jobs", text, "budgets/"))
        tables.append(PageTable(f"Processed by {one.name}", ("", "content", "source"), tuple(rows)))
    note = f"Purpose, legal basis and categories of data subjects are {NOT_STATED}; see Open questions."
    return PageSection("processing", "Record of processing", (note,), tables=tuple(tables))


def _job_facts(job: Job) -> Iterator[tuple[str, str]]:
    yield "parties", ", ".join(map(str, job.parties))
    yield from disclosure.summarise_settings(job)


def _approval_text(job: Job, one: PartyEvidence) -> str:
    if one.approval is not None:
        return f"by {one.approval.by} at {one.approval.time}"
    return "by the policy in the party file" if job.hash in one.own.policy.approve else "none is stored"


def _policy_terms(own: PartyFile) -> Iterator[str]:
    for name in sorted(own.policy.model_fields_set - {"approve"}):
        value = own.policy.model_dump(mode="json")[name]
        yield f"{name} = {json.dumps(value)}"


def data_flows(job: Job) -> list[tuple[Party, Party, str]]:
    """Return who sends what to whom, as the job prescribes it."""
    coordinator, primary, *secondaries = job.parties
    flows = []
    for one in secondaries:
        terms = job.secondaries[one.name]
        encoded = f"{', '.join(terms.encoding.columns)}, encoded with a key, {terms.encoding.n_bits:,} bits"
        links = f"{terms.k} pseudonymous partners per record, with similarities ({disclosure.describe_noise(terms)})"
        sealed, kind = job.protection.sealed, job.protection.embedding_name
        embedded = f"every linked row once, as {kind} embedding"
        sent = embedded if sealed else "activations of requested rows, every step"
        sent += f"; {embedded}" if job.sends_embedding and not sealed else ""
        asked = "row numbers" if sealed else "row numbers and gradients, every step"
        order = "secret order of its linked rows"
        if terms.aligned_with is not None:  # it is not linked itself
            order = f"secret order of the linked rows of {terms.aligned_with}, which are also its own"
            flows += [(coordinator, one, order), (primary, one, asked), (one, primary, sent)]
            continue
        flows += [
            (primary, coordinator, encoded),
            (one, coordinator, encoded),
            (coordinator, primary, links),
            (coordinator, one, order),
            (primary, one, asked),
            (one, primary, sent),
        ]
    return flows


def _flows(job: Job, parties: Sequence[PartyEvidence]) -> PageSection:
    counted = _counted(parties)
    rows = []
    for number, (sender, receiver, what) in enumerate(data_flows(job), 1):
        found = counted.get((str(sender), str(receiver)))
        size = "no ledger" if found is None else f"{pluralise(found[0], 'message')}, {format_bytes(found[1])}"
        rows.append((str(number), str(sender), str(receiver), what, size))
    head = ("", "from", "to", "what (source: job file)", "counted between them, all kinds (source: ledgers)")
    audit = next((one.audit for one in parties if one.audit is not None), None)
    figure = Figure("Data flows", "Numbers refer to the table of flows.", flow_picture(job), head, tuple(rows))
    return PageSection(
        "flows",
        "Data flows",
        ("What the job prescribes, and what the ledgers of the parties counted.",),
        (figure,),
        (PageTable("Flows", head, tuple(rows)), visibility_table(job, audit)),
    )


def _counted(parties: Sequence[PartyEvidence]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return messages and bytes between two parties, from the first ledger that counts them."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for one in parties:
        messages: Counter[tuple[str, str]] = Counter()
        size: Counter[tuple[str, str]] = Counter()
        for entry in one.ledger:
            messages[entry.sender, entry.receiver] += entry.messages
            size[entry.sender, entry.receiver] += entry.bytes
        found = {pair: (messages[pair], size[pair]) for pair in messages} | found
    return found


def flow_picture(job: Job) -> Markup:
    """Draw the parties as boxes and the flows as numbered arrows."""
    coordinator, primary, *secondaries = job.parties
    height = max(260, 120 * len(secondaries) + 20)
    place = {primary: (90, height // 2), coordinator: (330, 40)}
    place |= {one: (570, 80 + 120 * at if len(secondaries) > 1 else height // 2) for at, one in enumerate(secondaries)}
    order, text, drawn = list(place), 'fill="currentColor" text-anchor="middle"', []
    for number, (sender, receiver, _) in enumerate(data_flows(job), 1):
        (x1, y1), (x2, y2) = place[sender], place[receiver]
        shift = 9 if order.index(sender) < order.index(receiver) else -9  # two directions, two lines
        xs, ys = x1 + 0.28 * (x2 - x1), y1 + 0.28 * (y2 - y1) + shift
        xe, ye = x1 + 0.72 * (x2 - x1), y1 + 0.72 * (y2 - y1) + shift
        drawn.append(f'<line x1="{xs:.0f}" y1="{ys:.0f}" x2="{xe:.0f}" y2="{ye:.0f}" {LINE} marker-end="url(#arrow)"/>')
        high = (ys + ye) / 2 + (14 if shift > 0 else -5)
        drawn.append(f'<text x="{(xs + xe) / 2:.0f}" y="{high:.0f}" font-size="12" {text}>{number}</text>')
    for party, (x, y) in place.items():
        drawn.append(f'<rect x="{x - 75}" y="{y - 24}" width="150" height="48" rx="6" fill="none" {LINE}/>')
        drawn.append(f'<text x="{x}" y="{y - 3}" font-size="13" {text}>{party.name[:20]}</text>')
        drawn.append(f'<text x="{x}" y="{y + 14}" font-size="11" {text}>{party.role}</text>')
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    )
    arrow += '<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>'
    box = f'<svg viewBox="0 0 660 {height}" role="img" aria-label="Data flows between the parties">'
    return Markup(f"{box}{arrow}{''.join(drawn)}</svg>")  # noqa: S704 - party names are letters, digits and '-'


def _assessment(job: Job, parties: Sequence[PartyEvidence]) -> PageSection:
    tables = [
        PageTable(
            "Measures agreed in the job (source: job file)",
            ("guarantee",),
            tuple((sentence,) for sentence in disclosure.privacy_guarantees(job)),
        )
    ]
    notes = ["Residual risk is the gain of an attack over guessing: 0 % is guessing, 100 % is certainty."]
    for one in (one for one in parties if one.own.data is not None):
        if one.audit is None:
            notes.append(f"{one.name}: not measured; there is no audit of exactly this job.")
            continue
        attacks = sorted(policy.attacks_on(one.own, one.audit), key=lambda attack: -attack["leak"])
        rows = tuple(_risk_row(attack) for attack in attacks)
        head = ("risk", "measure in this job", "measured (95 %)", "guessing", "residual risk", "guarantee")
        quick = (one.audit.get("settings") or {}).get("quick") is not False
        source = f"source: audit of its table{', quick and less thorough' if quick else ''}"
        limit = f"Limit of the audit: {format_percent(one.audit['limit'])}. {one.audit['headline']}."
        limit = " ".join([limit, *(f"Note: {note}." for note in one.audit.get("notes", []))])
        tables.append(PageTable(f"Risks to {one.name} ({source})", head, rows, limit))
    return PageSection("dpia", "Impact assessment (draft)", tuple(notes), tables=tuple(tables))


def _risk_row(attack: dict[str, Any]) -> tuple[str, ...]:
    score = attack["score"]
    value, low, high = (format_number(score[name]) for name in ("value", "low", "high"))
    return (
        f"the {attack['adversary']} learns {attack['learns']} ({attack['attack']})",
        attack["guarantee"],
        f"{attack['measure']} {value} ({low} to {high})",
        format_number(attack["blind"]),
        format_percent(attack["leak"]),
        attack["verdict"],
    )


def _model(parties: Sequence[PartyEvidence]) -> PageSection:
    run = next((one.run for one in parties if one.run is not None), None)
    if run is None:
        return PageSection("model", "Model card", ("None of the given parties has a finished run.",))
    card = model_card(run)
    records = ", ".join(f"{count:,} {part}" for part, count in card["data"]["records"].items())
    facts = (
        ("predicts", f"{card['data']['label']} ({card['model']['task']}, {card['model']['method']})"),
        ("trained", f"{card['model']['trained']}, {records} records"),
        ("features of the primary", ", ".join(card["data"]["features"])),
        *(("trees beside the network", note) for note in tree_notes(run.record)),
        ("contribution of the partner", card["worth"] or "not measured"),
    )
    metrics = [(part, name, format_number(v)) for part, found in card["metrics"].items() for name, v in found.items()]
    groups = [(g["by"], g["group"], f"{g['records']:,}", format_number(g["error"])) for g in card["worst_groups"]]
    tables = [
        PageTable("Model (source: run record)", ("", "value"), facts),
        PageTable("Quality (source: run record)", ("part", "metric", "value"), tuple(metrics)),
    ]
    if groups:
        head = ("column", "group", "test records", "error")
        tables.append(PageTable("Groups with the largest error (source: run record)", head, tuple(groups)))
    return PageSection("model", "Model card", tables=tuple(tables))


def _retention(job: Job, parties: Sequence[PartyEvidence]) -> PageSection:
    rows = []
    if job.protection.sealed:
        agreed = f"{job.protection.retention.days} days, or until the secondary's owner requests deletion"
        rows.append(("primary", "activations of linked rows", agreed, "job file"))
    rows += [(str(role), what, NOT_STATED, "") for role, what in STORED.items()]
    tables = [PageTable("What is stored, and for how long", ("party", "what", "how long", "source"), tuple(rows))]
    now = [
        (one.name, name, "none" if end is None else f"until {end:%Y-%m-%d}")
        for one in parties
        for name, end in one.stored.items()
        if job.protection.sealed
    ]
    if now:
        caption = "Activations stored (source: run folder of the primary)"
        tables.append(PageTable(caption, ("party", "rows of", "stored now"), tuple(now)))
    deleted = [
        (one.name, entry.time[:19], entry.what, str(entry.facts.get("rows", "")), str(entry.facts.get("reason", "")))
        for one in parties
        for entry in one.log
        if entry.facts.get("job") == job.hash and "delet" in entry.what
    ]
    if deleted:
        columns = ("party", "time", "event", "rows", "reason")
        tables.append(PageTable("Deletions (source: audit logs)", columns, tuple(deleted)))
    return PageSection("retention", "Retention and deletion", tables=tuple(tables))


def _logs(parties: Sequence[PartyEvidence]) -> PageSection:
    rows = []
    for one in parties:
        state = f"damaged ({one.log_fault})" if one.log_fault else "every line follows from the previous one"
        last = one.log[-1].hash[:16] if one.log else "none"
        rows.append((one.name, f"{len(one.log):,}", last, state))
    table = PageTable("Audit logs (source: audit.jsonl)", ("party", "entries", "last hash", "check"), tuple(rows))
    note = "An owner could rewrite its log; only receipts held by its peers can rule that out (`fedsim privacy log`)."
    return PageSection("logs", "Accountability", (note,), tables=(table,))


def open_questions(job: Job, parties: Sequence[PartyEvidence]) -> Iterator[str]:
    """Yield what the files do not answer."""
    yield from QUESTIONS
    known = {one.own.party for one in parties}
    for party in job.parties:
        if party not in known:
            yield f"{party}: its file was not given, so its columns, policy, approval, log and audit are not shown."
    for one in parties:
        if one.approval is None and job.hash not in one.own.policy.approve:
            yield f"{one.name}: has its owner approved this job? No approval is stored."
        if one.own.data is not None and one.audit is None:
            yield f"{one.name}: what can be inferred? No audit is stored; {policy.audit_advice(job, one.own)}."
        if one.log_fault:
            yield f"{one.name}: why is its audit log damaged ({one.log_fault})?"
        if not one.ledger:
            yield f"{one.name}: has it taken part yet? It has no ledger of this job."
    skipped = [attack for one in parties if one.audit for attack in one.audit.get("not_attacked", [])]
    for text in dict.fromkeys(f"{attack['adversary']}: {attack['what']} ({attack['why']})" for attack in skipped):
        yield f"Not attacked, so not measured. {text}"


# Markdown


def _markdown(title: str, sections: Sequence[PageSection]) -> Iterator[str]:
    yield f"# {escape_markdown(title)}\n"
    yield LEAD
    for section in sections:
        yield f"\n## {section.title}"
        yield from (f"\n{escape_markdown(paragraph)}" for paragraph in section.paragraphs)
        for figure in section.figures:
            yield "\n```mermaid\nflowchart LR"
            yield from _mermaid(figure)
            yield "```"
        for table in section.tables:
            yield f"\n**{escape_markdown(table.caption)}**"
            yield f"\n{escape_markdown(table.note)}\n" if table.note else ""
            yield from markdown_table(table.head, list(table.rows))


def _mermaid(figure: Figure) -> Iterator[str]:
    """Yield the arrows of the data flows, numbered as in the table."""
    for number, sender, receiver, *_ in figure.rows:
        ends = [name.replace("'", "").replace("-", "_").replace(" ", "_") for name in (sender, receiver)]
        yield f"  {ends[0]} -->|{number}| {ends[1]}"
