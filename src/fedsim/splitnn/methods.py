"""The training methods of the paper and the networks they build above the cut.

A method is a frozen dataclass of settings; ``build`` turns it into the primary's network. To add one, write such a
class, register it in ``fedsim.registry.METHODS`` and add it to ``tests/training_fixtures.py``; the contract tests then
cover it.

Letters: B records, K partners of a list, U distinct rows, C width of the cut layer, E encoded features, A hidden units,
R outputs per pair, M opinions per record, T outputs of the task, N members.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn import gates, layers
from fedsim.splitnn.gates import (
    Batch,
    Branch,
    BranchShape,
    MatchGate,
    WeightedOutputs,
    gather_rows,
    keep_most_similar,
)
from fedsim.splitnn.party_model import OMITTED_IF_DEFAULT
from fedsim.types import Features, Links

__all__ = ["AvgSim", "Exact", "FeatureSim", "FedSim", "Solo", "Top1Sim"]


class PartnerRequirement(Enum):
    """What a method requires of the neighbour lists."""

    NONE = "no secondary takes part"
    EVERY = "every record has K partners"
    SOME = "a record may have none, written as row -1"


@dataclass(frozen=True, eq=False)
class NetworkSpec:
    """What is needed to build the primary's network."""

    features: Features  # the primary's training rows
    local: layers.Local
    branches: tuple[BranchShape, ...]
    task: gates.PredictionTask


class Method(Protocol):
    """A way to learn from linked records; its module maps (Batch, generator) to scores (B, M, T)."""

    @property
    def partners(self) -> PartnerRequirement: ...

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links:
        """Return the partners that the method uses, in its order; called once before training and before prediction."""

    def build(self, spec: NetworkSpec) -> nn.Module:
        """Return the primary's network; its weights are not drawn yet."""


# Networks that several methods share


class Aggregation(nn.Module):
    """One output per pair of a record and a partner (paper, section 4.2, Algorithm 1, line 7).

    The first layer is computed in parts, W_P c_P + W_S c_S: the primary's part once per record, the secondaries' once
    per distinct row, so the K-fold concatenation never exists. It is still one weight matrix, for LAMB's trust ratio.
    """

    def __init__(self, inputs: Sequence[int], hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = layers.uninitialised_linear(sum(inputs), hidden)
        self.second = layers.uninitialised_linear(hidden, outputs)

    def forward(self, primary: Tensor | None, branch: Branch, per_pair: Tensor | None = None) -> Tensor:
        """Return (B, K, R); ``primary`` is (B, C), (B, K, C) if it differs by partner, or None for no input.

        ``per_pair``, (B, K, any width), is an additional input for every pair.
        """
        before, extra = ([] if part is None else [part] for part in (primary, per_pair))
        shares = layers.split_linear(self.first, [*before, *branch.activations, *extra])
        own, others = shares[: len(before)], shares[len(before) :]  # own: (B, A) or (B, K, A)
        n_secondaries = len(branch.activations)
        total = gather_rows(sum(others[1:n_secondaries], start=others[0]), branch.position)  # (U, A) -> (B, K, A)
        for share in own:
            total = total + (share.unsqueeze(1) if share.dim() == 2 else share)
        hidden = F.relu(sum(others[n_secondaries:], start=total), inplace=True)  # (B, K, A)
        outputs: Tensor = self.second(hidden)  # (B, K, R)
        return outputs


class OnePartnerNetwork(nn.Module):
    """The ordinary split network: each record joined with at most one partner per list, then a perceptron."""

    def __init__(
        self, own: layers.LocalNetwork | layers.RawFeatureNetwork, spec: NetworkSpec, hidden: Sequence[int]
    ) -> None:
        super().__init__()
        widths = [width for shape in spec.branches for width in shape.widths]
        self.own = own
        sizes = [sum(widths, start=own.width), *hidden, spec.task.outputs]
        self.perceptron = layers.Perceptron(sizes, spec.local.dropout)

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        partners = [(table, branch.position) for branch in batch.branches for table in branch.activations]
        parts = [self.own(batch.features, generator), *(table for table, _ in partners)]
        total, *shares = layers.split_linear(self.perceptron.first, parts)  # (B, A), then (U, A) each
        for share, (_, position) in zip(shares, partners, strict=True):
            total = total + gather_rows(share, position).squeeze(1)  # (B, A)
        return self.perceptron.rest(total, generator).unsqueeze(1)  # (B, 1, T)


class Members(nn.Module):
    """Networks of the same shape, trained side by side as one: every product runs once for all of them.

    Each member has its own weights and dropout masks. The secondaries' activations are shared, so members cost no
    traffic; so are the submodules listed in ``shared`` by the network's class. The members' scores are opinions on a
    record, which the task averages as predictions.
    """

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        copies = [copy.deepcopy(network) for _ in range(members - 1)]
        for other in copies:
            for path in getattr(network, "shared", ()):
                parent, _, name = path.rpartition(".")
                owner = other.get_submodule(parent)
                delattr(owner, name)
                object.__setattr__(owner, name, network.get_submodule(path))  # without registering its weights again
        self.networks = nn.ModuleList([network, *copies])

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        n_members, weights = len(self.networks), [dict(network.named_parameters()) for network in self.networks]
        stacked = {name: torch.stack([own[name] for own in weights]) for name in weights[-1]}
        for tensor in stacked.values():
            if tensor.requires_grad:  # the loss is a mean over members, but each learns from its own loss, as if alone
                tensor.register_hook(lambda gradient: gradient * n_members)

        def scores(own: dict[str, Tensor]) -> Tensor:
            found: Tensor = torch.func.functional_call(self.networks[0], own, (batch, generator))
            return found  # (B, M, T)

        by_member = torch.vmap(scores, randomness="different")(stacked)  # (N, B, M, T)
        return by_member.transpose(0, 1).flatten(1, 2)  # (B, N * M, T)


def member_networks(network: nn.Module) -> list[nn.Module]:
    """Return the networks that are trained side by side: the members of :class:`Members`, or the network itself."""
    return list(network.networks) if isinstance(network, Members) else [network]


def _pair_aggregations(spec: NetworkSpec, hidden: int) -> nn.ModuleList:
    """Return one aggregation per list, with predictions as outputs."""
    cut, outputs = spec.local.cut, spec.task.outputs
    return nn.ModuleList([Aggregation([cut, *shape.widths], hidden, outputs) for shape in spec.branches])


# FedSim. The comments name the lines of Algorithm 1; 4-5 and 14-15 belong to the secondary, 12-13 to the training step,
# and the sort of line 10 was done once on the lists.


@dataclass(frozen=True)
class FedSim:
    """A split network with three interchangeable gates (paper, section 4.2, Algorithm 1).

    Parameters
    ----------
    hidden
        Hidden units of the aggregation.
    outputs
        Outputs per pair, the paper's l_m.
    weight, order, merge
        The weight gate, the sort gate and the merge gate.
    similarity_bins
        If above 0, the aggregation also sees the similarity of each pair, spread over that many quantiles (preset
        ``modern``); the paper shows it to the weight gate alone.
    match
        If given, each list gets a match gate. The merge gate then also sees each partner's activations, weighted by the
        probability that the partner is the record's match, and the probability that none is. Lists in which no single
        partner stands out have no match gate.
    primary_in_pairs
        Whether the aggregation sees the record together with its partner, as in the paper. If not, only the merge gate
        relates them, and members share everything that is computed per pair.
    """

    hidden: int = 100
    outputs: int = 10
    weight: gates.WeightGate = field(default_factory=gates.LearntWeight)
    order: gates.SortGate = field(default_factory=gates.BySimilarity)
    merge: gates.MergeGate = field(default_factory=gates.AttentionMerge)
    similarity_bins: int = 0
    match: MatchGate | None = field(default=None, metadata=OMITTED_IF_DEFAULT)
    primary_in_pairs: bool = field(default=True, metadata=OMITTED_IF_DEFAULT)
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.EVERY

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links:
        return self.order.arrange(neighbours, rng)

    def build(self, spec: NetworkSpec) -> nn.Module:
        if min(self.hidden, self.outputs) < 1:
            message = f"hidden={self.hidden}, outputs={self.outputs}; both must be at least 1"
            raise SettingError(message, code="empty-layer")
        return FedSimNetwork(self, spec)


class FedSimNetwork(nn.Module):
    """Local network, one set of gates per list of partners, one merge gate for all.

    Members have their own local networks and merge gates. They share the per-pair gates, where most of the time is
    spent: separate ones would not improve results (docs/networks.md has the measurement).
    """

    shared: ClassVar[tuple[str, ...]] = ("lists",)

    def __init__(self, sizes: FedSim, spec: NetworkSpec) -> None:
        super().__init__()
        self.task = spec.task
        self.local = spec.local.build(spec.features)
        lists = [ListGates(sizes, spec.local.cut, shape) for shape in spec.branches]
        self.lists = nn.ModuleList(lists)
        partners, cut = tuple(shape.partners for shape in spec.branches), spec.local.cut
        matched = sum(entry.matched for entry in lists)
        self.merge = sizes.merge.build(gates.MergeShape(partners, sizes.outputs, cut, spec.task, sizes.weight, matched))

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        c_p, weighted = self.weighted(batch, generator)
        y: Tensor = self.merge(weighted, c_p, generator)  # line 11: (B, 1, T)
        return y

    def weighted(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, list[WeightedOutputs]]:
        """Return the inputs of the merge gate: c_P and the weighted outputs of every list."""
        c_p = self.local(batch.features, generator)  # line 6: (B, C)
        pairs = zip(self.lists, batch.branches, strict=True)
        weighted = [list_gates(c_p, branch, self.task) for list_gates, branch in pairs]
        if batch.absent is not None:
            weighted = [one.drop(batch.absent[:, place]) for place, one in enumerate(weighted)]
        return c_p, weighted


class ListGates(nn.Module):
    """The aggregation, the weight gate and, if there is one, the match gate of one list of partners."""

    def __init__(self, sizes: FedSim, cut: int, shape: BranchShape) -> None:
        super().__init__()
        n_bins = sizes.similarity_bins
        self.inputs = gates.SimilarityInput(shape.similarity)
        fields = self.inputs.fields
        self.bins = layers.QuantileBins(shape.similarity.reshape(-1, fields), n_bins) if n_bins else None
        per_pair = fields * n_bins + self.inputs.width - fields if n_bins else 0
        own = [cut] if sizes.primary_in_pairs else []
        self.sees_primary = sizes.primary_in_pairs
        self.aggregate = Aggregation([*own, *shape.widths, per_pair], sizes.hidden, sizes.outputs)
        self.weigh = sizes.weight.build(self.inputs)
        self.match = None if sizes.match is None else sizes.match.build(shape, self.inputs)
        self.matched = 0 if self.match is None else sum(shape.widths) + 1  # inputs that it adds to the merge gate

    def forward(self, c_p: Tensor, branch: Branch, task: gates.PredictionTask) -> WeightedOutputs:
        similarity = self.inputs(branch.similarity)  # (B, K, I)
        per_pair = None
        if self.bins is not None:
            values, indicators = similarity.tensor_split([self.inputs.fields], dim=-1)
            heights = self.bins(values).flatten(2)  # (B, K, F * bins)
            per_pair = torch.cat([heights, indicators], dim=-1) if self.inputs.fields > 1 else heights
        o = self.aggregate(c_p if self.sees_primary else None, branch, per_pair)  # line 7: (B, K, R)
        w = self.weigh(similarity)  # line 8: (B, K)
        weighted = WeightedOutputs(w.unsqueeze(-1) * task.squash(o), w)  # line 9: (B, K, R)
        if self.match is None:
            return weighted
        probability = self.match(branch.similarity, similarity)  # (B, K + 1)
        sent = gather_rows(torch.cat(branch.activations, dim=1), branch.position)  # (B, K, W)
        return replace(weighted, taken=probability[:, :-1, None] * sent, unmatched=probability[:, -1:])


@dataclass(frozen=True)
class AvgSim:
    """A split network per pair; the loss is computed on the mean prediction over all partners (paper, section 3)."""

    hidden: int = 100
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.EVERY

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links:
        return neighbours

    def build(self, spec: NetworkSpec) -> nn.Module:
        return AvgSimNetwork(self, spec)


class AvgSimNetwork(nn.Module):
    """Pairs of all lists count equally; similarities are unused."""

    def __init__(self, sizes: AvgSim, spec: NetworkSpec) -> None:
        super().__init__()
        self.task = spec.task
        self.local = spec.local.build(spec.features)
        self.lists = _pair_aggregations(spec, sizes.hidden)

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        c_p = self.local(batch.features, generator)  # (B, C)
        pairs = [aggregate(c_p, branch) for aggregate, branch in zip(self.lists, batch.branches, strict=True)]
        return self.task.average(torch.cat(pairs, dim=1))  # (B, all K, T) -> (B, 1, T)


@dataclass(frozen=True)
class FeatureSim:
    """A split network per pair, with the pair's similarity among the primary's inputs (paper, section 3).

    The loss is computed per pair; the prediction is the mean over the pairs, which the authors' code left out.
    """

    hidden: int = 100
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.EVERY

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links:
        return neighbours

    def build(self, spec: NetworkSpec) -> nn.Module:
        return FeatureSimNetwork(self, spec)


class FeatureSimNetwork(nn.Module):
    """The primary's local network takes E + I inputs; its first layer is still computed once per record."""

    def __init__(self, sizes: FeatureSim, spec: NetworkSpec) -> None:
        super().__init__()
        local = spec.local
        self.encode = local.encoding.build(spec.features)
        inputs = [gates.SimilarityInput(shape.similarity) for shape in spec.branches]
        self.inputs, self.per_pair = nn.ModuleList(inputs), max(entry.width for entry in inputs)
        self.perceptron = layers.Perceptron(
            [self.encode.width + self.per_pair, *local.hidden, local.cut], local.dropout
        )
        self.lists = _pair_aggregations(spec, sizes.hidden)

    def forward(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        record = self.encode(batch.features)  # (B, E)
        opinions = []
        for aggregate, inputs, branch in zip(self.lists, self.inputs, batch.branches, strict=True):
            per_pair = inputs(branch.similarity)
            per_pair = F.pad(per_pair, (0, self.per_pair - per_pair.shape[2]))  # lists may compare fewer fields
            own, similarity = layers.split_linear(self.perceptron.first, [record, per_pair])
            c_p = self.perceptron.rest(own.unsqueeze(1) + similarity, generator)  # (B, K, A) -> (B, K, C)
            opinions.append(aggregate(c_p, branch))  # (B, K, T)
        return torch.cat(opinions, dim=1)  # (B, all K, T)


@dataclass(frozen=True)
class Top1Sim:
    """A split network on each record and its most similar partner, as in ordinary linkage (paper, section 3)."""

    hidden: int = 100
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.EVERY

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links:
        return keep_most_similar(neighbours)

    def build(self, spec: NetworkSpec) -> nn.Module:
        return OnePartnerNetwork(spec.local.build(spec.features), spec, [self.hidden])


@dataclass(frozen=True)
class Exact:
    """A split network on each record and the partner with equal identifiers, if there is one (paper, section 3).

    A record without such a partner (row -1) sees zeros at the cut; the paper uses the secondary's mean features
    instead. Either way, all such records see the same input, and the network learns what it means.
    """

    hidden: int = 100
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.SOME

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links:
        similarity = np.where(neighbours.partner < 0, -np.inf, neighbours.overall)
        return neighbours.reorder(similarity.argmax(axis=1)[:, None])

    def build(self, spec: NetworkSpec) -> nn.Module:
        return OnePartnerNetwork(spec.local.build(spec.features), spec, [self.hidden])


@dataclass(frozen=True)
class Solo:
    """A perceptron on the primary's own features (paper, section 5)."""

    hidden: tuple[int, ...] = (400, 200)
    partners: ClassVar[PartnerRequirement] = PartnerRequirement.NONE

    def arrange(self, neighbours: Links, rng: np.random.Generator) -> Links:
        return neighbours

    def build(self, spec: NetworkSpec) -> nn.Module:
        return OnePartnerNetwork(layers.Bare(spec.local.encoding).build(spec.features), spec, self.hidden)
