"""Train under sealed labels on another machine: embed a partner's protected rows, attack them, and train on them.

Requires only torch, NumPy and scikit-learn. The protection is part of a training's metadata, so that one file of arrays
can be used for every embedding and noise level. Letters: m records of the partner.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from fedsim.contribution.rungs import Rung, RungOutcome, SplitArrays, run_training
from fedsim.privacy.mechanisms import NoisyFeatures
from fedsim.registry import PRESETS
from fedsim.splitnn import Features
from fedsim.splitnn.party_model import RandomSource
from fedsim.splitnn.secondary_model import embed
from fedsim.types import AnyArray, Floats32, Integers
from fedsim_audit.attacks.cut_layer_attacks import inversion_attack

PROTECTION = "protection"  # the metadata key that distinguishes results
SEALED = "sealed"  # the key that marks the protection as SealedTerms
ATTACKED_ROWS, KNOWN_SHARE = 3_000, 0.05
INVERSION = "inversion_r2"  # of a training's figures


@dataclass(frozen=True)
class SealedTerms:
    """What a partner sends once: its embedding, and the noise on its features.

    Parameters
    ----------
    embedding
        As in ``protection.embedding`` of a job.
    noise
        As in ``protection.features.noise`` of a job; 0 for none.
    """

    embedding: str = "random"
    noise: float = 0.0

    def as_metadata(self) -> dict[str, Any]:
        """Return the metadata of a training under these terms."""
        return {PROTECTION: json.dumps(asdict(self)), SEALED: True}

    @classmethod
    def of(cls, about: dict[str, Any]) -> Self:
        """Read the terms from the metadata of a training."""
        return cls(**json.loads(about[PROTECTION]))


def train_sealed(rung: Rung, arrays: SplitArrays) -> RungOutcome:
    """Train on the embedding that a partner sends under the terms in the metadata, and invert that embedding."""
    terms, (plain,) = SealedTerms.of(arrays.about), arrays.secondaries
    source = RandomSource(arrays.about["seed"], plain.name)
    width = PRESETS[rung.preset].local.cut
    sent = embed(_noisy_features(plain.features, terms.noise, source), terms.embedding, width, source)
    linked = replace(plain, features=Features(sent))
    outcome = run_training(rung, replace(arrays, secondaries=(linked,)))
    score = invert_sample(sent, plain.features, np.unique(linked.partner), source.rng("inversion"))
    return replace(outcome, figures=outcome.figures | {INVERSION: score})


def _noisy_features(features: Features, noise: float, source: RandomSource) -> Features:
    if not noise:
        return features
    rng, mechanism = source.rng(f"noise {noise:g}"), NoisyFeatures(noise)
    numbers = mechanism.add_noise(features.numbers, rng.standard_normal(features.numbers.shape))
    coins = rng.random((*features.codes.shape, 2))
    codes = mechanism.randomise_categories(features.codes, features.cardinalities, coins)
    return replace(features, numbers=numbers.astype(np.float32), codes=codes, spread=features.many_valued)


def invert_sample(sent: Floats32, features: Features, linked: Integers, rng: np.random.Generator) -> float:
    """Return the R2 of the audit's feature inversion on a sample of the linked rows, some of which are known."""
    rows = rng.permutation(linked)[:ATTACKED_ROWS]
    columns: AnyArray = features.numbers if features.numbers.shape[1] else features.codes  # as in the audit
    known = np.arange(max(20, round(KNOWN_SHARE * len(rows))))
    return inversion_attack(sent[rows], columns[rows], known, rng=rng).score.value
