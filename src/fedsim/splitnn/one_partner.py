"""The ordinary split network: each record beside at most one partner of every list.

Letters: B records, U distinct rows, A hidden units, T outputs of the task.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.splitnn.layers import Perceptron, split_linear
from fedsim.splitnn.links import Batch, spread_out
from fedsim.splitnn.local import BareColumns, LocalNetwork
from fedsim.splitnn.method import Blueprint


class OnePartnerNetwork(nn.Module):
    """The primary's part and its partners' cut layers side by side, then a perceptron."""

    def __init__(self, own: LocalNetwork | BareColumns, plan: Blueprint, hidden: Sequence[int]) -> None:
        super().__init__()
        widths = [width for shape in plan.branches for width in shape.widths]
        self.own = own
        self.perceptron = Perceptron([sum(widths, start=own.width), *hidden, plan.task.outputs], plan.local.dropout)

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        partners = [(part, branch.position) for branch in batch.branches for part in branch.activations]
        parts = [self.own(batch.features, generator), *(part for part, _ in partners)]
        total, *theirs = split_linear(self.perceptron.first, parts)  # (B, A), then (U, A) each
        for table, (_, position) in zip(theirs, partners, strict=True):
            total = total + spread_out(table, position).squeeze(1)  # (B, A)
        return self.perceptron.rest(total, generator).unsqueeze(1)  # (B, 1, T)
