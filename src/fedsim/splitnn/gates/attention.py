"""A merge gate for the product: attention over the partners, asked by the primary's record, beside the convolution.

Every head scores the partners of a list against the primary's cut layer and takes their weighted mean; the convolution
keeps what order and distance say. Both, and the primary's own cut layer, feed one perceptron.

Letters: B records, K partners, R outputs per pair, C cut width, N heads, D width of a head, T outputs of the task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.splitnn.gates.convolution import Convolution
from fedsim.splitnn.gates.merge import MergeShape, Weighted
from fedsim.splitnn.layers import Dropout, Perceptron, linear, split_linear


@dataclass(frozen=True)
class AttentionMerge:
    """Heads of attention and a convolution side by side, then hidden layers with dropout."""

    heads: int = 4
    head_width: int = 32
    channels: int = 8
    kernel: int = 7
    hidden: tuple[int, ...] = (400,)
    dropout: float = 0.2

    def build(self, shape: MergeShape) -> nn.Module:
        return AttendedMerge(shape, self)


class Attention(nn.Module):
    """One question per record to all partners of a list: (B, K, R), (B, C) -> (B, N * D)."""

    def __init__(self, outputs: int, cut: int, sizes: AttentionMerge) -> None:
        super().__init__()
        width = sizes.heads * sizes.head_width
        self.heads = sizes.heads
        self.query, self.key, self.value = linear(cut, width), linear(outputs, width), linear(outputs, width)

    def forward(self, outputs: Tensor, primary: Tensor) -> Tensor:
        query = self._by_head(self.query(primary).unsqueeze(1))  # (B, N, 1, D)
        key, value = self._by_head(self.key(outputs)), self._by_head(self.value(outputs))  # (B, N, K, D)
        agreement = query @ key.transpose(2, 3) / math.sqrt(key.shape[3])  # (B, N, 1, K)
        return (agreement.softmax(dim=3) @ value).flatten(1)  # (B, N * D)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], self.heads, -1).transpose(1, 2)


class AttendedMerge(nn.Module):
    """Attention and convolution per list, joined with the primary's cut layer."""

    def __init__(self, shape: MergeShape, sizes: AttentionMerge) -> None:
        super().__init__()
        kernels = [Convolution(sizes.channels, sizes.kernel) for _ in shape.partners]
        convolved = sum(kernel.width(k, shape.outputs) for kernel, k in zip(kernels, shape.partners, strict=True))
        attended = len(kernels) * sizes.heads * sizes.head_width
        self.kernels = nn.ModuleList(kernels)
        self.questions = nn.ModuleList([Attention(shape.outputs, shape.cut, sizes) for _ in kernels])
        self.dropout = Dropout(sizes.dropout)
        self.perceptron = Perceptron(
            [shape.cut + convolved + attended, *sizes.hidden, shape.task.outputs], sizes.dropout
        )

    def forward(self, lists: Sequence[Weighted], primary: Tensor, generator: torch.Generator | None) -> Tensor:
        convolved = [kernel(weighted.outputs) for kernel, weighted in zip(self.kernels, lists, strict=True)]
        attended = [ask(weighted.outputs, primary) for ask, weighted in zip(self.questions, lists, strict=True)]
        found = [primary, *(self.dropout(part, generator) for part in convolved), *attended]
        parts = split_linear(self.perceptron.first, found)
        return self.perceptron.rest(sum(parts[1:], start=parts[0]), generator).unsqueeze(1)  # (B, 1, T)
