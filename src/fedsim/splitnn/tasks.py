"""Prediction tasks: how scores become predictions, and the loss.

A network gives scores without bounds. Several opinions on one record (one per partner) are averaged as predictions,
not as scores, and the average is given back as a score, so every loss is computed from scores and stays finite.

Letters: B records, M opinions per record, T outputs (1, or one per class).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

PROBABILITY_MARGIN = 1e-6  # a mean of probabilities is kept this far from 0 and 1


class PredictionTask(Protocol):
    """The end of a network."""

    @property
    def outputs(self) -> int: ...

    def squash(self, outputs: Tensor) -> Tensor:
        """Preliminary outputs of a pair, brought into the range of predictions where the paper does so."""

    def score(self, squashed: Tensor) -> Tensor:
        """The score whose squashed value this is."""

    def average(self, scores: Tensor) -> Tensor:
        """(B, M, T) -> (B, 1, T): the score of the mean prediction."""

    def predict(self, scores: Tensor) -> Tensor:
        """(B, M, T) -> (B, T): predictions, averaged over the opinions."""

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over all records and opinions."""


@dataclass(frozen=True)
class Regression:
    """A number without bounds."""

    outputs: int = 1

    def squash(self, outputs: Tensor) -> Tensor:
        return outputs

    def score(self, squashed: Tensor) -> Tensor:
        return squashed

    def average(self, scores: Tensor) -> Tensor:
        return scores.mean(dim=1, keepdim=True)

    def predict(self, scores: Tensor) -> Tensor:
        return self.average(scores).squeeze(1)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(scores, _per_opinion(labels, scores))


@dataclass(frozen=True)
class BoundedRegression:
    """A number between 0 and 1 behind a sigmoid (the paper's min-max label)."""

    outputs: int = 1

    def squash(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def score(self, squashed: Tensor) -> Tensor:
        return torch.logit(squashed, eps=PROBABILITY_MARGIN)

    def average(self, scores: Tensor) -> Tensor:
        return _mean_log_odds(scores)

    def predict(self, scores: Tensor) -> Tensor:
        return scores.sigmoid().mean(dim=1)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(scores.sigmoid(), _per_opinion(labels, scores))


@dataclass(frozen=True)
class BinaryClassification:
    """The probability of the second of two classes."""

    outputs: int = 1

    def squash(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def score(self, squashed: Tensor) -> Tensor:
        return torch.logit(squashed, eps=PROBABILITY_MARGIN)

    def average(self, scores: Tensor) -> Tensor:
        return _mean_log_odds(scores)

    def predict(self, scores: Tensor) -> Tensor:
        return scores.sigmoid().mean(dim=1)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, _per_opinion(labels, scores))


@dataclass(frozen=True)
class MulticlassClassification:
    """The probabilities of three or more classes; the paper squashes nothing here."""

    outputs: int

    def squash(self, outputs: Tensor) -> Tensor:
        return outputs

    def score(self, squashed: Tensor) -> Tensor:
        return squashed

    def average(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(dim=2).logsumexp(dim=1, keepdim=True) - math.log(scores.shape[1])

    def predict(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=2).mean(dim=1)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        labels = labels.unsqueeze(1).expand(scores.shape[:2])  # (B, M)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def _per_opinion(labels: Tensor, scores: Tensor) -> Tensor:
    return labels.view(-1, 1, 1).expand_as(scores)


def _mean_log_odds(scores: Tensor) -> Tensor:
    """Log odds of the mean of the sigmoids, without ever leaving logarithms."""
    yes = F.logsigmoid(scores).logsumexp(dim=1, keepdim=True)
    no = F.logsigmoid(-scores).logsumexp(dim=1, keepdim=True)
    return yes - no
