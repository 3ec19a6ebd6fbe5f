"""The weight gate (paper, section 4.2, Algorithm 1, line 8): how much a partner counts, from its similarity.

Letters: B records, K partners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from fedsim.splitnn.layers import Perceptron

FLOOR = 1e-7  # weights stay above zero, so that they can be normalised


class Weight(Protocol):
    """A way to weigh partners; its module maps (B, K) similarities to (B, K) weights."""

    def build(self) -> nn.Module: ...


@dataclass(frozen=True)
class LearntWeight:
    """The paper's similarity model: a perceptron from one number to one number."""

    hidden: int = 10

    def build(self) -> nn.Module:
        return SimilarityModel(self.hidden)


@dataclass(frozen=True)
class SimilarityAsWeight:
    """The paper's "without weight gate": the similarity itself is the weight, below zero or not."""

    def build(self) -> nn.Module:
        return nn.Identity()


class SimilarityModel(nn.Module):
    """1 -> hidden -> 1 behind a sigmoid."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.perceptron = Perceptron([1, hidden, 1])

    def forward(self, similarity: Tensor) -> Tensor:
        raised: Tensor = self.perceptron(similarity.unsqueeze(-1)).squeeze(-1)  # (B, K)
        return raised.sigmoid() + FLOOR
