"""Explanations of a trained FedSim model: weight curves, matches, integrated gradients of the merge gate, attributions.

Letters: n records, B records of a batch, K partners of a list, F compared fields, R outputs per pair, W numbers that a
partner sends, G points of a curve.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn import Features, Neighbours, gates, methods
from fedsim.training.data import as_features
from fedsim.training.model import Model
from fedsim.training.primary import PrimaryRecords
from fedsim.types import Floats, Integers

INTEGRATION_STEPS = 50
EXPLAINED_RECORDS = 256  # records per batch


def integrated_gradients(
    function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor], steps: int = INTEGRATION_STEPS
) -> list[Tensor]:
    """Return how much each input contributes to the outputs, against an input of zeros (Sundararajan et al., 2017).

    ``function`` maps the inputs to one number per record. The path integral is a Gauss-Legendre sum, so that the
    contributions of a record add up to its output minus that of zeros.
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    totals = [torch.zeros_like(entry) for entry in inputs]
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        scaled = [(entry.detach() * node).requires_grad_() for entry in inputs]
        with torch.enable_grad():
            slopes = torch.autograd.grad(function(scaled).sum(), scaled)
        for total, slope in zip(totals, slopes, strict=True):
            total.add_(slope, alpha=float(weight))
    return [entry.detach() * total for entry, total in zip(inputs, totals, strict=True)]


def merge_contributions(network: nn.Module, batch: gates.Batch, steps: int = INTEGRATION_STEPS) -> list[Tensor]:
    """Return the contribution of each weighted output to the prediction, (B, K, R) per list, the mean over members.

    A list with a match gate has a further column, (B, K, R + 1): what the partner contributes as the match. For
    classes, the prediction is the probability of the likeliest one.
    """
    networks = _fedsim_networks(network)
    with torch.no_grad():
        likeliest = networks[0].task.predict(network(batch)).argmax(dim=1, keepdim=True)  # (B, 1)
    by_member = [_member_contributions(member, batch, likeliest, steps) for member in networks]
    return [torch.stack(parts).mean(dim=0) for parts in zip(*by_member, strict=True)]


def _member_contributions(
    network: methods.FedSimNetwork, batch: gates.Batch, likeliest: Tensor, steps: int
) -> list[Tensor]:
    with torch.no_grad():
        primary, lists = network.weighted(batch)

    def prediction(inputs: Sequence[Tensor]) -> Tensor:
        moved = []
        for weighted, entry in zip(lists, inputs, strict=True):
            outputs, taken = entry.tensor_split([weighted.outputs.shape[2]], dim=2)
            moved.append(replace(weighted, outputs=outputs, taken=None if weighted.taken is None else taken))
        return network.task.predict(network.merge(moved, primary, None)).gather(1, likeliest).squeeze(1)  # (B,)

    inputs = [
        weighted.outputs if weighted.taken is None else torch.cat([weighted.outputs, weighted.taken], dim=2)
        for weighted in lists
    ]  # each (B, K, R) or (B, K, R + W)
    found = []
    for weighted, part in zip(lists, integrated_gradients(prediction, inputs, steps), strict=True):
        outputs, taken = part.tensor_split([weighted.outputs.shape[2]], dim=2)
        whole = [outputs] if weighted.taken is None else [outputs, taken.sum(dim=2, keepdim=True)]
        found.append(torch.cat(whole, dim=2))
    return found


def _list_gates(network: nn.Module) -> list[methods.ListGates]:
    """Return the gates of every list, which all members share."""
    return [entry for entry in _fedsim_networks(network)[0].lists if isinstance(entry, methods.ListGates)]


@torch.no_grad()
def learnt_weights(list_gates: methods.ListGates, similarity: Tensor) -> Tensor:
    """Return the weight of each vector of similarities, (n, K, F) -> (n, K)."""
    weight: Tensor = list_gates.weigh(list_gates.inputs(similarity))
    return weight


@dataclass(frozen=True, eq=False)
class WeightCurve:
    """The weight that a secondary's weight gate gives to each similarity of one field, the others at their mean."""

    party: str
    similarity: Floats  # (G,)
    weight: Floats  # (G,)


@dataclass(frozen=True, eq=False)
class MergeImportance:
    """Mean absolute contribution of every weighted output to the prediction; row 0 is the least similar partner."""

    party: str
    values: Floats  # (K, R)


@dataclass(frozen=True, eq=False)
class Attribution:
    """Contributions to single records' predictions; partners are in the order of the sort gate."""

    party: str
    partner: Integers  # (n, K)
    similarity: Floats  # (n, K), the mean over the fields
    weight: Floats  # (n, K)
    values: Floats  # (n, K, R), the contribution of every weighted output; R + 1 with a match gate


@dataclass(frozen=True, eq=False)
class Matches:
    """How sure the match gate of one list is of each partner; partners are in the order of the sort gate."""

    party: str
    partner: Integers  # (n, K)
    probability: Floats  # (n, K), that the partner is the record's match

    @property
    def unmatched(self) -> Floats:
        """The probability that a record has no match in the list, (n,)."""
        rest: Floats = np.clip(1.0 - self.probability.sum(axis=1), 0.0, 1.0)
        return rest

    @property
    def taken(self) -> Integers:
        """The likeliest partner of each record, (n,), or -1 where no match is likelier."""
        best = self.probability.argmax(axis=1)[:, np.newaxis]
        sure, partner = (np.take_along_axis(array, best, axis=1)[:, 0] for array in (self.probability, self.partner))
        return np.where(sure >= self.unmatched, partner, -1)


def weight_curves(model: Model, low: float = -3.0, high: float = 3.0, points: int = 61) -> list[WeightCurve]:
    """Return the learnt weight curve of every list (paper, figure "insight", middle), or of each of its fields.

    Parameters
    ----------
    model
        A trained FedSim model.
    low, high, points
        The similarities of the curve: so many points from low to high.
    """
    similarity, curves = np.linspace(low, high, points), []
    for holders, entry in zip(model.groups, _list_gates(model.primary.model.network), strict=True):
        fields = entry.inputs.fields
        for place in range(fields):
            vectors = torch.zeros(1, points, fields, device=model.primary.model.device)
            vectors[0, :, place] = torch.from_numpy(similarity)
            weight = learnt_weights(entry, vectors)[0].double().cpu().numpy()
            name = holders[0].name if fields == 1 else f"{holders[0].name}, field {place + 1}"
            curves.append(WeightCurve(name, similarity, weight))
    return curves


@torch.no_grad()
def find_matches(model: Model, lists: Sequence[Neighbours]) -> list[Matches]:
    """Return which partners the match gates take for the records' matches, for every list that has such a gate.

    Parameters
    ----------
    model
        A trained model; only FedSim has match gates.
    lists
        Partners of any records, as in :meth:`Model.predict`.
    """
    network, found = model.primary.model.network, []
    if not isinstance(methods.member_networks(network)[0], methods.FedSimNetwork):
        return []
    arranged = model.arrange(lists, len(lists[0]))
    for holders, partners, entry in zip(model.groups, arranged, _list_gates(network), strict=True):
        if entry.match is not None:
            probability = entry.match(partners.similarity, entry.inputs(partners.similarity))[:, :-1]  # (n, K)
            rows = partners.partner.astype(np.int64)
            found.append(Matches(holders[0].name, rows, probability.double().cpu().numpy()))
    return found


def merge_importance(
    model: Model, features: Features | NDArray[Any], lists: Sequence[Neighbours], steps: int = INTEGRATION_STEPS
) -> list[MergeImportance]:
    """Return integrated gradients of the merge gate, averaged over records (paper, figure "insight", right).

    Parameters
    ----------
    model
        A trained FedSim model.
    features, lists
        Records to explain, as in :meth:`Model.predict`.
    steps
        Points of the path integral.
    """
    records = model.records(as_features(features), lists)
    totals: list[Floats] = []
    for contributions in _contributions(model, records, steps):
        sums = [part.abs().sum(dim=0).double().cpu().numpy() for part in contributions]
        totals = [total + part for total, part in zip(totals, sums, strict=True)] if totals else sums
    return [
        MergeImportance(holders[0].name, total / len(records.features))
        for holders, total in zip(model.groups, totals, strict=True)
    ]


def merge_attributions(
    model: Model, features: Features | NDArray[Any], lists: Sequence[Neighbours], steps: int = INTEGRATION_STEPS
) -> list[Attribution]:
    """Return the contributions for each record separately; all are held in memory.

    Parameters
    ----------
    model, features, lists, steps
        As in :func:`merge_importance`.
    """
    records, list_gates = model.records(as_features(features), lists), _list_gates(model.primary.model.network)
    by_list = zip(*_contributions(model, records, steps), strict=True)
    attributions = []
    for holders, partners, entry, parts in zip(model.groups, records.lists, list_gates, by_list, strict=True):
        attributions.append(
            Attribution(
                holders[0].name,
                partners.partner.astype(np.int64),
                partners.similarity.double().nanmean(dim=2).cpu().numpy(),
                learnt_weights(entry, partners.similarity).double().cpu().numpy(),
                torch.cat(parts).double().cpu().numpy(),
            )
        )
    return attributions


def _contributions(model: Model, records: PrimaryRecords, steps: int) -> Iterator[list[Tensor]]:
    """Yield contributions, (B, K, R) per list, batch by batch."""
    network = model.primary.model.network
    for first in range(0, len(records.features), EXPLAINED_RECORDS):
        rows = np.arange(first, min(first + EXPLAINED_RECORDS, len(records.features)))
        yield merge_contributions(network, model.primary.batch(records, rows), steps)


def _fedsim_networks(network: nn.Module) -> list[methods.FedSimNetwork]:
    """Return the members of a FedSim network."""
    members = [member for member in methods.member_networks(network) if isinstance(member, methods.FedSimNetwork)]
    if not members:
        raise SettingError("only the method fedsim has gates to explain; train FedSim", code="no-gates")
    return members
