"""Train under sealed labels on another machine: embed a partner's protected rows, attack them, and train on them.

Requires only torch, NumPy and scikit-learn. The protection is part of a training's metadata, so that one file of arrays
can be used for every embedding and noise level. Letters: m records of the partner.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from fedsim.attack.cut_layer_attacks import inversion_attack
from fedsim.contribution.rungs import LinkedSecondary, Rung, RungOutcome, SplitArrays, run_training
from fedsim.privacy.mechanisms import AveragedFeatures, ExchangedFeatures, NoisyFeatures
from fedsim.registry import PRESETS
from fedsim.splitnn import Features
from fedsim.splitnn.embedding import embed
from fedsim.splitnn.party_model import RandomSource
from fedsim.types import AnyArray, Floats32, Integers

PROTECTION = "protection"  # the metadata key that distinguishes results
SEALED = "sealed"  # the key that marks the protection as SealedTerms
ATTACKED_ROWS, KNOWN_SHARE = 3_000, 0.05
INVERSION = "inversion_r2"  # of a training's figures


@dataclass(frozen=True)
class SealedTerms:
    """What a partner sends once: its embedding, the noise on its features, and what the protected list adds.

    Parameters
    ----------
    embedding
        As in ``protection.embedding`` of a job.
    noise
        As in ``protection.features.noise`` of a job; 0 for none.
    links
        Whether records are linked by the protected list, the second of the arrays, instead of the first.
    exchange_of, average_of
        The minimum size of the groups in the protected list within which features are exchanged, or over which they are
        averaged; 0 for neither.
    """

    embedding: str = "random"
    noise: float = 0.0
    links: bool = False
    exchange_of: int = 0
    average_of: int = 0

    def as_metadata(self) -> dict[str, Any]:
        """Return the metadata of a training under these terms."""
        return {PROTECTION: json.dumps(asdict(self)), SEALED: True}

    @classmethod
    def of(cls, about: dict[str, Any]) -> Self:
        """Read the terms from the metadata of a training."""
        return cls(**json.loads(about[PROTECTION]))


def protected_list(linked: LinkedSecondary, groups: Integers | None) -> LinkedSecondary:
    """Return a list whose only feature is the group of neighbours of every row, if there are groups.

    A group takes less space than the averages of all columns, and the file of arrays already contains these columns.
    """
    numbers = np.zeros((len(linked.features), 0), np.float32)
    grouped = Features(numbers) if groups is None else Features(numbers, groups[:, None], (int(groups.max()) + 1,))
    return replace(linked, features=grouped, name=f"{linked.name}, protected")


def train_sealed(rung: Rung, arrays: SplitArrays) -> RungOutcome:
    """Train on the embedding that a partner sends under the terms in the metadata, and invert that embedding."""
    terms, (plain, protected) = SealedTerms.of(arrays.about), arrays.secondaries
    source = RandomSource(arrays.about["seed"], plain.name)
    group = protected.features.codes[:, 0] if terms.exchange_of or terms.average_of else None
    width = PRESETS[rung.preset].local.cut
    sent = embed(_protected_features(plain.features, group, terms, source), terms.embedding, width, source)
    linked = replace(protected if terms.links else plain, features=Features(sent), name=plain.name)
    outcome = run_training(rung, replace(arrays, secondaries=(linked,)))
    score = invert_sample(sent, plain.features, np.unique(linked.partner), source.rng("inversion"))
    return replace(outcome, figures=outcome.figures | {INVERSION: score})


def _protected_features(
    features: Features, group: Integers | None, terms: SealedTerms, source: RandomSource
) -> Features:
    numbers, codes, spread = features.numbers, features.codes, features.many_valued
    if group is not None and terms.exchange_of:
        uniforms = source.rng("mix").random(len(group))
        rows = ExchangedFeatures(terms.exchange_of).sources(group, uniforms)
        numbers, codes = numbers[rows], codes[rows]
    elif group is not None:
        averages = AveragedFeatures(terms.average_of)
        numbers, codes = averages.average(numbers, group), averages.most_common(codes, features.cardinalities, group)
    if terms.noise:
        rng, mechanism = source.rng(f"noise {terms.noise:g}"), NoisyFeatures(terms.noise)
        numbers = mechanism.add_noise(numbers, rng.standard_normal(numbers.shape))
        codes = mechanism.randomise_categories(codes, features.cardinalities, rng.random((*codes.shape, 2)))
    return replace(features, numbers=numbers.astype(np.float32), codes=codes, spread=spread)


def invert_sample(sent: Floats32, features: Features, linked: Integers, rng: np.random.Generator) -> float:
    """Return the R2 of the audit's feature inversion on a sample of the linked rows, some of which are known."""
    rows = rng.permutation(linked)[:ATTACKED_ROWS]
    columns: AnyArray = features.numbers if features.numbers.shape[1] else features.codes  # as in the audit
    known = np.arange(max(20, round(KNOWN_SHARE * len(rows))))
    return inversion_attack(sent[rows], columns[rows], known, rng=rng).score.value
