"""The paper's ablations of FedSim, and its merge gate that takes a mean: gates that only experiments use.

Letters: B records of a batch, K partners of a list, R outputs per pair, T outputs of the task.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn.gates import MergeGate, MergeShape, PredictionTask, SimilarityInput, WeightedOutputs
from fedsim.splitnn.layers import Perceptron
from fedsim.splitnn.methods import FedSim
from fedsim.types import Links


@dataclass(frozen=True)
class Shuffled:
    """No sort gate: linkage returns the nearest first, so an unchanged list would still be sorted."""

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links:
        return neighbours.reorder(rng.random(neighbours.partner.shape).argsort(axis=1))


@dataclass(frozen=True)
class SimilarityAsWeight:
    """The paper's "without weight gate": the similarity, which may be negative, is the weight."""

    def build(self, inputs: SimilarityInput) -> nn.Module:
        return MeanSimilarity(inputs.fields)


class MeanSimilarity(nn.Module):
    """The mean over the fields; a missing field counts as 0."""

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.fields = fields

    def forward(self, similarity: Tensor) -> Tensor:
        return similarity[..., : self.fields].mean(dim=-1)  # (B, K)


@dataclass(frozen=True)
class PerceptronMerge:
    """The paper's "without CNN": a perceptron of similar size on the flattened outputs."""

    hidden: tuple[int, ...] = (1600, 1000, 400)
    dropout: float = 0.0

    def build(self, shape: MergeShape) -> nn.Module:
        return PerceptronMergeNetwork(shape, self)


class PerceptronMergeNetwork(nn.Module):
    """All weighted outputs, concatenated, then a perceptron."""

    def __init__(self, shape: MergeShape, sizes: PerceptronMerge) -> None:
        super().__init__()
        inputs = sum(shape.partners) * shape.outputs + shape.matched
        self.perceptron = Perceptron([inputs, *sizes.hidden, shape.task.outputs], sizes.dropout)

    def forward(self, lists: Sequence[WeightedOutputs], primary: Tensor, generator: torch.Generator | None) -> Tensor:
        flat = [weighted.outputs.flatten(1) for weighted in lists]  # each (B, K * R)
        flat += [part for weighted in lists for part in weighted.matched]
        return self.perceptron.on_parts(flat, generator).unsqueeze(1)  # (B, 1, T)


@dataclass(frozen=True)
class MeanMerge:
    """The weighted mean over all partners of all lists; a pair then has as many outputs as the task."""

    def build(self, shape: MergeShape) -> nn.Module:
        if isinstance(shape.weight, SimilarityAsWeight):
            raise SettingError(
                "MeanMerge divides by the sum of the weights, and similarities may add up to zero; choose LearntWeight",
                code="mean-of-similarities",
            )
        if shape.outputs != shape.task.outputs:
            raise SettingError(
                f"outputs={shape.outputs} per pair cannot be averaged into {shape.task.outputs}; set "
                f"outputs={shape.task.outputs} or choose another merge gate",
                code="mean-merge-outputs",
            )
        if shape.matched:
            message = "MeanMerge has no inputs beside the partners' outputs; leave out the match gate"
            raise SettingError(message, code="mean-merge-match")
        return MeanMergeNetwork(shape.task)


class MeanMergeNetwork(nn.Module):
    """Predictions averaged with weights that sum to one."""

    def __init__(self, task: PredictionTask) -> None:
        super().__init__()
        self.task = task

    def forward(self, lists: Sequence[WeightedOutputs], primary: Tensor, generator: torch.Generator | None) -> Tensor:
        outputs = torch.cat([weighted.outputs for weighted in lists], dim=1)  # (B, all K, T)
        weight = torch.cat([weighted.weight for weighted in lists], dim=1)  # (B, all K)
        mean = outputs.sum(dim=1, keepdim=True) / weight.sum(dim=1)[:, None, None]  # (B, 1, T)
        return self.task.score(mean)


@dataclass(frozen=True)
class SortedByWeight:
    """The sort gate's alternative of Algorithm 1, line 10: the merge gate sees the rows in the order of their weights.

    The weights change in every step, so unlike the order by similarity this one is computed in the network.
    """

    merge: MergeGate

    def build(self, shape: MergeShape) -> nn.Module:
        return SortedByWeightNetwork(self.merge.build(shape))


class SortedByWeightNetwork(nn.Module):
    """Least weight first, then another merge gate."""

    def __init__(self, merge: nn.Module) -> None:
        super().__init__()
        self.merge = merge

    def forward(self, lists: Sequence[WeightedOutputs], primary: Tensor, generator: torch.Generator | None) -> Tensor:
        scores: Tensor = self.merge([_sorted_by_weight(weighted) for weighted in lists], primary, generator)
        return scores  # (B, 1, T)


def _sorted_by_weight(weighted: WeightedOutputs) -> WeightedOutputs:
    weight, order = weighted.weight.sort(dim=1, stable=True)  # (B, K)
    return replace(weighted, outputs=weighted.outputs.take_along_dim(order.unsqueeze(-1), dim=1), weight=weight)


# Rungs refer to these variants of a preset's FedSim by name.


def without_weight(fedsim: FedSim) -> FedSim:
    """Return the method without its weight gate."""
    return replace(fedsim, weight=SimilarityAsWeight())


def without_sort(fedsim: FedSim) -> FedSim:
    """Return the method without its sort gate."""
    return replace(fedsim, order=Shuffled())


def without_cnn(fedsim: FedSim) -> FedSim:
    """Return the method without its convolution."""
    return replace(fedsim, merge=PerceptronMerge())


def by_weight(fedsim: FedSim) -> FedSim:
    """Return the method with a sort gate that orders by weight."""
    return replace(fedsim, merge=SortedByWeight(fedsim.merge))


def mean_merge(fedsim: FedSim) -> FedSim:
    """Return the method with the weighted mean as its merge gate; for numbers and two classes."""
    return replace(fedsim, merge=MeanMerge(), outputs=1, match=None)
