"""Run an audit: read the tables, link and attack."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedsim.config.job import Job
from fedsim.config.party_file import PartyColumns, PartyFile, Policy
from fedsim.config.stored_audit import Adversary
from fedsim.data.splits import random_split
from fedsim.errors import FedSimError, SettingError
from fedsim.pipeline.party_table import PartyData
from fedsim.pipeline.release import release_table
from fedsim.protocol.messages import Party, Role
from fedsim.types import Split
from fedsim_audit import audit_report, direct_attacks, linkage_attacks, share_attacks, split_attacks

ProgressCallback = Callable[[float], None]
# The share of an audit's time that has passed when a stage begins; a rough guide for the progress bar.
STAGES = {"link": 0.0, "primary": 0.03, "train": 0.4}


@dataclass(frozen=True, eq=False)
class AuditTables:
    """Both sides in the clear; ``notes`` say how they differ from the tables of the job.

    ``policies`` are those of the parties whose files are here, by role and name; others count with their defaults.
    """

    primary: PartyData
    secondaries: Mapping[str, PartyData]
    notes: tuple[str, ...]
    policies: Mapping[Party, Policy] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class PreparedAudit:
    """The linkage with one secondary, and the inputs of training where there are labels."""

    setup: linkage_attacks.AttackSetup
    linkage: linkage_attacks.AuditedLinkage
    inputs: split_attacks.TrainingInputs | None


def read_audit_tables(job: Job, files: Sequence[PartyFile], most: int, rng: np.random.Generator) -> AuditTables:
    """Read the tables of these parties; sample larger ones, and replace a missing side by half of the other.

    Nothing is sent, so no approval is needed, and policies only say how often a primary may ask.
    """
    found = _read_tables(job, files, most, rng)
    return replace(found, policies={own.party: own.policy for own in files})


def _read_tables(job: Job, files: Sequence[PartyFile], most: int, rng: np.random.Generator) -> AuditTables:
    holders = [own for own in files if own.role is not Role.COORDINATOR]
    if not holders:
        message = "an audit needs a party with a table; pass the party file of the primary, of a secondary or of both"
        raise SettingError(message, code="no-table")
    names = [own.name for own in holders]
    twice = next((own.party for own in holders if names.count(own.name) > 1), None)
    if twice is not None:
        raise SettingError(f"several files belong to {twice}; pass one file per party", code="party-twice")
    notes, tables = [], {}
    for own in holders:
        table = tables[own.name] = PartyData.read(job, own, least=audit_report.MIN_RECORDS)
        if (n := len(table)) > most:
            notes.append(f"{own.party}: a sample of {most:,} of {n:,} records; the full, denser table reveals more")
            tables[own.name] = table.take(np.sort(rng.choice(n, most, replace=False)))
    primary = next((tables[own.name] for own in holders if own.role is Role.PRIMARY), None)
    secondaries = {own.name: tables[own.name] for own in holders if own.role is Role.SECONDARY}
    if primary is not None and secondaries:
        return AuditTables(primary, secondaries, tuple(notes))
    alone = next(iter(tables.values()))
    replaced = f"only the table of {alone.own.party} was given: a random half of it replaces the other side"
    notes.append(f"{replaced}, so the results are estimates of what the true partner will see")
    rows = rng.permutation(len(alone))
    first, second = alone.take(rows[: len(rows) // 2]), alone.take(rows[len(rows) // 2 :])
    if primary is None:
        name, *others = secondaries
        if not job.protection.sealed:
            notes.append("the primary's labels are not available here; the attacked training uses a made-up label")
        notes += [f"{tables[n].own.party} was left out; audit it alone, or with the primary's file" for n in others]
        return AuditTables(first, {name: second}, tuple(notes))
    name = next(iter(job.secondaries))
    columns = PartyColumns({name: second.columns.identifiers[name]}, second.columns.features, None)
    return AuditTables(first, {name: replace(second, columns=columns)}, tuple(notes))


def audit_job(
    job: Job,
    files: Sequence[PartyFile],
    settings: audit_report.AuditSettings,
    progress: ProgressCallback = lambda _: None,
) -> audit_report.AuditReport:
    """Attack every linkage whose tables are here, and the training on it; nothing leaves this process.

    Parameters
    ----------
    job
        The job to audit.
    files
        Party files of the tables that are here: of the primary, of secondaries or of both.
    settings
        How thorough the audit is, and what counts as a leak.
    progress
        Called with the approximate share of the time that has passed.
    """
    tables = read_audit_tables(job, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    rows: list[audit_report.AuditRow] = []
    skipped: list[audit_report.SkippedAttack] = []
    for place, name in enumerate(tables.secondaries):

        def passed(share: float, place: int = place) -> None:
            progress((place + share) / len(tables.secondaries))

        passed(STAGES["link"])
        if job.direct:
            found, left = attack_directly(job, tables, name, settings, passed)
        else:
            audited, missing = prepare_audit(job, tables, name, settings)
            found, left = attack_secondary(audited, settings, passed)
            left = [*missing, *left]
        rows += found
        skipped += left
    tau = "tau applies to integer Hamming distances; in other units it depends on the unit"
    notes = [*tables.notes, *([] if job.direct else [tau])]
    absent = [str(party) for party in job.parties if party.role is not Role.PRIMARY and party not in tables.policies]
    if absent:
        names = ", ".join(absent)
        notes.append(f"no file was given for {names}; default limits on repeated requests were assumed")
    return audit_report.AuditReport(
        job=job.name,
        hash=job.hash,
        limit=settings.limit,
        settings=settings,
        rows=tuple(rows),
        skipped=(*skipped, *(direct_attacks.NOT_PLANNED if job.direct else audit_report.NEVER_ATTACKED)),
        notes=tuple(notes),
        tables=tuple(str(own.party) for own in files if own.data is not None),
    )


def prepare_audit(
    job: Job, tables: AuditTables, name: str, settings: audit_report.AuditSettings
) -> tuple[PreparedAudit, list[audit_report.SkippedAttack]]:
    """Link with one secondary, and prepare the training where there are labels."""
    primary, secondary = tables.primary, tables.secondaries[name]
    if name not in primary.columns.identifiers or not job.secondaries[name].columns:
        message = f"job '{job.name}' has no identifiers for {name}, so there is no linkage to attack"
        raise SettingError(message, code="no-identifiers", secondary=name)
    split = _training_split(primary, settings)
    counted = np.zeros(len(primary), dtype=bool)
    counted[split.train] = True
    identifiers = primary.identifiers(name), secondary.identifiers(name)
    setup = linkage_attacks.AttackSetup(name, job.secondaries[name], *identifiers, counted, settings.seed)
    linkage = setup.linkage()
    audited = PreparedAudit(setup, linkage, None)
    try:
        inputs = split_attacks.training_inputs(job, primary, secondary, split)
    except FedSimError as error:
        missing = audit_report.SkippedAttack(Adversary.SECONDARY, "training: gradients and activations", str(error))
        return audited, [missing]
    return replace(audited, inputs=inputs), []


def _training_split(primary: PartyData, settings: audit_report.AuditSettings) -> Split:
    rng = np.random.default_rng([settings.seed, 2])
    return primary.draw_split("random", rng) if primary.columns.label else random_split(len(primary), rng)


def attack_directly(
    job: Job, tables: AuditTables, name: str, settings: audit_report.AuditSettings, progress: ProgressCallback
) -> tuple[list[audit_report.AuditRow], list[audit_report.SkippedAttack]]:
    """Run all attacks on a linkage without a coordinator."""
    primary, secondary = tables.primary, tables.secondaries[name]
    terms, policy = job.secondaries[name], tables.policies.get(Party(Role.SECONDARY, name), Policy())
    limit = terms.max_tokens if policy.max_tokens is None else policy.max_tokens
    identifiers = primary.token_identifiers(name), secondary.token_identifiers(name)
    least = policy.least_list_rows
    released = release_table(secondary, name, secondary.fit_features(least=terms.m or 1))
    linkage = direct_attacks.DirectLinkage(
        name, terms, *identifiers, limit, settings.seed, released.min_rows(least), released
    )
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode())])
    progress(STAGES["primary"])
    planned = list(direct_attacks.direct_attacks(linkage, settings, rng))
    planned += share_attacks.share_attacks(secondary, name, rng) if terms.m != 1 else []
    rows, skipped = audit_report.run_attacks(name, planned, settings.memory)
    progress(STAGES["train"])
    try:
        inputs = split_attacks.training_inputs(job, primary, secondary, _training_split(primary, settings))
        attacks = list(direct_attacks.feature_attacks(linkage, inputs, rng))
    except FedSimError as error:
        missing = audit_report.SkippedAttack(Adversary.PRIMARY, f"features of {name}", str(error))
        return rows, [*skipped, missing]
    found, left = audit_report.run_attacks(name, attacks, settings.memory)
    return rows + found, skipped + left


def attack_secondary(
    audited: PreparedAudit, settings: audit_report.AuditSettings, progress: ProgressCallback
) -> tuple[list[audit_report.AuditRow], list[audit_report.SkippedAttack]]:
    """Run all attacks that apply, of every adversary."""
    linkage, name = audited.linkage, audited.setup.name
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode())])
    progress(STAGES["primary"])
    rows, skipped = audit_report.run_attacks(
        name, linkage_attacks.primary_attacks(linkage, settings, rng), settings.memory
    )
    if not linkage.setup.all_places:
        why = "no identifiers are latitude and longitude"
        skipped.append(audit_report.SkippedAttack(Adversary.PRIMARY, f"places of {name}", why))
    if audited.inputs is not None:
        progress(STAGES["train"])
        transcript = split_attacks.record_training(audited.inputs, linkage, settings.epochs)
        attacks = split_attacks.training_attacks(transcript, audited.inputs, linkage, rng)
        found, left = audit_report.run_attacks(name, attacks, settings.memory)
        rows, skipped = rows + found, skipped + left
        if not audited.inputs.labelled:
            why = "the primary's file was not given; the labels are the primary's, not yours"
            skipped.append(audit_report.SkippedAttack(Adversary.SECONDARY, "labels", why))
    return rows, skipped
