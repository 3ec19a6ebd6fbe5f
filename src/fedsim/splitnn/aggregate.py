"""Above the cut: one preliminary output per pair of a record and a partner (paper, section 4.2, Algorithm 1, line 7).

The first layer is computed in parts, W_P c_P + W_S c_S: the primary's part once per record, the secondaries' once per
distinct row, so the K-fold concatenation never exists. It is one weight matrix all the same, for LAMB's trust ratio.

Letters: B records, K partners, U distinct rows, C cut width, E width beside the pair, A hidden units, R outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedsim.splitnn.layers import linear, split_linear
from fedsim.splitnn.links import Branch, spread_out


class Aggregation(nn.Module):
    """(c_P, c_S, what stands beside the pair) -> hidden -> outputs, for every pair."""

    def __init__(self, inputs: Sequence[int], hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = linear(sum(inputs), hidden)
        self.second = linear(hidden, outputs)

    def forward(self, primary: Tensor, branch: Branch, beside: Tensor | None = None) -> Tensor:
        """``primary`` is (B, C), or (B, K, C) where it differs from partner to partner; the result is (B, K, R)."""
        outputs: Tensor = self.second(self.hidden(primary, branch, beside))  # (B, K, R)
        return outputs

    def hidden(self, primary: Tensor, branch: Branch, beside: Tensor | None = None) -> Tensor:
        """The first layer of every pair, after ReLU."""
        parts = [primary, *branch.activations, *([] if beside is None else [beside])]
        own, *others = split_linear(self.first, parts)  # (B, A) or (B, K, A)
        theirs, per_pair = others[: len(branch.activations)], others[len(branch.activations) :]
        total = spread_out(sum(theirs[1:], start=theirs[0]), branch.position)  # (U, A) -> (B, K, A)
        total = total + (own.unsqueeze(1) if own.dim() == 2 else own)  # (B, K, A)
        return F.relu(sum(per_pair, start=total), inplace=True)  # (B, K, A)
