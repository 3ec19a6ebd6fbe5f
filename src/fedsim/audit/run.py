"""An audit from beginning to end."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.attack.finding import Adversary
from fedsim.audit import by_coordinator, by_cut, by_primary
from fedsim.audit.advice import advised
from fedsim.audit.attempt import tried
from fedsim.audit.report import Report
from fedsim.audit.rows import ALWAYS_SKIPPED, Row, Skipped
from fedsim.audit.scene import Linkage, Scene
from fedsim.audit.settings import Settings
from fedsim.audit.tables import Tables, read_tables
from fedsim.errors import FedSimError, SettingError
from fedsim.party.job import Job
from fedsim.party.party_file import PartyFile

Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False, repr=False)
class Audited:
    """One secondary with all that was prepared for attacking, so that advice can attack again."""

    scene: Scene
    linkage: Linkage
    subject: by_cut.Subject | None


def audit_job(job: Job, files: Sequence[PartyFile], settings: Settings, tell: Tell = lambda _: None) -> Report:
    """Attack every linkage whose tables are here, and the training on it; nothing leaves this process."""
    tables = read_tables(job, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    rows: list[Row] = []
    skipped: list[Skipped] = []
    advice = []
    for name in tables.secondaries:
        tell(f"linking with {name}")
        audited, missing = prepare(job, tables, name, settings)
        found, left = attacked(audited, settings, tell)
        rows += found
        skipped += [*missing, *left]
        tell(f"looking for settings that keep {name} under the limit")
        advice += advised(audited.scene, audited.subject, found, settings)
    notes = (*tables.notes, "tau means something for whole Hamming distances only: in other units it changes with them")
    return Report(
        job=job.name,
        hash=job.hash,
        limit=settings.limit,
        settings=settings,
        rows=tuple(rows),
        skipped=(*skipped, *ALWAYS_SKIPPED),
        advice=tuple(advice),
        notes=notes,
        tables=tuple(str(own.party) for own in files if own.data is not None),
    )


def prepare(job: Job, tables: Tables, name: str, settings: Settings) -> tuple[Audited, list[Skipped]]:
    """Link with one secondary, and make the training ready where there are labels."""
    primary, secondary = tables.primary, tables.secondaries[name]
    if name not in primary.columns.identifiers or not job.secondaries[name].encoding.columns:
        raise SettingError(f"job '{job.name}' has no identifiers for {name}; an audit attacks what links")
    split = by_cut.halves(len(primary), settings.seed)
    counted = np.zeros(len(primary), dtype=bool)
    counted[split.train] = True
    identifiers = primary.identifiers(name), secondary.identifiers(name)
    scene = Scene(name, job.secondaries[name], *identifiers, counted, settings.seed)
    linkage = scene.linkage()
    try:
        subject = by_cut.subject_of(job, primary, secondary, split)
    except FedSimError as fault:
        missing = [Skipped(Adversary.SECONDARY, "training: gradients and activations", str(fault))]
        return Audited(scene, linkage, None), missing
    return Audited(scene, linkage, subject), []


def attacked(audited: Audited, settings: Settings, tell: Tell) -> tuple[list[Row], list[Skipped]]:
    """All that applies, by every adversary."""
    rng = np.random.default_rng([settings.seed, zlib.crc32(audited.scene.name.encode())])
    linkage, name = audited.linkage, audited.scene.name
    tell(f"the primary attacks the links with {name}")
    rows, skipped = tried(name, by_primary.attempts(linkage, settings, rng), settings.memory)
    if linkage.own is None:
        skipped.append(Skipped(Adversary.PRIMARY, f"places of {name}", "no identifiers look like latitude, longitude"))
    tell(f"the coordinator attacks the filters of {name}")
    found, left = tried(name, by_coordinator.attempts(linkage, settings, rng), settings.memory)
    if not found and not left:
        why = "the filters mix several fields, or are salted, and no attack here applies"
        left.append(Skipped(Adversary.COORDINATOR, f"filters of {name}", why))
    rows, skipped = rows + found, skipped + left
    if audited.subject is None:
        return rows, skipped
    tell(f"training {settings.epochs} epochs with {name} to listen at the cut")
    heard = by_cut.listened(audited.subject, linkage, settings.epochs)
    found, left = tried(name, by_cut.attempts(heard, audited.subject, linkage, rng), settings.memory)
    return rows + found, skipped + left
