"""The merge gate (paper, section 4.2, Algorithm 1, line 11): the weighted outputs of all partners become one score.

Several lists of partners meet here: every list has its own outputs and weights, and the merge sees them all.

Letters: B records, K partners of a list, R outputs per pair, C cut width, T outputs of the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn.layers import Perceptron, split_linear
from fedsim.splitnn.tasks import Task


@dataclass(frozen=True, eq=False)
class Weighted:
    """The outputs of one list, already multiplied by their weights."""

    outputs: Tensor  # (B, K, R)
    weight: Tensor  # (B, K)


@dataclass(frozen=True)
class MergeShape:
    """What a merge gate must know to be built."""

    partners: tuple[int, ...]
    outputs: int
    cut: int
    task: Task


class Merge(Protocol):
    """A way to merge; its module maps (lists of weighted outputs, c_P, generator) to scores (B, 1, T)."""

    def build(self, shape: MergeShape) -> nn.Module: ...


@dataclass(frozen=True)
class PerceptronMerge:
    """The paper's "without CNN": a perceptron of similar size on the flattened outputs."""

    hidden: tuple[int, ...] = (1600, 1000, 400)
    dropout: float = 0.0

    def build(self, shape: MergeShape) -> nn.Module:
        return FlatMerge(shape, self)


@dataclass(frozen=True)
class MeanMerge:
    """The weighted mean over all partners of all lists; outputs per pair are then those of the task."""

    def build(self, shape: MergeShape) -> nn.Module:
        if shape.outputs != shape.task.outputs:
            raise SettingError(
                f"outputs={shape.outputs} per pair cannot be averaged into {shape.task.outputs}; set "
                f"outputs={shape.task.outputs} or choose another merge gate"
            )
        return WeightedMean(shape.task)


class FlatMerge(nn.Module):
    """All weighted outputs side by side, then a perceptron."""

    def __init__(self, shape: MergeShape, sizes: PerceptronMerge) -> None:
        super().__init__()
        inputs = sum(shape.partners) * shape.outputs
        self.perceptron = Perceptron([inputs, *sizes.hidden, shape.task.outputs], sizes.dropout)

    def forward(self, lists: Sequence[Weighted], primary: Tensor, generator: torch.Generator | None) -> Tensor:
        parts = split_linear(self.perceptron.first, [weighted.outputs.flatten(1) for weighted in lists])
        return self.perceptron.rest(sum(parts[1:], start=parts[0]), generator).unsqueeze(1)  # (B, 1, T)


class WeightedMean(nn.Module):
    """Predictions averaged with weights that sum to one."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def forward(self, lists: Sequence[Weighted], primary: Tensor, generator: torch.Generator | None) -> Tensor:
        outputs = torch.cat([weighted.outputs for weighted in lists], dim=1)  # (B, all K, T)
        weight = torch.cat([weighted.weight for weighted in lists], dim=1)  # (B, all K)
        mean = outputs.sum(dim=1, keepdim=True) / weight.sum(dim=1)[:, None, None]  # (B, 1, T)
        return self.task.score(mean)
