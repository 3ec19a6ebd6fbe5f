"""The match gate: the probability that each partner of a list is the same entity as the record, or that none is.

The gate is a softmax over the K partners and "no match". Its logits start from a record-linkage model in the style of
Fellegi and Sunter, fitted without labels to the similarities of the training records. The model assumes that, field by
field, the similarities of matches and of other pairs are normally distributed, and that a record has at most one match.
Training then learns how far to trust that model, and corrects it.

If partners are nearby rather than identical, as places are, no partner of a list stands out. The gate would then only
add uninformative inputs, so it is left out.

Letters: n records, B records of a batch, K partners of a list, F compared fields, I inputs of a pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.splitnn.gates import BranchShape, SimilarityInput
from fedsim.splitnn.layers import LearntFactor, Perceptron
from fedsim.types import AnyArray, Floats

EM_RECORDS = 4_000  # more records do not change the estimate
EM_ITERATIONS = 100
EM_TOLERANCE = 1e-4  # of the mean responsibility
MIN_VARIANCE = 0.02  # of scaled similarities, so that a constant field carries little weight
SHARE_BOUNDS = (0.01, 0.99)  # of records with a match


@dataclass(frozen=True, eq=False)
class MatchModel:
    """Distributions of the similarities of matches and of other pairs, (F,) each, and the share of matched records."""

    match_mean: Floats
    match_variance: Floats
    other_mean: Floats
    other_variance: Floats
    share: float

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """The least and greatest similarity between which the log ratio rises, (F,) each.

        The ratio of two normal densities peaks where their log slopes are equal; beyond that point a greater similarity
        would count for less, which is an artefact of the normal distribution.
        """
        bend = 1 / self.match_variance - 1 / self.other_variance
        slope = self.match_mean / self.match_variance - self.other_mean / self.other_variance
        turn = slope / np.where(bend == 0, 1.0, bend)
        return np.where(bend < 0, turn, -np.inf), np.where(bend > 0, turn, np.inf)

    def log_ratio(self, similarity: Floats) -> Floats:
        """Return log p(similarity | match) - log p(similarity | other) of each pair; missing fields contribute 0."""
        similarity = np.clip(similarity, *self.bounds)
        match = (similarity - self.match_mean) ** 2 / self.match_variance + np.log(self.match_variance)
        other = (similarity - self.other_mean) ** 2 / self.other_variance + np.log(self.other_variance)
        ratio: Floats = np.nansum(other - match, axis=-1) / 2  # (n, K)
        return ratio

    def responsibilities(self, similarity: Floats) -> Floats:
        """Return the probability that each partner is the match, (n, K); the remainder is that of no match."""
        logits = self.log_ratio(similarity) + self.log_odds(similarity.shape[1])  # (n, K); the logit of no match is 0
        top = np.maximum(logits.max(axis=1, keepdims=True), 0.0)
        odds = np.exp(logits - top)
        probability: Floats = odds / (odds.sum(axis=1, keepdims=True) + np.exp(-top))
        return probability

    def certainty(self, similarity: Floats) -> float:
        """Return the mean probability of the likeliest partner over matched records; 1/K if none stands out."""
        probability = self.responsibilities(similarity)
        return float(probability.max(axis=1).sum() / max(probability.sum(), np.finfo(float).tiny))

    def log_odds(self, k: int) -> float:
        """Return the prior log odds that a given one of K partners is the match."""
        return math.log(self.share / k / (1 - self.share))


def fit_match_model(similarity: AnyArray) -> MatchModel:
    """Fit the match model by expectation-maximisation, deterministically and without labels.

    Parameters
    ----------
    similarity
        Scaled similarities of the training records, (n, K, F), NaN where missing.
    """
    similarity = similarity[:: 1 + len(similarity) // EM_RECORDS].astype(np.float64)
    n_records, _, n_fields = similarity.shape
    if not n_records:
        zeros, ones = np.zeros(n_fields), np.ones(n_fields)
        return MatchModel(zeros, ones, zeros, ones, 0.5)
    present = ~np.isnan(similarity)
    filled = np.where(present, similarity, 0.0)
    # Start: the most similar partner of a record may be its match; the higher its similarity ranks among all records,
    # the more likely it is.
    overall = filled.sum(axis=2) / np.maximum(present.sum(axis=2), 1)  # (n, K)
    probability = np.zeros(overall.shape)
    best = overall.argmax(axis=1)
    rank = overall.max(axis=1).argsort(kind="stable").argsort()
    probability[np.arange(n_records), best] = (rank + 0.5) / n_records
    for _ in range(EM_ITERATIONS):
        moments = [_moments(filled, present * weight[:, :, np.newaxis]) for weight in (probability, 1.0 - probability)]
        share = float(np.clip(probability.sum(axis=1).mean(), *SHARE_BOUNDS))
        model = MatchModel(*moments[0], *moments[1], share)
        before, probability = probability, model.responsibilities(similarity)
        if np.abs(probability - before).mean() < EM_TOLERANCE:
            break
    return model


def _moments(values: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return weighted mean and variance per field; 0 and the least variance for a field without weight."""
    total = np.maximum(weight.sum(axis=(0, 1)), np.finfo(float).tiny)  # (F,)
    mean = (weight * values).sum(axis=(0, 1)) / total
    return mean, (weight * (values - mean) ** 2).sum(axis=(0, 1)) / total + MIN_VARIANCE


@dataclass(frozen=True)
class MatchGate:
    """Settings of the match gate.

    Parameters
    ----------
    hidden
        Hidden units of the correction that is learnt from the labels.
    min_certainty
        The gate of a list is left out if, on the training records, the mean probability of a matched record's likeliest
        partner is below this value; 0 always keeps the gate. Measured: firms by name .96 to .99, games by title .57,
        places .03 to .34; the gate helps only with the first.
    """

    hidden: int = 16
    min_certainty: float = 0.75

    def build(self, shape: BranchShape, inputs: SimilarityInput) -> MatchNetwork | None:
        """Return the gate of a list, or None if the gate is left out."""
        model = fit_match_model(shape.similarity)
        keep = shape.match
        if keep is None:
            keep = model.certainty(shape.similarity.astype(np.float64)) >= self.min_certainty
        return MatchNetwork(model, shape.partners, Perceptron([inputs.width, self.hidden, 1])) if keep else None


class MatchNetwork(nn.Module):
    """Raw similarities (B, K, F) and similarity inputs (B, K, I) -> probabilities (B, K + 1), the last for no match."""

    log_odds: Tensor
    match_mean: Tensor
    match_variance: Tensor
    other_mean: Tensor
    other_variance: Tensor
    least: Tensor
    greatest: Tensor

    def __init__(self, model: MatchModel, k: int, correct: Perceptron) -> None:
        super().__init__()
        for name in ("match_mean", "match_variance", "other_mean", "other_variance"):
            self.register_buffer(name, torch.tensor(getattr(model, name), dtype=torch.float32))  # (F,)
        for name, bound in zip(("least", "greatest"), model.bounds, strict=True):
            finite = torch.tensor(bound, dtype=torch.float32).nan_to_num()  # (F,); checkpoints hold no infinite numbers
            self.register_buffer(name, finite)
        self.register_buffer("log_odds", torch.tensor(model.log_odds(k)))
        self.trust = LearntFactor()
        self.correct = correct  # its last bias is the negated learnt logit of no match

    def forward(self, similarity: Tensor, inputs: Tensor) -> Tensor:
        similarity = similarity.clamp(self.least, self.greatest)
        match = (similarity - self.match_mean).square() / self.match_variance + self.match_variance.log()
        other = (similarity - self.other_mean).square() / self.other_variance + self.other_variance.log()
        ratio = (other - match).nansum(dim=-1) / 2  # (B, K)
        logits = self.trust(ratio + self.log_odds) + self.correct(inputs).squeeze(-1)  # (B, K)
        return torch.cat([logits, torch.zeros_like(logits[:, :1])], dim=1).softmax(dim=1)
