"""FeatureSim (paper, section 3): the similarity is one more feature of the primary's record, every pair a sample.

The loss is taken pair by pair, the prediction is the mean over the K pairs (the authors' code left that out).

Letters: B records, K partners of a list, E encoded features, H hidden units, C cut width, T outputs of the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.splitnn.aggregate import Aggregation
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.layers import Perceptron, split_linear
from fedsim.splitnn.links import Batch
from fedsim.splitnn.local import Bare, Local
from fedsim.splitnn.method import Blueprint, Partners


@dataclass(frozen=True)
class FeatureSim:
    """A split network per pair, the pair's similarity among its inputs."""

    hidden: int = 100
    partners: ClassVar[Partners] = Partners.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return neighbours

    def below(self, local: Local) -> Local | Bare:
        return local

    def build(self, plan: Blueprint) -> nn.Module:
        return FeatureSimNetwork(self, plan)


class FeatureSimNetwork(nn.Module):
    """The primary's local network takes E + 1 inputs; its first layer is computed once per record all the same."""

    def __init__(self, sizes: FeatureSim, plan: Blueprint) -> None:
        super().__init__()
        local = plan.local
        self.encode = local.encoding.build(plan.features)
        self.perceptron = Perceptron([self.encode.width + 1, *local.hidden, local.cut], local.dropout)
        self.lists = nn.ModuleList(
            [Aggregation([local.cut, *shape.widths], sizes.hidden, plan.task.outputs) for shape in plan.branches]
        )

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        record = self.encode(batch.features)  # (B, E)
        opinions = []
        for aggregate, branch in zip(self.lists, batch.branches, strict=True):
            own, similar = split_linear(self.perceptron.first, [record, branch.similarity.unsqueeze(-1)])
            c_p = self.perceptron.rest(own.unsqueeze(1) + similar, generator)  # (B, K, H) -> (B, K, C)
            opinions.append(aggregate(c_p, branch))  # (B, K, T)
        return torch.cat(opinions, dim=1)
