"""The attacks on split training: a short local training is recorded at the cut layer and attacked from both sides.

The noise is the one the parties use. A row is sent in many steps; what is attacked is its mean over the run, because
fresh noise averages out and a single step misleads.

Letters: U rows, C width of the cut layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.attack.cut_layer_attacks import (
    Eavesdropper,
    completion_attack,
    direction_attack,
    inversion_attack,
    mean_by_row,
    mean_label_by_row,
    norm_attack,
)
from fedsim.attack.finding import Adversary, AttackFinding
from fedsim.audit.attack_runner import NO_GUARANTEE, Guarantee, PlannedAttack, missing_noise
from fedsim.audit.attack_setup import AuditedLinkage
from fedsim.config.job import CutTerms, FeatureTerms, Job, Protection
from fedsim.data.features import FeatureRules, fit_preprocessor
from fedsim.data.splits import random_split
from fedsim.errors import InputError
from fedsim.privacy.keyed_prng import SECRET_BYTES
from fedsim.privacy.mechanisms import CLIP_DEVIATIONS, ClipAndNoise, NoisyFeatures
from fedsim.protocol.cut_layer import CutNoise, NoiseMeter, NoisySecondary
from fedsim.runtime.party_data import PartyData, class_labels, numeric_labels
from fedsim.runtime.primary import to_features, training_config
from fedsim.runtime.run_store import add_feature_noise, cut_noise_from_secret
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.secondary_model import LocalSecondary, start_secondary
from fedsim.training import NeighbourList, PrimaryData, TaskType, train_with
from fedsim.training.labels import Metrics
from fedsim.types import Floats, Integers, Split

KNOWN_SHARE = 0.05
MIN_KNOWN_ROWS = 20
DELTA = 1e-5
WARM_UP_SHARE = 0.25  # of the steps: gradients there are long and say little


@dataclass(frozen=True, eq=False)
class TrainingInputs:
    """What is trained on: both sides' features, the labels, and which records train."""

    job: Job
    primary: PrimaryData
    secondary: Features  # in the secondary's own order
    split: Split

    def __repr__(self) -> str:
        return f"TrainingInputs({len(self.secondary)} rows)"


@dataclass(frozen=True, eq=False)
class CutTranscript:
    """What crossed, by row and as a mean over the run, and how the model did."""

    rows: Integers  # (U,), rows of the secondary
    activations: Floats  # (U, C), as the primary saw them
    gradients: Floats  # (U, C), as the secondary saw them
    own: Floats  # (U, C), the secondary's activations after training, without noise
    labels: NDArray[Any]  # (U,), whether the records that name a row lie above the median
    counts: Integers  # (U,), how often each row crossed
    length: float  # median length of a gradient of one step
    metrics: Metrics
    test: Metrics = field(default_factory=dict)  # the same on rows that no setting was chosen by
    laid: Mapping[str, NoiseMeter] = field(default_factory=dict)  # the noise that was laid on either side

    @property
    def max_times_sent(self) -> int:
        return int(self.counts.max())

    def __repr__(self) -> str:
        return f"CutTranscript({len(self.rows)} rows)"


def training_inputs(job: Job, primary: PartyData, secondary: PartyData, split: Split) -> TrainingInputs:
    """Both tables as the parties would prepare them."""
    party = str(primary.own.party)
    sorts = job.task.kind == "classification"
    labels: NDArray[Any] = class_labels(primary.label(), party)[0] if sorts else numeric_labels(primary.label(), party)
    goal = TaskType.CLASSES if sorts else TaskType.NUMBERS
    return TrainingInputs(
        job,
        PrimaryData(_prepare_features(primary, split.train), labels, goal, primary.own.name),
        _prepare_features(secondary, None),
        split,
    )


def audit_split(n_records: int, seed: int) -> Split:
    """Which records train, validate and test, as in a job."""
    return random_split(n_records, np.random.default_rng([seed, 2]))


def record_training(
    subject: TrainingInputs, linkage: AuditedLinkage, epochs: int, protection: Protection | None = None
) -> CutTranscript:
    """Train for some epochs and note what crosses, under the job's protection or another."""
    wanted = subject.job.protection if protection is None else protection
    torch.set_num_threads(1)
    config = replace(training_config(subject.job), epochs=epochs, patience=None, save_steps=None)
    below = replace(config.secondary, clip=wanted.activations.clip if wanted.activations else None)
    steps = epochs * config.steps_per_epoch(len(subject.split.train))
    used = _protected_features(subject, linkage, wanted)
    local = start_secondary(linkage.scene.name, used.take(linkage.order), below, total_steps=steps)
    answering = NoisySecondary(local, activation_noise=_cut_noise(wanted.activations, linkage))
    ear = Eavesdropper(answering, int(WARM_UP_SHARE * steps))
    sending = NoisySecondary(ear, gradient_noise=_cut_noise(wanted.gradients, linkage))
    lists = [NeighbourList(Neighbours(linkage.view.partner, linkage.view.similarity), (sending,))]
    result = train_with(subject.primary, lists, subject.split, config)
    heard = _transcript(subject, linkage, ear, local, result.metrics["validation"])
    laid = {
        "features": _feature_noise(subject.secondary, used),
        "activations": answering.meter,
        "gradients": sending.meter,
    }
    heard = replace(heard, laid=laid, test=result.metrics["test"])
    if wanted.gradients is None or wanted.gradients.noise == 0:
        return heard
    # The mean of so much noise is the shorter the more often a row was sent: that would tell counts, not gradients.
    return replace(heard, gradients=heard.gradients * np.sqrt(heard.counts)[:, None])


def training_attacks(
    heard: CutTranscript, subject: TrainingInputs, linkage: AuditedLinkage, rng: np.random.Generator
) -> Iterator[PlannedAttack]:
    """Labels read by the secondary, features read by the primary."""
    known = rng.choice(len(heard.rows), _n_known_rows(len(heard.rows)), replace=False)
    features = _numeric_features(subject.secondary)[heard.rows]
    protection = subject.job.protection
    yield PlannedAttack(
        Adversary.PRIMARY,
        "feature inversion",
        f"the features of {linkage.scene.name}",
        lambda: inversion_attack(heard.activations, features, known, rng=rng),
        _feature_guarantee(protection, heard.max_times_sent),
        memory=16.0 * heard.activations.size,
    )
    whose = "whether the records near a row lie above the median label"
    promised = _accountant_guarantee(protection.gradients, heard.max_times_sent, bounds_auc=True)
    for name, run in {
        "gradient norm": lambda: norm_attack(heard.gradients, heard.labels, rng=rng),
        "gradient direction": lambda: direction_attack(heard.gradients, heard.labels, known, rng=rng),
    }.items():
        yield PlannedAttack(Adversary.SECONDARY, name, whose, run, promised)
    yield PlannedAttack(
        Adversary.SECONDARY,
        "row counts",
        f"{whose}, by how often it is asked for",
        lambda: _run_row_count_attack(heard, rng),
        NO_GUARANTEE,
    )
    yield from _noise_checks(heard, protection)
    yield PlannedAttack(
        Adversary.SECONDARY,
        "model completion",
        whose,
        lambda: _run_completion_attack(heard, features, known, rng),
        NO_GUARANTEE,
    )


def _noise_checks(heard: CutTranscript, protection: Protection) -> Iterator[PlannedAttack]:
    """Whether the noise that the job promises is there."""
    sides: tuple[tuple[Adversary, str, CutTerms | FeatureTerms | None], ...] = (
        (Adversary.PRIMARY, "features", protection.features),
        (Adversary.PRIMARY, "activations", protection.activations),
        (Adversary.SECONDARY, "gradients", protection.gradients),
    )
    for who, what, terms in sides:
        if terms is not None and terms.noise > 0:
            unit = terms.clip if isinstance(terms, CutTerms) else 1.0
            promised = Guarantee(f"noise of deviation {terms.noise * unit:g} on every number of {what}", 0.0)
            run = partial(missing_noise, heard.laid[what], terms.noise * unit, who, what)
            yield PlannedAttack(who, f"noise left out of {what}", f"what noise on {what} should hide", run, promised)


def _protected_features(subject: TrainingInputs, linkage: AuditedLinkage, wanted: Protection) -> Features:
    """The secondary's features with the noise that is wanted on them."""
    if wanted.features is None:
        return subject.secondary
    return add_feature_noise(subject.secondary, wanted.features, _noise_secret(linkage), table=linkage.scene.name)


def _feature_noise(features: Features, used: Features) -> NoiseMeter:
    """The noise on features, in deviations of their columns."""
    laid, before = NoiseMeter(), features.numbers.astype(np.float64)
    deviation = before.std(axis=0)
    varies = deviation > 0
    scaled, noisy = (
        (numbers - before.mean(axis=0))[:, varies] / deviation[varies] for numbers in (before, used.numbers)
    )
    laid.add(torch.from_numpy(np.clip(scaled, -CLIP_DEVIATIONS, CLIP_DEVIATIONS)), torch.from_numpy(noisy))
    return laid


def _transcript(
    subject: TrainingInputs, linkage: AuditedLinkage, ear: Eavesdropper, local: LocalSecondary, metrics: Metrics
) -> CutTranscript:
    if not ear.recorded_steps:
        raise InputError("nothing crossed the cut; train for more epochs, or smaller batches")
    pseudonym = np.concatenate([crossing.rows for crossing in ear.recorded_steps])
    seen, activations = mean_by_row(
        pseudonym, np.concatenate([crossing.activations for crossing in ear.recorded_steps])
    )
    every = np.concatenate([crossing.gradients for crossing in ear.recorded_steps])
    gradients = mean_by_row(pseudonym, every)[1]
    train = subject.split.train
    label = mean_label_by_row(linkage.view.partner[train], _numeric_labels(subject.primary)[train], len(linkage.order))[
        seen
    ]
    own = local.infer(torch.from_numpy(seen)).numpy().astype(np.float64)
    above = label > np.median(label)
    length = float(np.median(np.linalg.norm(every, axis=1)))
    counts = np.bincount(pseudonym)[seen].astype(np.int64)
    return CutTranscript(linkage.order[seen], activations, gradients, own, above, counts, length, metrics)


def _run_completion_attack(
    heard: CutTranscript, features: Floats, known: Integers, rng: np.random.Generator
) -> AttackFinding:
    """What counts is what training together adds to the secondary's own features."""
    found = completion_attack(heard.own, features, heard.labels, known, rng=rng)
    raw = max(0.5, min(0.999, found.figures["AUC from raw features"]))
    return replace(found, blind=raw, knew=f"{found.knew}; guessing is the same attack on its raw features")


def _run_row_count_attack(heard: CutTranscript, rng: np.random.Generator) -> AttackFinding:
    """Rows in demand stand where records are dense; no noise on gradients hides that."""
    found = norm_attack(heard.counts[:, None].astype(np.float64), heard.labels, rng=rng)
    return replace(found, attack="row counts", knew="how often each of its rows was asked for")


def _feature_guarantee(protection: Protection, sent: int) -> Guarantee:
    """What noise on features promises, which lasts; else what noise on activations does."""
    if protection.features is None:
        return _accountant_guarantee(protection.activations, sent)
    return Guarantee(NoisyFeatures(protection.features.noise).guarantee, claimed=True)


def _accountant_guarantee(terms: CutTerms | None, sent: int, *, bounds_auc: bool = False) -> Guarantee:
    """What clip and noise promise of one row sent so often."""
    if terms is None:
        return NO_GUARANTEE
    mechanism = ClipAndNoise(terms.clip, terms.noise)
    if terms.noise == 0:
        return Guarantee("none: rows are clipped without noise")
    spent = mechanism.after(steps=sent)
    sentence = f"({spent.epsilon(delta=DELTA):.3g}, {DELTA:g})-private for one row sent {sent} times, given the weights"
    return Guarantee(sentence, spent.max_attack_auc) if bounds_auc else Guarantee(sentence, claimed=True)


def _cut_noise(terms: CutTerms | None, linkage: AuditedLinkage) -> CutNoise | None:
    return cut_noise_from_secret(terms, _noise_secret(linkage))


def _noise_secret(linkage: AuditedLinkage) -> bytes:
    return np.random.default_rng([linkage.scene.seed, 3]).bytes(SECRET_BYTES)


def _prepare_features(table: PartyData, rows: Integers | None) -> Features:
    frame = table.features()
    rules, party = FeatureRules(kinds=table.own.features.kinds), str(table.own.party)
    return to_features(fit_preprocessor(frame, party=party, rows=rows, rules=rules, label=table.columns.label), frame)


def _numeric_features(features: Features) -> Floats:
    """Columns an attacker wants back: numbers, or codes where there are none."""
    found = features.numbers if features.numbers.shape[1] else features.codes
    return np.asarray(found, dtype=np.float64)


def _numeric_labels(primary: PrimaryData) -> Floats:
    """Labels as numbers; of several classes the commonest against the rest."""
    if primary.task_type is TaskType.NUMBERS:
        return np.asarray(primary.labels, dtype=np.float64)
    kinds, count = np.unique(primary.labels, return_counts=True)
    return np.asarray(primary.labels == kinds[count.argmax()], dtype=np.float64)


def _n_known_rows(n_rows: int) -> int:
    return min(n_rows - 1, max(MIN_KNOWN_ROWS, round(KNOWN_SHARE * n_rows)))
