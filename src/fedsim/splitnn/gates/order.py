"""The sort gate (paper, section 4.2): the order of every record's partners, set once before training.

Similarities never change while training, so sorting the lists is sorting the rows of the outputs, at no cost.

Letters: n records, K partners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedsim.types import Floats, Integers


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Every record's partners and how similar they are."""

    partner: Integers  # (n, K)
    similarity: Floats  # (n, K)

    @classmethod
    def without_records(cls, k: int) -> Neighbours:
        """The shape of a list with nobody in it."""
        return cls(np.zeros((0, k), dtype=np.int64), np.zeros((0, k)))

    def __len__(self) -> int:
        return len(self.partner)

    @property
    def k(self) -> int:
        return int(self.partner.shape[1])

    def reordered(self, order: Integers) -> Neighbours:
        """Each record's partners in the order of its row; a narrower order keeps fewer."""
        return Neighbours(
            np.take_along_axis(self.partner, order, axis=1), np.take_along_axis(self.similarity, order, axis=1)
        )


class Order(Protocol):
    """A rule that puts the partners of every record in order."""

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours: ...


@dataclass(frozen=True)
class BySimilarity:
    """The sort gate: least similar first."""

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return neighbours.reordered(neighbours.similarity.argsort(axis=1, kind="stable"))


@dataclass(frozen=True)
class Shuffled:
    """No sort gate (ablation): lists come nearest first from linkage, so leaving them alone would be sorting them."""

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return neighbours.reordered(rng.random(neighbours.similarity.shape).argsort(axis=1))


def most_similar(neighbours: Neighbours) -> Neighbours:
    """The one partner with the greatest similarity, the first of equals."""
    return neighbours.reordered(neighbours.similarity.argmax(axis=1)[:, None])
