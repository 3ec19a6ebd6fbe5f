"""Every record's partners, their order (the sort gate), and a batch of them as the network above the cut sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.splitnn.features import FeatureTensors
from fedsim.types import Floats, Integers

# The sort gate (paper, section 4.2): the order of every record's partners, set once before training
#
# Similarities never change while training, so sorting the lists is sorting the rows of the outputs, at no cost.
#
# Letters: n records, K partners.


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


class SortGate(Protocol):
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


def keep_most_similar(neighbours: Neighbours) -> Neighbours:
    """The one partner with the greatest similarity, the first of equals."""
    return neighbours.reordered(neighbours.similarity.argmax(axis=1)[:, None])


# What reaches the primary from below the cut, for one batch
#
# Letters: B records, K partners of each, U distinct partner rows of the batch, C width of a cut layer.


@dataclass(frozen=True, eq=False)
class Branch:
    """One list of partners: the activations of its distinct rows, and where each pair finds its own.

    Secondaries whose rows correspond one to one share a list, hence the tuple. ``position`` equals U where a record
    has no partner (Exact alone allows that).
    """

    activations: tuple[Tensor, ...]  # each (U, C)
    position: Tensor  # (B, K)
    similarity: Tensor  # (B, K)


@dataclass(frozen=True, eq=False)
class Batch:
    """The primary's own records and one branch per list of partners."""

    features: FeatureTensors
    branches: Sequence[Branch]


@dataclass(frozen=True, eq=False)
class BranchShape:
    """What a network must know of a list to be built: K, the cut widths of those who share it, its similarities."""

    partners: int
    widths: tuple[int, ...]
    similarity: NDArray[Any]  # of the training records


def gather_rows(table: Tensor, position: Tensor) -> Tensor:
    """``table[position]``, (U, A) -> (B, K, A), by the gather with the fastest gradient on CPU and GPU."""
    rows = table.index_select(0, position.flatten())
    return rows.view(*position.shape, table.shape[1])


def append_zero_row(activations: Tensor) -> Tensor:
    """One row of zeros more, for records without a partner."""
    return torch.cat([activations, activations.new_zeros(1, activations.shape[1])])
