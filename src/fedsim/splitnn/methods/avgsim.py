"""AvgSim (paper, section 3): the mean of the predictions over the K partners, similarities unused.

Letters: B records, K partners of a list, C cut width, T outputs of the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.splitnn.aggregate import Aggregation
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.links import Batch
from fedsim.splitnn.local import Bare, Local
from fedsim.splitnn.method import Blueprint, Partners


@dataclass(frozen=True)
class AvgSim:
    """A split network per pair; the loss is taken on the mean prediction."""

    hidden: int = 100
    partners: ClassVar[Partners] = Partners.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return neighbours

    def below(self, local: Local) -> Local | Bare:
        return local

    def build(self, plan: Blueprint) -> nn.Module:
        return AvgSimNetwork(self, plan)


class AvgSimNetwork(nn.Module):
    """Pairs of all lists count the same."""

    def __init__(self, sizes: AvgSim, plan: Blueprint) -> None:
        super().__init__()
        self.task = plan.task
        self.local = plan.local.build(plan.features)
        self.lists = nn.ModuleList(
            [Aggregation([plan.local.cut, *shape.widths], sizes.hidden, plan.task.outputs) for shape in plan.branches]
        )

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        c_p = self.local(batch.features, generator)  # (B, C)
        pairs = [aggregate(c_p, branch) for aggregate, branch in zip(self.lists, batch.branches, strict=True)]
        return self.task.average(torch.cat(pairs, dim=1))  # (B, all K, T) -> (B, 1, T)
