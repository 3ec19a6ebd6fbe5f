"""Run an audit, or sweep the settings of one mechanism: read the tables, link, attack, advise, report."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedsim.attack.finding import Adversary, AttackKind
from fedsim.audit import advice, linkage_attacks, report, split_attacks
from fedsim.audit.attack_setup import AttackSetup, AuditedLinkage
from fedsim.audit.report import NEVER_ATTACKED, Advice, AuditReport, AuditRow, AuditSettings, SkippedAttack, run_attacks
from fedsim.config.job import Job, Protection
from fedsim.config.party_file import PartyColumns, PartyFile
from fedsim.data.splits import random_split
from fedsim.errors import FedSimError, SettingError
from fedsim.privacy.bounds import lowest_bound
from fedsim.protocol.messages import Role
from fedsim.runtime.party_data import PartyData

TAU_LEVELS = (0.5, 0.1, 0.05, 0.02, 0.01, 0.001, 0.0001)
# The mechanisms that can be swept, and the attacks that each of them should stop.
SWEEPS = {
    "tau": (AttackKind.GREEDY, AttackKind.LIKELIHOOD),
    "blur": (AttackKind.LOCATION,),
    "gradients": (AttackKind.GRADIENTS,),
    "features": (AttackKind.INVERSION,),
    "activations": (AttackKind.INVERSION,),
}
ProgressCallback = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class AuditTables:
    """Both sides in the clear; ``notes`` say how they differ from the tables of the job."""

    primary: PartyData
    secondaries: Mapping[str, PartyData]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class PreparedAudit:
    """The linkage with one secondary, and the inputs of training where there are labels."""

    setup: AttackSetup
    linkage: AuditedLinkage
    inputs: split_attacks.TrainingInputs | None


def read_audit_tables(job: Job, files: Sequence[PartyFile], most: int, rng: np.random.Generator) -> AuditTables:
    """Read the tables of these parties; sample larger ones, and replace a missing side by half of the other.

    Nothing is sent, so neither an approval nor a policy is needed.
    """
    holders = [own for own in files if own.role is not Role.COORDINATOR]
    if not holders:
        message = "an audit needs a party with a table; pass the party file of the primary, of a secondary or of both"
        raise SettingError(message, code="no-table")
    names = [own.name for own in holders]
    twice = next((own.party for own in holders if names.count(own.name) > 1), None)
    if twice is not None:
        raise SettingError(f"several files are of {twice}; pass one file per party", code="party-twice")
    notes: list[str] = []
    tables = {}
    for own in holders:
        table = tables[own.name] = PartyData.read(job, own, least=report.MIN_RECORDS)
        if (n := len(table)) > most:
            notes.append(f"{own.party}: a sample of {most:,} of {n:,} records; the full, denser table reveals more")
            tables[own.name] = table.take(np.sort(rng.choice(n, most, replace=False)))
    primary = next((tables[own.name] for own in holders if own.role is Role.PRIMARY), None)
    secondaries = {own.name: tables[own.name] for own in holders if own.role is Role.SECONDARY}
    if primary is not None and secondaries:
        return AuditTables(primary, secondaries, tuple(notes))
    alone = next(iter(tables.values()))
    notes.append(
        f"only {alone.own.party} is here: a random half of its own table replaces the other side, so the results are "
        "estimates of what the true partner will see"
    )
    rows = rng.permutation(len(alone))
    first, second = alone.take(rows[: len(rows) // 2]), alone.take(rows[len(rows) // 2 :])
    if primary is None:
        name, *others = secondaries
        notes += [f"{tables[n].own.party} was left out; audit it alone, or with the primary's file" for n in others]
        return AuditTables(first, {name: second}, tuple(notes))
    name = next(iter(job.secondaries))
    columns = PartyColumns({name: second.columns.identifiers[name]}, second.columns.features, None)
    return AuditTables(first, {name: replace(second, columns=columns)}, tuple(notes))


def audit_job(
    job: Job, files: Sequence[PartyFile], settings: AuditSettings, progress: ProgressCallback = lambda _: None
) -> AuditReport:
    """Attack every linkage whose tables are here, and the training on it; nothing leaves this process."""
    tables = read_audit_tables(job, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    rows: list[AuditRow] = []
    skipped: list[SkippedAttack] = []
    advices: list[Advice] = []
    for name in tables.secondaries:
        progress(f"linking with {name}")
        audited, missing = prepare_audit(job, tables, name, settings)
        found, left = attack_secondary(audited, settings, progress)
        rows += found
        skipped += [*missing, *left]
        progress(f"searching for settings that bring {name} under the limit")
        advices += advice.recommend_settings(audited.setup, audited.inputs, found, settings)
    return AuditReport(
        job=job.name,
        hash=job.hash,
        limit=settings.limit,
        settings=settings,
        rows=tuple(rows),
        skipped=(*skipped, *NEVER_ATTACKED),
        advice=tuple(advices),
        notes=(*tables.notes, "tau applies to integer Hamming distances; in other units it depends on the unit"),
        tables=tuple(str(own.party) for own in files if own.data is not None),
    )


def prepare_audit(
    job: Job, tables: AuditTables, name: str, settings: AuditSettings
) -> tuple[PreparedAudit, list[SkippedAttack]]:
    """Link with one secondary, and prepare the training where there are labels."""
    primary, secondary = tables.primary, tables.secondaries[name]
    if name not in primary.columns.identifiers or not job.secondaries[name].encoding.columns:
        message = f"job '{job.name}' has no identifiers for {name}, so there is no linkage to attack"
        raise SettingError(message, code="no-identifiers", secondary=name)
    split = random_split(len(primary), np.random.default_rng([settings.seed, 2]))
    counted = np.zeros(len(primary), dtype=bool)
    counted[split.train] = True
    identifiers = primary.identifiers(name), secondary.identifiers(name)
    setup = AttackSetup(name, job.secondaries[name], *identifiers, counted, settings.seed)
    linkage = setup.linkage()
    try:
        inputs = split_attacks.training_inputs(job, primary, secondary, split)
    except FedSimError as error:
        missing = SkippedAttack(Adversary.SECONDARY, "training: gradients and activations", str(error))
        return PreparedAudit(setup, linkage, None), [missing]
    return PreparedAudit(setup, linkage, inputs), []


def attack_secondary(
    audited: PreparedAudit, settings: AuditSettings, progress: ProgressCallback
) -> tuple[list[AuditRow], list[SkippedAttack]]:
    """Run all attacks that apply, of every adversary."""
    linkage, name = audited.linkage, audited.setup.name
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode())])
    progress(f"attacks of the primary on the links with {name}")
    rows, skipped = run_attacks(name, linkage_attacks.primary_attacks(linkage, settings, rng), settings.memory)
    if linkage.places is None:
        why = "no identifiers are latitude and longitude"
        skipped.append(SkippedAttack(Adversary.PRIMARY, f"places of {name}", why))
    progress(f"attacks of the coordinator on the filters of {name}")
    found, left = run_attacks(name, linkage_attacks.coordinator_attacks(linkage, settings, rng), settings.memory)
    if not found and not left:
        why = "the filters combine several fields or are salted; no attack applies"
        left.append(SkippedAttack(Adversary.COORDINATOR, f"filters of {name}", why))
    rows, skipped = rows + found, skipped + left
    if audited.inputs is not None:
        progress(f"training {settings.epochs} epochs with {name} to record the cut layer")
        transcript = split_attacks.record_training(audited.inputs, linkage, settings.epochs)
        attacks = split_attacks.training_attacks(transcript, audited.inputs, linkage, rng)
        found, left = run_attacks(name, attacks, settings.memory)
        rows, skipped = rows + found, skipped + left
    return rows, skipped


# The privacy-utility trade-off.


@dataclass(frozen=True)
class TradeoffPoint:
    """One setting under one seed: the best attack on what the mechanism protects, and the quality of the model."""

    setting: str
    seed: int
    gain: float
    attack: str
    metric: str
    quality: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sweep_mechanism(
    job: Job, files: Sequence[PartyFile], settings: AuditSettings, sweep: str, progress: ProgressCallback
) -> list[TradeoffPoint]:
    """Measure the attacker's gain and the model's quality under every setting of one mechanism, beginning with none."""
    if sweep not in SWEEPS:
        message = f"sweep='{sweep}' is not a mechanism; choose from {', '.join(SWEEPS)}"
        raise SettingError(message, code="unknown-sweep", known=tuple(SWEEPS))
    tables = read_audit_tables(job, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    audited, _ = prepare_audit(job, tables, next(iter(tables.secondaries)), settings)
    if audited.inputs is None:
        message = "a trade-off needs labels to train on; pass the primary's party file, too"
        raise SettingError(message, code="labels-missing")
    points = []
    for name, linkage, protection in _sweep_settings(audited, settings, sweep):
        progress(name)
        rng = np.random.default_rng([settings.seed, 6])
        transcript = split_attacks.record_training(audited.inputs, linkage, settings.epochs, protection)
        attacks = [
            *linkage_attacks.primary_attacks(linkage, settings, rng),
            *split_attacks.training_attacks(transcript, audited.inputs, linkage, rng),
        ]
        rows, _ = run_attacks("", [attack for attack in attacks if attack.kind in SWEEPS[sweep]], settings.memory)
        best = max(rows, key=lambda row: row.found.advantage).found
        quality = advice.model_quality(transcript.metrics)
        points.append(TradeoffPoint(name, settings.seed, best.advantage, best.attack, *quality))
    return points


def _sweep_settings(
    audited: PreparedAudit, settings: AuditSettings, sweep: str
) -> list[tuple[str, AuditedLinkage, Protection]]:
    setup, plain = audited.setup, audited.setup.linkage(tau=None, sigma=None, blur=None)
    points = [(f"no {sweep}", plain, Protection())]
    if sweep == "tau":
        if (metric := plain.terms.metric) != "hamming":
            message = f"tau applies to hamming distances, but the metric is {metric}; sweep another mechanism"
            raise SettingError(message, code="tau-needs-hamming", metric=metric)
        least = lowest_bound(plain.view.known_scale().deviation)  # no noise reaches a tau at or below it
        levels = [tau for tau in TAU_LEVELS if tau > least]
        points += [(f"tau {tau:g}", setup.linkage(tau=tau, sigma=None), Protection()) for tau in levels]
    elif sweep == "blur":
        for epsilon in advice.BLUR_EPSILONS[:7]:
            linkage = setup.linkage(tau=None, sigma=None, blur=advice.make_blur(setup, epsilon))
            points.append((f"epsilon per km {epsilon:g}", linkage, Protection()))
    else:
        search = advice.MitigationSearch(setup, audited.inputs, settings)
        clip = search.gradient_clip if sweep == "gradients" else 1.0
        for noise in advice.NOISE_LEVELS:
            points.append((f"noise {noise:g}", plain, advice.make_protection(sweep, clip, noise)))
    return points
