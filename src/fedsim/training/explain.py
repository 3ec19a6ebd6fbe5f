"""Explanations of a trained FedSim model: weight curves, integrated gradients of the merge gate, attributions.

Letters: n records, B records of a batch, K partners of a list, R outputs per pair, G points of a curve.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


def merge_contributions(
    network: methods.FedSimNetwork, batch: gates.Batch, steps: int = INTEGRATION_STEPS
) -> list[Tensor]:
    """Return the contribution of each weighted output to the prediction, (B, K, R) per list.

    For classes, the prediction is the probability of the likeliest one.
    """
    with torch.no_grad():
        primary, lists = network.weighted(batch)
        likeliest = network.task.predict(network.merge(lists, primary, None)).argmax(dim=1, keepdim=True)  # (B, 1)

    def prediction(outputs: Sequence[Tensor]) -> Tensor:
        moved = [replace(weighted, outputs=entry) for weighted, entry in zip(lists, outputs, strict=True)]
        return network.task.predict(network.merge(moved, primary, None)).gather(1, likeliest).squeeze(1)  # (B,)

    return integrated_gradients(prediction, [weighted.outputs for weighted in lists], steps)


@torch.no_grad()
def learnt_weights(network: methods.FedSimNetwork, similarity: Tensor) -> list[Tensor]:
    """Return the weight of each similarity, for every list."""
    lists = [entry for entry in network.lists if isinstance(entry, methods.ListGates)]
    return [entry.weigh(similarity.unsqueeze(0)).squeeze(0) for entry in lists]


@dataclass(frozen=True, eq=False)
class WeightCurve:
    """The weight that a secondary's weight gate gives to each similarity."""

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
    similarity: Floats  # (n, K)
    weight: Floats  # (n, K)
    values: Floats  # (n, K, R), the contribution of every weighted output


def weight_curves(model: Model, low: float = -3.0, high: float = 3.0, points: int = 61) -> list[WeightCurve]:
    """Return the learnt weight curve of every list (paper, figure "insight", middle).

    Parameters
    ----------
    model
        A trained FedSim model.
    low, high, points
        The similarities of the curve: so many points from low to high.
    """
    similarity = np.linspace(low, high, points)
    on_device = torch.tensor(similarity, dtype=torch.float32, device=model.primary.model.device)
    weights = learnt_weights(_fedsim_network(model), on_device)
    return [
        WeightCurve(holders[0].name, similarity, weight.double().cpu().numpy())
        for holders, weight in zip(model.groups, weights, strict=True)
    ]


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
    records, network = model.records(as_features(features), lists), _fedsim_network(model)
    by_list = zip(*_contributions(model, records, steps), strict=True)
    attributions = []
    for place, (holders, partners, parts) in enumerate(zip(model.groups, records.lists, by_list, strict=True)):
        similarity = partners.similarity
        weight = learnt_weights(network, similarity.flatten())[place].reshape(similarity.shape)
        attributions.append(
            Attribution(
                holders[0].name,
                partners.partner.astype(np.int64),
                similarity.double().cpu().numpy(),
                weight.double().cpu().numpy(),
                torch.cat(parts).double().cpu().numpy(),
            )
        )
    return attributions


def _contributions(model: Model, records: PrimaryRecords, steps: int) -> Iterator[list[Tensor]]:
    """Yield contributions, (B, K, R) per list, batch by batch."""
    network = _fedsim_network(model)
    for first in range(0, len(records.features), EXPLAINED_RECORDS):
        rows = np.arange(first, min(first + EXPLAINED_RECORDS, len(records.features)))
        yield merge_contributions(network, model.primary.batch(records, rows), steps)


def _fedsim_network(model: Model) -> methods.FedSimNetwork:
    network = model.primary.model.network
    if not isinstance(network, methods.FedSimNetwork):
        message = f"{type(model.config.method).__name__} has no gates to explain; train FedSim"
        raise SettingError(message, code="no-gates")
    return network
