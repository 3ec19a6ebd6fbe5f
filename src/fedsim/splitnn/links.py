"""What reaches the primary from below the cut, for one batch.

Letters: B records, K partners of each, U distinct partner rows of the batch, C width of a cut layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.splitnn.features import FeatureTensors


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


def spread_out(table: Tensor, position: Tensor) -> Tensor:
    """``table[position]``, (U, A) -> (B, K, A), by the gather with the fastest gradient on CPU and GPU."""
    rows = table.index_select(0, position.flatten())
    return rows.view(*position.shape, table.shape[1])


def with_nobody(activations: Tensor) -> Tensor:
    """One row of zeros more, for records without a partner."""
    return torch.cat([activations, activations.new_zeros(1, activations.shape[1])])
