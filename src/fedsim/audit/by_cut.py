"""A short training in this process with all that crosses the cut noted, and what each side reads out of it.

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

from fedsim.attack.completion import completion_attack
from fedsim.attack.eavesdrop import Eavesdropper, mean_by_row
from fedsim.attack.finding import Adversary, Finding
from fedsim.attack.gradients import direction_attack, named_labels, norm_attack
from fedsim.attack.inversion import inversion_attack
from fedsim.audit.attempt import Attempt
from fedsim.audit.guard import missing_noise
from fedsim.audit.rows import NOTHING, Guarantee
from fedsim.audit.scene import Linkage
from fedsim.data.features import Rules, fit_preparation
from fedsim.data.splits import random_split
from fedsim.errors import InputError
from fedsim.party.feature_noise import noisy_features
from fedsim.party.job import Job
from fedsim.party.own_table import OwnTable, classes_of, numbers_of
from fedsim.party.primary import config_of, features_of
from fedsim.party.protecting import noise_of
from fedsim.party.protection import CutTerms, FeatureTerms, Protection
from fedsim.privacy.keyed import SECRET_BYTES
from fedsim.privacy.mechanisms import ClipAndNoise, NoisyFeatures
from fedsim.privacy.mechanisms.features import WIDEST
from fedsim.protocol.cut_noise import CutNoise
from fedsim.protocol.guarded import Guarded, Laid
from fedsim.splitnn.below import start_secondary
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.secondary import LocalSecondary
from fedsim.training import Goal, HeldList, PrimaryData, train_with
from fedsim.training.metrics import Metrics
from fedsim.types import Floats, Integers, Split

KNOWN_SHARE = 0.05
FEWEST_KNOWN = 20
DELTA = 1e-5
LEARNING_SHARE = 0.25  # of the steps: gradients there are long and say little


@dataclass(frozen=True, eq=False)
class Subject:
    """What is trained on: both sides' features, the labels, and which records train."""

    job: Job
    primary: PrimaryData
    secondary: Features  # in the secondary's own order
    split: Split

    def __repr__(self) -> str:
        return f"Subject({len(self.secondary)} rows)"


@dataclass(frozen=True, eq=False)
class Heard:
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
    laid: Mapping[str, Laid] = field(default_factory=dict)  # the noise that was laid on either side

    @property
    def most_sent(self) -> int:
        return int(self.counts.max())

    def __repr__(self) -> str:
        return f"Heard({len(self.rows)} rows)"


def subject_of(job: Job, primary: OwnTable, secondary: OwnTable, split: Split) -> Subject:
    """Both tables as the parties would prepare them."""
    party = str(primary.own.party)
    sorts = job.task.kind == "classification"
    labels: NDArray[Any] = classes_of(primary.label(), party)[0] if sorts else numbers_of(primary.label(), party)
    goal = Goal.CLASSES if sorts else Goal.NUMBERS
    return Subject(
        job,
        PrimaryData(_features(primary, split.train), labels, goal, primary.own.name),
        _features(secondary, None),
        split,
    )


def halves(n_records: int, seed: int) -> Split:
    """Which records train, validate and test, as in a job."""
    return random_split(n_records, np.random.default_rng([seed, 2]))


def listened(subject: Subject, linkage: Linkage, epochs: int, protection: Protection | None = None) -> Heard:
    """Train for some epochs and note what crosses, under the job's protection or another."""
    wanted = subject.job.protection if protection is None else protection
    torch.set_num_threads(1)
    config = replace(config_of(subject.job), epochs=epochs, patience=None, save_steps=None)
    below = replace(config.below, clip=wanted.activations.clip if wanted.activations else None)
    steps = epochs * config.steps_per_epoch(len(subject.split.train))
    used = _guarded(subject, linkage, wanted)
    local = start_secondary(linkage.scene.name, used.take(linkage.order), below, total_steps=steps)
    answering = Guarded(local, answers=_noise(wanted.activations, linkage))
    ear = Eavesdropper(answering, int(LEARNING_SHARE * steps))
    sending = Guarded(ear, sends=_noise(wanted.gradients, linkage))
    lists = [HeldList(Neighbours(linkage.view.partner, linkage.view.similarity), (sending,))]
    result = train_with(subject.primary, lists, subject.split, config)
    heard = _heard(subject, linkage, ear, local, result.metrics["validation"])
    laid = {"features": _laid_on(subject.secondary, used), "activations": answering.laid, "gradients": sending.laid}
    heard = replace(heard, laid=laid, test=result.metrics["test"])
    if wanted.gradients is None or wanted.gradients.noise == 0:
        return heard
    # The mean of so much noise is the shorter the more often a row was sent: that would tell counts, not gradients.
    return replace(heard, gradients=heard.gradients * np.sqrt(heard.counts)[:, None])


def attempts(heard: Heard, subject: Subject, linkage: Linkage, rng: np.random.Generator) -> Iterator[Attempt]:
    """Labels read by the secondary, features read by the primary."""
    known = rng.choice(len(heard.rows), _n_known(len(heard.rows)), replace=False)
    features = _numbers(subject.secondary)[heard.rows]
    protection = subject.job.protection
    yield Attempt(
        Adversary.PRIMARY,
        "feature inversion",
        f"the features of {linkage.scene.name}",
        lambda: inversion_attack(heard.activations, features, known, rng=rng),
        _of_features(protection, heard.most_sent),
        memory=16.0 * heard.activations.size,
    )
    whose = "whether the records near a row lie above the median label"
    promised = _accounted(protection.gradients, heard.most_sent, bounds_auc=True)
    for name, run in {
        "gradient norm": lambda: norm_attack(heard.gradients, heard.labels, rng=rng),
        "gradient direction": lambda: direction_attack(heard.gradients, heard.labels, known, rng=rng),
    }.items():
        yield Attempt(Adversary.SECONDARY, name, whose, run, promised)
    yield Attempt(
        Adversary.SECONDARY,
        "row counts",
        f"{whose}, by how often it is asked for",
        lambda: _counted(heard, rng),
        NOTHING,
    )
    yield from _laid(heard, protection)
    yield Attempt(
        Adversary.SECONDARY, "model completion", whose, lambda: _completed(heard, features, known, rng), NOTHING
    )


def _laid(heard: Heard, protection: Protection) -> Iterator[Attempt]:
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
            yield Attempt(who, f"noise left out of {what}", f"what noise on {what} should hide", run, promised)


def _guarded(subject: Subject, linkage: Linkage, wanted: Protection) -> Features:
    """The secondary's features with the noise that is wanted on them."""
    if wanted.features is None:
        return subject.secondary
    return noisy_features(subject.secondary, wanted.features, _secret(linkage), table=linkage.scene.name)


def _laid_on(features: Features, used: Features) -> Laid:
    """The noise on features, in deviations of their columns."""
    laid, before = Laid(), features.numbers.astype(np.float64)
    deviation = before.std(axis=0)
    varies = deviation > 0
    scaled, noisy = (
        (numbers - before.mean(axis=0))[:, varies] / deviation[varies] for numbers in (before, used.numbers)
    )
    laid.add(torch.from_numpy(np.clip(scaled, -WIDEST, WIDEST)), torch.from_numpy(noisy))
    return laid


def _heard(subject: Subject, linkage: Linkage, ear: Eavesdropper, local: LocalSecondary, metrics: Metrics) -> Heard:
    if not ear.crossings:
        raise InputError("nothing crossed the cut; train for more epochs, or smaller batches")
    pseudonym = np.concatenate([crossing.rows for crossing in ear.crossings])
    seen, activations = mean_by_row(pseudonym, np.concatenate([crossing.activations for crossing in ear.crossings]))
    every = np.concatenate([crossing.gradients for crossing in ear.crossings])
    gradients = mean_by_row(pseudonym, every)[1]
    train = subject.split.train
    label = named_labels(linkage.view.partner[train], _as_numbers(subject.primary)[train], len(linkage.order))[seen]
    own = local.infer(torch.from_numpy(seen)).numpy().astype(np.float64)
    above = label > np.median(label)
    length = float(np.median(np.linalg.norm(every, axis=1)))
    counts = np.bincount(pseudonym)[seen].astype(np.int64)
    return Heard(linkage.order[seen], activations, gradients, own, above, counts, length, metrics)


def _completed(heard: Heard, features: Floats, known: Integers, rng: np.random.Generator) -> Finding:
    """What counts is what training together adds to the secondary's own features."""
    found = completion_attack(heard.own, features, heard.labels, known, rng=rng)
    raw = max(0.5, min(0.999, found.figures["AUC from raw features"]))
    return replace(found, blind=raw, knew=f"{found.knew}; guessing is the same attack on its raw features")


def _counted(heard: Heard, rng: np.random.Generator) -> Finding:
    """Rows in demand stand where records are dense; no noise on gradients hides that."""
    found = norm_attack(heard.counts[:, None].astype(np.float64), heard.labels, rng=rng)
    return replace(found, attack="row counts", knew="how often each of its rows was asked for")


def _of_features(protection: Protection, sent: int) -> Guarantee:
    """What noise on features promises, which lasts; else what noise on activations does."""
    if protection.features is None:
        return _accounted(protection.activations, sent)
    return Guarantee(NoisyFeatures(protection.features.noise).guarantee, claimed=True)


def _accounted(terms: CutTerms | None, sent: int, *, bounds_auc: bool = False) -> Guarantee:
    """What clip and noise promise of one row sent so often."""
    if terms is None:
        return NOTHING
    mechanism = ClipAndNoise(terms.clip, terms.noise)
    if terms.noise == 0:
        return Guarantee("none: rows are clipped without noise")
    spent = mechanism.after(steps=sent)
    sentence = f"({spent.epsilon(delta=DELTA):.3g}, {DELTA:g})-private for one row sent {sent} times, given the weights"
    return Guarantee(sentence, spent.most_auc) if bounds_auc else Guarantee(sentence, claimed=True)


def _noise(terms: CutTerms | None, linkage: Linkage) -> CutNoise | None:
    return noise_of(terms, _secret(linkage))


def _secret(linkage: Linkage) -> bytes:
    return np.random.default_rng([linkage.scene.seed, 3]).bytes(SECRET_BYTES)


def _features(table: OwnTable, rows: Integers | None) -> Features:
    frame = table.features()
    rules, party = Rules(kinds=table.own.features.kinds), str(table.own.party)
    return features_of(fit_preparation(frame, party=party, rows=rows, rules=rules, label=table.columns.label), frame)


def _numbers(features: Features) -> Floats:
    """Columns an attacker wants back: numbers, or codes where there are none."""
    found = features.numbers if features.numbers.shape[1] else features.codes
    return np.asarray(found, dtype=np.float64)


def _as_numbers(primary: PrimaryData) -> Floats:
    """Labels as numbers; of several classes the commonest against the rest."""
    if primary.goal is Goal.NUMBERS:
        return np.asarray(primary.labels, dtype=np.float64)
    kinds, count = np.unique(primary.labels, return_counts=True)
    return np.asarray(primary.labels == kinds[count.argmax()], dtype=np.float64)


def _n_known(n_rows: int) -> int:
    return min(n_rows - 1, max(FEWEST_KNOWN, round(KNOWN_SHARE * n_rows)))
