"""Above the cut: prediction tasks, neighbour lists, the sort, weight and merge gates of Algorithm 1, and match gates.

Letters: n records, B records of a batch, K partners of a list, U distinct partner rows of a batch, C width of the cut
layer, A hidden units, R outputs per pair, M opinions per record, T outputs of the task (1, or one per class),
F compared fields, I network inputs derived from their similarities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.errors import InputError, SettingError
from fedsim.splitnn.layers import Dropout, FeatureTensors, LearntFactor, Perceptron, uninitialised_linear
from fedsim.types import AnyArray, Floats, Links, with_fields

# Prediction tasks: how scores become predictions, and the loss.
#
# A network outputs unbounded scores. Several opinions on one record (one per partner) are averaged as predictions, not
# as scores, and the average is converted back to a score, so every loss is computed from scores and stays finite.


PROBABILITY_MARGIN = 1e-6  # a mean of probabilities is kept this far from 0 and 1


class PredictionTask(Protocol):
    """The output stage of a network."""

    @property
    def outputs(self) -> int: ...

    def squash(self, outputs: Tensor) -> Tensor:
        """Map preliminary outputs of a pair to the range of predictions, where the paper does so."""

    def score(self, squashed: Tensor) -> Tensor:
        """Return the score for a squashed value; the inverse of ``squash``."""

    def average(self, scores: Tensor) -> Tensor:
        """Return the score of the mean prediction, (B, M, T) -> (B, 1, T)."""

    def predict(self, scores: Tensor) -> Tensor:
        """Return predictions averaged over the opinions, (B, M, T) -> (B, T)."""

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss over all records and opinions; ``weights``, (B,), multiply the records' losses."""


class _UnboundedScores:
    """The score is the prediction, or its logarithm: the paper squashes nothing here."""

    def squash(self, outputs: Tensor) -> Tensor:
        return outputs

    def score(self, squashed: Tensor) -> Tensor:
        return squashed


class _SigmoidScores:
    """The score is the log odds of a prediction between 0 and 1."""

    def squash(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def score(self, squashed: Tensor) -> Tensor:
        return torch.logit(squashed, eps=PROBABILITY_MARGIN)

    def average(self, scores: Tensor) -> Tensor:
        """Return the log odds of the mean of the sigmoids, computed in logarithms throughout."""
        positive = F.logsigmoid(scores).logsumexp(dim=1, keepdim=True)
        negative = F.logsigmoid(-scores).logsumexp(dim=1, keepdim=True)
        return positive - negative  # (B, 1, T)

    def predict(self, scores: Tensor) -> Tensor:
        return scores.sigmoid().mean(dim=1)


def _per_opinion(labels: Tensor, scores: Tensor) -> Tensor:
    return labels.view(-1, 1, 1).expand_as(scores)  # (B, M, T)


def _mean_loss(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of a per-record loss."""
    if weights is None:
        return loss(scores, labels)
    by_record = loss(scores, labels, reduction="none").reshape(len(weights), -1).mean(dim=1)  # (B,)
    return (by_record * weights).mean()


@dataclass(frozen=True)
class Regression(_UnboundedScores):
    """Predict an unbounded number."""

    outputs: int = 1

    def average(self, scores: Tensor) -> Tensor:
        return scores.mean(dim=1, keepdim=True)

    def predict(self, scores: Tensor) -> Tensor:
        return self.average(scores).squeeze(1)

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        return _mean_loss(F.mse_loss, scores, _per_opinion(labels, scores), weights)


@dataclass(frozen=True)
class BoundedRegression(_SigmoidScores):
    """Predict a number between 0 and 1 through a sigmoid (the paper's min-max label)."""

    outputs: int = 1

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        return _mean_loss(F.mse_loss, scores.sigmoid(), _per_opinion(labels, scores), weights)


@dataclass(frozen=True)
class BinaryClassification(_SigmoidScores):
    """Predict the probability of the second of two classes."""

    outputs: int = 1

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        return _mean_loss(F.binary_cross_entropy_with_logits, scores, _per_opinion(labels, scores), weights)


@dataclass(frozen=True)
class MulticlassClassification(_UnboundedScores):
    """Predict the probabilities of three or more classes."""

    outputs: int

    def average(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(dim=2).logsumexp(dim=1, keepdim=True) - math.log(scores.shape[1])

    def predict(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=2).mean(dim=1)

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        labels = labels.unsqueeze(1).expand(scores.shape[:2])  # (B, M)
        return _mean_loss(F.cross_entropy, scores.flatten(0, 1), labels.flatten(), weights)


# Neighbour lists and the sort gate (paper, section 4.2).
#
# Similarities never change during training, so sorting the lists once is the same as sorting the outputs in every step.


class SortGate(Protocol):
    """A rule that orders the partners of every record."""

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links: ...


@dataclass(frozen=True)
class BySimilarity:
    """The sort gate: least similar first."""

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links:
        return neighbours.reorder(neighbours.overall.argsort(axis=1, kind="stable"))


def keep_most_similar(neighbours: Links) -> Links:
    """Keep the partner with the greatest similarity; the first one in case of a tie."""
    return neighbours.reorder(neighbours.overall.argmax(axis=1)[:, None])


# What the primary's network receives for one batch


@dataclass(frozen=True, eq=False)
class Branch:
    """One list of partners: the activations of its distinct rows, and the position of each pair's row among them.

    Secondaries with rows in one-to-one correspondence share a list, hence the tuple. ``position`` is U where a record
    has no partner (only Exact allows that).
    """

    activations: tuple[Tensor, ...]  # each (U, C)
    position: Tensor  # (B, K)
    similarity: Tensor  # (B, K, F), NaN where missing


@dataclass(frozen=True, eq=False)
class Batch:
    """The primary's records and one branch per list of partners.

    ``absent`` marks the lists that are unavailable to a record; only FedSim supports this.
    """

    features: FeatureTensors
    branches: Sequence[Branch]
    absent: Tensor | None = None  # (B, lists)


@dataclass(frozen=True, eq=False)
class BranchShape:
    """What is needed to build the network of a list: K, the cut widths of its holders, sample similarities."""

    partners: int
    widths: tuple[int, ...]
    similarity: AnyArray  # of training records, (n, K, F)
    match: bool | None = None  # whether a restored network has a match gate here; None decides by the similarities

    def __post_init__(self) -> None:
        object.__setattr__(self, "similarity", with_fields(self.similarity))


def gather_rows(table: Tensor, position: Tensor) -> Tensor:
    """Return ``table[position]``, (U, A) -> (B, K, A), using the gather with the fastest gradient on CPU and GPU."""
    rows = table.index_select(0, position.flatten())  # (B * K, A)
    return rows.reshape(*position.shape, table.shape[1])


class SimilarityInput(nn.Module):
    """Similarities as inputs of a network, (B, K, F) -> (B, K, I); a missing one is 0, the mean of scaled similarities.

    With several fields, an indicator per field marks missing values. It stays 0 for a field that no training record
    lacked, because its weights are then untrained.
    """

    marked: Tensor

    def __init__(self, similarity: AnyArray) -> None:
        super().__init__()
        self.fields: int = similarity.shape[2]
        self.width = self.fields if self.fields == 1 else 2 * self.fields
        if self.fields > 1:
            self.register_buffer("marked", torch.from_numpy(np.isnan(similarity).any(axis=(0, 1))).float())  # (F,)

    def forward(self, similarity: Tensor) -> Tensor:
        if similarity.shape[-1] != self.fields:
            message = f"{similarity.shape[-1]} similarities per pair; the network was built for {self.fields}"
            raise InputError(f"{message}; compare the same fields as in training", code="other-fields")
        if self.fields == 1:
            return similarity
        missing = similarity.isnan()
        return torch.cat([similarity.masked_fill(missing, 0.0), missing * self.marked], dim=-1)


# The weight gate (paper, section 4.2, Algorithm 1, line 8): how much a partner counts, given its similarity


MIN_WEIGHT = 1e-7  # weights stay above zero, so that they can be normalised


class WeightGate(Protocol):
    """A way to weight partners; its module maps similarity inputs, (B, K, I), to weights, (B, K)."""

    def build(self, inputs: SimilarityInput) -> nn.Module: ...


@dataclass(frozen=True)
class LearntWeight:
    """The paper's similarity model: a perceptron that maps a pair's similarities to one number."""

    hidden: int = 10

    def build(self, inputs: SimilarityInput) -> nn.Module:
        return SimilarityModel(inputs.width, self.hidden)


class SimilarityModel(nn.Module):
    """I -> hidden -> 1, then a sigmoid; the paper has a single similarity, I = 1."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.perceptron = Perceptron([inputs, hidden, 1])

    def forward(self, similarity: Tensor) -> Tensor:
        score: Tensor = self.perceptron(similarity).squeeze(-1)  # (B, K)
        return score.sigmoid() + MIN_WEIGHT


# The merge gate (paper, section 4.2, Algorithm 1, line 11): one score from the weighted outputs of all partners.
#
# Every list has its own outputs and weights; the merge gate sees all of them.


@dataclass(frozen=True, eq=False)
class WeightedOutputs:
    """The outputs of one list, already multiplied by their weights, and the outputs of its match gate, if any."""

    outputs: Tensor  # (B, K, R)
    weight: Tensor  # (B, K)
    taken: Tensor | None = None  # (B, K, W), each partner's activations times its match probability
    unmatched: Tensor | None = None  # (B, 1), the probability that no partner matches

    def drop(self, absent: Tensor) -> WeightedOutputs:
        """Return the list with nothing sent and nothing matched for records where it is absent, (B,)."""
        keep = (~absent).to(self.outputs.dtype)[:, None]  # (B, 1)
        outputs, weight = self.outputs * keep[:, :, None], self.weight * keep
        if self.taken is None or self.unmatched is None:
            return WeightedOutputs(outputs, weight)
        return WeightedOutputs(outputs, weight, self.taken * keep[:, :, None], 1 - (1 - self.unmatched) * keep)

    @property
    def matched(self) -> list[Tensor]:
        """Inputs that the match gate, if any, adds to the merge gate: the match's expected activations and (B, 1)."""
        return [] if self.taken is None or self.unmatched is None else [self.taken.sum(dim=1), self.unmatched]


@dataclass(frozen=True)
class MergeShape:
    """What is needed to build a merge gate."""

    partners: tuple[int, ...]
    outputs: int
    cut: int
    task: PredictionTask
    weight: WeightGate
    matched: int = 0  # inputs that the match gates of all lists add


class MergeGate(Protocol):
    """A way to merge lists; its module maps (lists of weighted outputs, c_P, generator) to scores (B, 1, T)."""

    def build(self, shape: MergeShape) -> nn.Module: ...


# The merge gate of the preset ``modern``: several summaries of each list, and the primary's cut layer, feed one
# perceptron.
#
# Each attention head scores the partners of a list against the primary's cut layer and takes their weighted mean.
# Keys and values are the outputs themselves: a key projection can be absorbed into the query and a value projection
# into the next layer, and either would cost a product per pair. The convolution preserves what the order reveals; it
# mixes all outputs into a few channels, so its width does not grow with R.
#
# Letters: N heads, H channels, k kernel length.


@dataclass(frozen=True)
class AttentionMerge:
    """Attention heads, mean, maximum, the last partner and a small convolution; then hidden layers with dropout."""

    heads: int = 2
    channels: int = 8
    kernel: int = 3
    hidden: tuple[int, ...] = (256,)
    dropout: float = 0.2

    def build(self, shape: MergeShape) -> nn.Module:
        return AttentionMergeNetwork(shape, self)


class ListSummary(nn.Module):
    """What the merge gate sees of one list: (B, K, R), (B, C) -> (B, width)."""

    def __init__(self, partners: int, shape: MergeShape, sizes: AttentionMerge) -> None:
        super().__init__()
        if min(sizes.heads, sizes.channels, sizes.kernel) < 1:
            message = f"heads={sizes.heads}, channels={sizes.channels}, kernel={sizes.kernel}; each must be at least 1"
            raise SettingError(message, code="empty-convolution")
        self.heads, self.channels, self.taps = sizes.heads, sizes.channels, sizes.kernel
        self.query = uninitialised_linear(shape.cut, sizes.heads * shape.outputs)
        self.mix = uninitialised_linear(sizes.kernel * shape.outputs, sizes.channels)
        self.width = (sizes.heads + 3) * shape.outputs + sizes.channels * partners

    def forward(self, outputs: Tensor, primary: Tensor) -> Tensor:
        n, k, r = outputs.shape
        query = self.query(primary).reshape(n, self.heads, r)  # (B, N, R)
        agreement = query @ outputs.transpose(1, 2) / math.sqrt(r)  # (B, N, K)
        attended = (agreement.softmax(dim=2) @ outputs).flatten(1)  # (B, N * R)
        # The convolution is one product for all taps, each of which is then shifted, so the pairs are read only once.
        kernel = self.mix.weight.reshape(self.channels, self.taps, r).transpose(0, 1).flatten(0, 1)  # (k * H, R)
        mixed = F.linear(outputs, kernel).reshape(n, k, self.taps, self.channels)  # (B, K, k, H)
        before = self.taps // 2
        padded = F.pad(mixed, (0, 0, 0, 0, before, self.taps - 1 - before))  # (B, K + k - 1, k, H)
        shifted = [padded[:, tap : tap + k, tap] for tap in range(self.taps)]
        convolved = F.relu(sum(shifted, start=self.mix.bias)).flatten(1)  # (B, K * H)
        return torch.cat([attended, outputs.mean(dim=1), outputs.amax(dim=1), outputs[:, -1], convolved], dim=1)


class AttentionMergeNetwork(nn.Module):
    """A summary of each list, joined with the primary's cut layer."""

    def __init__(self, shape: MergeShape, sizes: AttentionMerge) -> None:
        super().__init__()
        summaries = [ListSummary(partners, shape, sizes) for partners in shape.partners]
        self.summaries = nn.ModuleList(summaries)
        self.list_widths = [entry.width for entry in summaries]
        self.dropout = Dropout(sizes.dropout)
        inputs = shape.cut + sum(self.list_widths) + shape.matched
        self.perceptron = Perceptron([inputs, *sizes.hidden, shape.task.outputs], sizes.dropout)

    def forward(self, lists: Sequence[WeightedOutputs], primary: Tensor, generator: torch.Generator | None) -> Tensor:
        pairs = zip(self.summaries, lists, strict=True)
        parts = [summarise(weighted.outputs, primary) for summarise, weighted in pairs]
        parts += [part for weighted in lists for part in weighted.matched]
        parts = [self.dropout(part, generator) for part in parts]
        return self.perceptron.on_parts([primary, *parts], generator).unsqueeze(1)  # (B, 1, T)


# The match gate: the probability that each partner of a list is the same entity as the record, or that none is.
#
# The gate is a softmax over the K partners and "no match". Its logits start from a record-linkage model in the style of
# Fellegi and Sunter, fitted without labels to the similarities of the training records. The model assumes that, field
# by field, the similarities of matches and of other pairs are normally distributed, and that a record has at most one
# match. Training then learns how far to trust that model, and corrects it.
#
# If partners are nearby rather than identical, as places are, no partner of a list stands out. The gate would then only
# add uninformative inputs, so it is left out.


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
