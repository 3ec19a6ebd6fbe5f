"""FedSim (paper, section 4.2, Algorithm 1).

Lines of the algorithm stand beside the code; 4-5 and 14-15 belong to the secondary, 12-13 to the training step, and the
sort of line 10 was done once on the lists.

Letters: B records, K partners of a list, C cut width, R outputs per pair, T outputs of the task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn.aggregate import Aggregation
from fedsim.splitnn.encodings import Bins
from fedsim.splitnn.gates.convolution import ConvolutionMerge
from fedsim.splitnn.gates.merge import MeanMerge, Merge, MergeShape, Weighted
from fedsim.splitnn.gates.order import BySimilarity, Neighbours, Order
from fedsim.splitnn.gates.weight import LearntWeight, SimilarityAsWeight, Weight
from fedsim.splitnn.links import Batch, Branch, BranchShape
from fedsim.splitnn.local import Bare, Local
from fedsim.splitnn.method import Blueprint, Partners


@dataclass(frozen=True)
class FedSim:
    """The three gates, each of which can be exchanged, around a split network.

    ``outputs`` is the paper's l_m. With ``similarity_bins`` the aggregation also sees the similarity of each pair,
    spread over that many quantiles (preset ``modern``); the paper shows it to the weight gate alone.
    """

    hidden: int = 100
    outputs: int = 10
    weight: Weight = field(default_factory=LearntWeight)
    order: Order = field(default_factory=BySimilarity)
    merge: Merge = field(default_factory=ConvolutionMerge)
    similarity_bins: int = 0
    partners: ClassVar[Partners] = Partners.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return self.order.arrange(neighbours, rng)

    def below(self, local: Local) -> Local | Bare:
        return local

    def build(self, plan: Blueprint) -> nn.Module:
        if min(self.hidden, self.outputs) < 1:
            raise SettingError(f"hidden={self.hidden}, outputs={self.outputs}; both are at least 1")
        if isinstance(self.merge, MeanMerge) and isinstance(self.weight, SimilarityAsWeight):
            raise SettingError("similarities may add up to zero, so they cannot weigh a mean; choose LearntWeight")
        return FedSimNetwork(self, plan)


class FedSimNetwork(nn.Module):
    """Local network, one set of gates per list of partners, one merge gate for all."""

    def __init__(self, sizes: FedSim, plan: Blueprint) -> None:
        super().__init__()
        self.task = plan.task
        self.local = plan.local.build(plan.features)
        self.lists = nn.ModuleList([ListGates(sizes, plan.local.cut, shape) for shape in plan.branches])
        partners = tuple(shape.partners for shape in plan.branches)
        self.merge = sizes.merge.build(MergeShape(partners, sizes.outputs, plan.local.cut, plan.task))

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        c_p, weighted = self.weighted(batch, generator)
        y: Tensor = self.merge(weighted, c_p, generator)  # line 11: (B, 1, T)
        return y

    def weighted(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, list[Weighted]]:
        """All up to the merge gate."""
        c_p = self.local(batch.features, generator)  # line 6: (B, C)
        weighted = []
        for gates, branch in zip(self.lists, batch.branches, strict=True):
            o, w = gates(c_p, branch)  # lines 7 and 8: (B, K, R), (B, K)
            weighted.append(Weighted(w.unsqueeze(-1) * self.task.squash(o), w))  # line 9: (B, K, R)
        return c_p, weighted

    def gates(self) -> list[ListGates]:
        """The gates of every list, in order."""
        return [gates for gates in self.lists if isinstance(gates, ListGates)]


class ListGates(nn.Module):
    """What belongs to one list of partners: its aggregation and its weight gate."""

    def __init__(self, sizes: FedSim, cut: int, shape: BranchShape) -> None:
        super().__init__()
        self.bins = Bins(shape.similarity.reshape(-1, 1), sizes.similarity_bins) if sizes.similarity_bins else None
        self.aggregate = Aggregation([cut, *shape.widths, sizes.similarity_bins], sizes.hidden, sizes.outputs)
        self.weigh = sizes.weight.build()

    def forward(self, c_p: Tensor, branch: Branch) -> tuple[Tensor, Tensor]:
        beside = None if self.bins is None else self.bins(branch.similarity.unsqueeze(-1)).squeeze(-2)  # (B, K, bins)
        return self.aggregate(c_p, branch, beside), self.weigh(branch.similarity)
