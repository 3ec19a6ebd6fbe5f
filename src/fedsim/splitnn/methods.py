"""The training methods of the paper and the networks they build above the cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn.gates import (
    Batch,
    Branch,
    BranchShape,
    BySimilarity,
    ConvolutionMerge,
    LearntWeight,
    MeanMerge,
    MergeGate,
    MergeShape,
    Neighbours,
    PredictionTask,
    SimilarityAsWeight,
    SortGate,
    WeightedOutputs,
    WeightGate,
    gather_rows,
    keep_most_similar,
)
from fedsim.splitnn.layers import (
    Bare,
    Features,
    Local,
    LocalNetwork,
    Perceptron,
    QuantileBins,
    RawFeatureNetwork,
    split_linear,
    uninitialised_linear,
)

__all__ = ["AvgSim", "Combine", "Exact", "FeatureSim", "FedSim", "Solo", "Top1Sim"]

# What a method is: which partners it uses, what runs below the cut, and the network above it
#
# A method is a frozen description; ``build`` turns it into the primary's module. To add one: a file in ``methods/``, a
# line in its ``__init__`` and a line in ``tests/contract/test_method.py``.


class PartnerRequirement(Enum):
    """What a method asks of the lists."""

    NONE = "no secondary takes part"
    EVERY = "every record has K partners"
    SOME = "a record may have none, written as row -1"


@dataclass(frozen=True, eq=False)
class NetworkSpec:
    """What the primary's network is built for."""

    features: Features  # the primary's training rows
    local: Local
    branches: tuple[BranchShape, ...]
    task: PredictionTask


class Method(Protocol):
    """A way to learn from linked records; its module maps (Batch, generator) to scores (B, opinions, outputs)."""

    @property
    def partners(self) -> PartnerRequirement: ...

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        """The partners it uses, in its order; done once, before training and before prediction."""

    def build(self, plan: NetworkSpec) -> nn.Module:
        """The primary's network, its weights not drawn yet."""


# Above the cut: one preliminary output per pair of a record and a partner (paper, section 4.2, Algorithm 1, line 7)
#
# The first layer is computed in parts, W_P c_P + W_S c_S: the primary's part once per record, the secondaries' once per
# distinct row, so the K-fold concatenation never exists. It is one weight matrix all the same, for LAMB's trust ratio.
#
# Letters: B records, K partners, U distinct rows, C cut width, E width beside the pair, A hidden units, R outputs.


class Aggregation(nn.Module):
    """(c_P, c_S, what stands beside the pair) -> hidden -> outputs, for every pair."""

    def __init__(self, inputs: Sequence[int], hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = uninitialised_linear(sum(inputs), hidden)
        self.second = uninitialised_linear(hidden, outputs)

    def forward(self, primary: Tensor, branch: Branch, beside: Tensor | None = None) -> Tensor:
        """``primary`` is (B, C), or (B, K, C) where it differs from partner to partner; the result is (B, K, R)."""
        outputs: Tensor = self.second(self.hidden(primary, branch, beside))  # (B, K, R)
        return outputs

    def hidden(self, primary: Tensor, branch: Branch, beside: Tensor | None = None) -> Tensor:
        """The first layer of every pair, after ReLU."""
        parts = [primary, *branch.activations, *([] if beside is None else [beside])]
        own, *others = split_linear(self.first, parts)  # (B, A) or (B, K, A)
        theirs, per_pair = others[: len(branch.activations)], others[len(branch.activations) :]
        total = gather_rows(sum(theirs[1:], start=theirs[0]), branch.position)  # (U, A) -> (B, K, A)
        total = total + (own.unsqueeze(1) if own.dim() == 2 else own)  # (B, K, A)
        return F.relu(sum(per_pair, start=total), inplace=True)  # (B, K, A)


# The ordinary split network: each record beside at most one partner of every list
#
# Letters: B records, U distinct rows, A hidden units, T outputs of the task.


class OnePartnerNetwork(nn.Module):
    """The primary's part and its partners' cut layers side by side, then a perceptron."""

    def __init__(self, own: LocalNetwork | RawFeatureNetwork, plan: NetworkSpec, hidden: Sequence[int]) -> None:
        super().__init__()
        widths = [width for shape in plan.branches for width in shape.widths]
        self.own = own
        self.perceptron = Perceptron([sum(widths, start=own.width), *hidden, plan.task.outputs], plan.local.dropout)

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        partners = [(part, branch.position) for branch in batch.branches for part in branch.activations]
        parts = [self.own(batch.features, generator), *(part for part, _ in partners)]
        total, *theirs = split_linear(self.perceptron.first, parts)  # (B, A), then (U, A) each
        for table, (_, position) in zip(theirs, partners, strict=True):
            total = total + gather_rows(table, position).squeeze(1)  # (B, A)
        return self.perceptron.rest(total, generator).unsqueeze(1)  # (B, 1, T)


# FedSim (paper, section 4.2, Algorithm 1)
#
# Lines of the algorithm stand beside the code; 4-5 and 14-15 belong to the secondary, 12-13 to the training step, and
# the sort of line 10 was done once on the lists.
#
# Letters: B records, K partners of a list, C cut width, R outputs per pair, T outputs of the task.


@dataclass(frozen=True)
class FedSim:
    """The three gates, each of which can be exchanged, around a split network.

    ``outputs`` is the paper's l_m. With ``similarity_bins`` the aggregation also sees the similarity of each pair,
    spread over that many quantiles (preset ``modern``); the paper shows it to the weight gate alone.
    """

    hidden: int = 100
    outputs: int = 10
    weight: WeightGate = field(default_factory=LearntWeight)
    order: SortGate = field(default_factory=BySimilarity)
    merge: MergeGate = field(default_factory=ConvolutionMerge)
    similarity_bins: int = 0
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return self.order.arrange(neighbours, rng)

    def build(self, plan: NetworkSpec) -> nn.Module:
        if min(self.hidden, self.outputs) < 1:
            raise SettingError(f"hidden={self.hidden}, outputs={self.outputs}; both are at least 1")
        if isinstance(self.merge, MeanMerge) and isinstance(self.weight, SimilarityAsWeight):
            raise SettingError("similarities may add up to zero, so they cannot weigh a mean; choose LearntWeight")
        return FedSimNetwork(self, plan)


class FedSimNetwork(nn.Module):
    """Local network, one set of gates per list of partners, one merge gate for all."""

    def __init__(self, sizes: FedSim, plan: NetworkSpec) -> None:
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

    def weighted(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, list[WeightedOutputs]]:
        """All up to the merge gate."""
        c_p = self.local(batch.features, generator)  # line 6: (B, C)
        weighted = []
        for gates, branch in zip(self.lists, batch.branches, strict=True):
            o, w = gates(c_p, branch)  # lines 7 and 8: (B, K, R), (B, K)
            weighted.append(WeightedOutputs(w.unsqueeze(-1) * self.task.squash(o), w))  # line 9: (B, K, R)
        return c_p, weighted

    def gates(self) -> list[ListGates]:
        """The gates of every list, in order."""
        return [gates for gates in self.lists if isinstance(gates, ListGates)]


class ListGates(nn.Module):
    """What belongs to one list of partners: its aggregation and its weight gate."""

    def __init__(self, sizes: FedSim, cut: int, shape: BranchShape) -> None:
        super().__init__()
        self.bins = (
            QuantileBins(shape.similarity.reshape(-1, 1), sizes.similarity_bins) if sizes.similarity_bins else None
        )
        self.aggregate = Aggregation([cut, *shape.widths, sizes.similarity_bins], sizes.hidden, sizes.outputs)
        self.weigh = sizes.weight.build()

    def forward(self, c_p: Tensor, branch: Branch) -> tuple[Tensor, Tensor]:
        beside = None if self.bins is None else self.bins(branch.similarity.unsqueeze(-1)).squeeze(-2)  # (B, K, bins)
        return self.aggregate(c_p, branch, beside), self.weigh(branch.similarity)


# AvgSim (paper, section 3): the mean of the predictions over the K partners, similarities unused
#
# Letters: B records, K partners of a list, C cut width, T outputs of the task.


@dataclass(frozen=True)
class AvgSim:
    """A split network per pair; the loss is taken on the mean prediction."""

    hidden: int = 100
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return neighbours

    def build(self, plan: NetworkSpec) -> nn.Module:
        return AvgSimNetwork(self, plan)


class AvgSimNetwork(nn.Module):
    """Pairs of all lists count the same."""

    def __init__(self, sizes: AvgSim, plan: NetworkSpec) -> None:
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


# FeatureSim (paper, section 3): the similarity is one more feature of the primary's record, every pair a sample
#
# The loss is taken pair by pair, the prediction is the mean over the K pairs (the authors' code left that out).
#
# Letters: B records, K partners of a list, E encoded features, H hidden units, C cut width, T outputs of the task.


@dataclass(frozen=True)
class FeatureSim:
    """A split network per pair, the pair's similarity among its inputs."""

    hidden: int = 100
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return neighbours

    def build(self, plan: NetworkSpec) -> nn.Module:
        return FeatureSimNetwork(self, plan)


class FeatureSimNetwork(nn.Module):
    """The primary's local network takes E + 1 inputs; its first layer is computed once per record all the same."""

    def __init__(self, sizes: FeatureSim, plan: NetworkSpec) -> None:
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


# Top1Sim (paper, section 3): only the most similar partner counts, as in ordinary record linkage


@dataclass(frozen=True)
class Top1Sim:
    """A plain split network on each record and its most similar partner of every secondary."""

    hidden: int = 100
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return keep_most_similar(neighbours)

    def build(self, plan: NetworkSpec) -> nn.Module:
        return OnePartnerNetwork(plan.local.build(plan.features), plan, [self.hidden])


# Exact (paper, section 3): only the partner with the very same identifier counts
#
# The lists say row -1 where there is none. Such a record meets zeros at the cut; the paper fills in the mean features
# of the secondary instead. Either way all these records see the same, and the network learns what it means.


@dataclass(frozen=True)
class Exact:
    """A plain split network on each record and its equal, if it has one."""

    hidden: int = 100
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.SOME

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        there = np.where(neighbours.partner < 0, -np.inf, neighbours.similarity)
        return neighbours.reordered(there.argmax(axis=1)[:, None])

    def build(self, plan: NetworkSpec) -> nn.Module:
        return OnePartnerNetwork(plan.local.build(plan.features), plan, [self.hidden])


# Solo (paper, section 5): the primary alone


@dataclass(frozen=True)
class Solo:
    """A perceptron on the primary's own features."""

    hidden: tuple[int, ...] = (400, 200)
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.NONE

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return neighbours

    def build(self, plan: NetworkSpec) -> nn.Module:
        return OnePartnerNetwork(Bare(plan.local.encoding).build(plan.features), plan, self.hidden)


# Combine (paper, section 5): all features in one place, the bound that no federation can pass
#
# It sends features across the cut, so it is for simulations alone.


@dataclass(frozen=True)
class Combine:
    """A perceptron on the features of each record and of its most similar partner."""

    hidden: tuple[int, ...] = (200, 100)
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return keep_most_similar(neighbours)

    def build(self, plan: NetworkSpec) -> nn.Module:
        return OnePartnerNetwork(Bare(plan.local.encoding).build(plan.features), plan, self.hidden)
