"""Run an audit: read the tables, link, attack, advise, report."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsim.attack.finding import Adversary
from fedsim.audit import linkage_attacks, split_attacks
from fedsim.audit.advice import recommend_settings
from fedsim.audit.attack_runner import NEVER_ATTACKED, AuditRow, SkippedAttack, run_attacks
from fedsim.audit.attack_setup import AttackSetup, AuditedLinkage
from fedsim.audit.report import MIN_RECORDS, AuditReport, AuditSettings
from fedsim.config.job import Job
from fedsim.config.party_file import PartyColumns, PartyFile, resolve_columns
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError, InputError, SettingError
from fedsim.protocol.messages import Role
from fedsim.runtime.party_data import PartyData

# The owners' tables for an audit; nothing is sent, so neither approval nor policy is asked
#
# Where the other side's table is not at hand, one half of the own table stands in for it.


@dataclass(frozen=True, eq=False)
class AuditTables:
    """Both sides in the clear; ``notes`` say what is not as it will be."""

    primary: PartyData
    secondaries: Mapping[str, PartyData]
    notes: tuple[str, ...]


def read_audit_tables(job: Job, files: Sequence[PartyFile], most: int, rng: np.random.Generator) -> AuditTables:
    """The tables of these parties; larger ones are sampled, missing ones stood in for."""
    holders = [own for own in files if own.role is not Role.COORDINATOR]
    if not holders:
        raise SettingError(
            "an audit needs the file of a party that has a table; name the primary's, a secondary's or both"
        )
    twice = [own.party for own in holders if [other.name for other in holders].count(own.name) > 1]
    if twice:
        raise SettingError(f"{len(twice)} files are of {twice[0]}; name the file of each party once")
    notes: list[str] = []
    read = {own.name: _sample_rows(_read_party_table(job, own), most, rng, notes) for own in holders}
    primary = next((read[own.name] for own in holders if own.role is Role.PRIMARY), None)
    secondaries = {own.name: read[own.name] for own in holders if own.role is Role.SECONDARY}
    if primary is not None and secondaries:
        return AuditTables(primary, secondaries, tuple(notes))
    alone = next(iter(read.values()))
    notes.append(
        f"only {alone.own.party} is here: one random half of its own table stands in for the other side, so these "
        "figures are a guess of what the true partner will see"
    )
    if primary is None:
        halves = {name: _split_in_half(table, rng) for name, table in secondaries.items()}
        first, *others = halves
        notes += [f"{read[name].own.party} was left out; audit it alone, or with the primary's file" for name in others]
        return AuditTables(halves[first][0], {first: halves[first][1]}, tuple(notes))
    own, other = _split_in_half(primary, rng)
    secondary = next(iter(job.secondaries))
    columns = PartyColumns({secondary: other.columns.identifiers[secondary]}, other.columns.features, None)
    return AuditTables(own, {secondary: replace(other, columns=columns)}, tuple(notes))


def _read_party_table(job: Job, own: PartyFile) -> PartyData:
    if own.data is None:
        raise SettingError(f"the file of {own.party} names no data; add [data] file")
    frame = read_table(own.data.source, separator=own.data.separator, option="data.separator =")
    if len(frame) < MIN_RECORDS:
        raise InputError(f"{own.data.source} has {len(frame)} records; an audit needs at least {MIN_RECORDS}")
    return PartyData(frame, resolve_columns(job, own, frame.columns), own)


def _sample_rows(table: PartyData, most: int, rng: np.random.Generator, notes: list[str]) -> PartyData:
    if len(table) <= most:
        return table
    rows = np.sort(rng.choice(len(table), most, replace=False))
    notes.append(
        f"{table.own.party}: {most:,} of {len(table):,} records were drawn; the whole, denser table gives more away"
    )
    return replace(table, frame=table.frame[rows])


def _split_in_half(table: PartyData, rng: np.random.Generator) -> tuple[PartyData, PartyData]:
    rows = rng.permutation(len(table))
    middle = len(rows) // 2
    return replace(table, frame=table.frame[rows[:middle]]), replace(table, frame=table.frame[rows[middle:]])


# An audit from beginning to end


ProgressCallback = Callable[[str], None]


@dataclass(frozen=True, eq=False, repr=False)
class PreparedAudit:
    """One secondary with all that was prepared for attacking, so that advice can attack again."""

    scene: AttackSetup
    linkage: AuditedLinkage
    subject: split_attacks.TrainingInputs | None


def audit_job(
    job: Job, files: Sequence[PartyFile], settings: AuditSettings, tell: ProgressCallback = lambda _: None
) -> AuditReport:
    """Attack every linkage whose tables are here, and the training on it; nothing leaves this process."""
    tables = read_audit_tables(job, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    rows: list[AuditRow] = []
    skipped: list[SkippedAttack] = []
    advice = []
    for name in tables.secondaries:
        tell(f"linking with {name}")
        audited, missing = prepare_audit(job, tables, name, settings)
        found, left = attack_secondary(audited, settings, tell)
        rows += found
        skipped += [*missing, *left]
        tell(f"looking for settings that keep {name} under the limit")
        advice += recommend_settings(audited.scene, audited.subject, found, settings)
    notes = (*tables.notes, "tau means something for whole Hamming distances only: in other units it changes with them")
    return AuditReport(
        job=job.name,
        hash=job.hash,
        limit=settings.limit,
        settings=settings,
        rows=tuple(rows),
        skipped=(*skipped, *NEVER_ATTACKED),
        advice=tuple(advice),
        notes=notes,
        tables=tuple(str(own.party) for own in files if own.data is not None),
    )


def prepare_audit(
    job: Job, tables: AuditTables, name: str, settings: AuditSettings
) -> tuple[PreparedAudit, list[SkippedAttack]]:
    """Link with one secondary, and make the training ready where there are labels."""
    primary, secondary = tables.primary, tables.secondaries[name]
    if name not in primary.columns.identifiers or not job.secondaries[name].encoding.columns:
        raise SettingError(f"job '{job.name}' has no identifiers for {name}; an audit attacks what links")
    split = split_attacks.audit_split(len(primary), settings.seed)
    counted = np.zeros(len(primary), dtype=bool)
    counted[split.train] = True
    identifiers = primary.identifiers(name), secondary.identifiers(name)
    scene = AttackSetup(name, job.secondaries[name], *identifiers, counted, settings.seed)
    linkage = scene.linkage()
    try:
        subject = split_attacks.training_inputs(job, primary, secondary, split)
    except FedSimError as fault:
        missing = [SkippedAttack(Adversary.SECONDARY, "training: gradients and activations", str(fault))]
        return PreparedAudit(scene, linkage, None), missing
    return PreparedAudit(scene, linkage, subject), []


def attack_secondary(
    audited: PreparedAudit, settings: AuditSettings, tell: ProgressCallback
) -> tuple[list[AuditRow], list[SkippedAttack]]:
    """All that applies, by every adversary."""
    rng = np.random.default_rng([settings.seed, zlib.crc32(audited.scene.name.encode())])
    linkage, name = audited.linkage, audited.scene.name
    tell(f"the primary attacks the links with {name}")
    rows, skipped = run_attacks(name, linkage_attacks.primary_attacks(linkage, settings, rng), settings.memory)
    if linkage.own is None:
        skipped.append(
            SkippedAttack(Adversary.PRIMARY, f"places of {name}", "no identifiers look like latitude, longitude")
        )
    tell(f"the coordinator attacks the filters of {name}")
    found, left = run_attacks(name, linkage_attacks.coordinator_attacks(linkage, settings, rng), settings.memory)
    if not found and not left:
        why = "the filters mix several fields, or are salted, and no attack here applies"
        left.append(SkippedAttack(Adversary.COORDINATOR, f"filters of {name}", why))
    rows, skipped = rows + found, skipped + left
    if audited.subject is None:
        return rows, skipped
    tell(f"training {settings.epochs} epochs with {name} to listen at the cut")
    heard = split_attacks.record_training(audited.subject, linkage, settings.epochs)
    found, left = run_attacks(
        name, split_attacks.training_attacks(heard, audited.subject, linkage, rng), settings.memory
    )
    return rows + found, skipped + left
