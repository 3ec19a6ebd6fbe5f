"""Explanations of a trained FedSim model: weight curves, integrated gradients, attributions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import SettingError
from fedsim.splitnn.gates import Batch, Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.methods import FedSimNetwork
from fedsim.training.data import as_features
from fedsim.training.model import Model
from fedsim.training.primary import PrimaryRecords
from fedsim.types import Floats, Integers

# Look into the gates of FedSim (paper, appendix "Visualization"): what weight a similarity gets, which rows count
#
# Letters: B records, K partners of a list, R outputs per pair, T outputs of the task.


INTEGRATION_STEPS = 50


def integrated_gradients(
    function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor], steps: int = INTEGRATION_STEPS
) -> list[Tensor]:
    """How much each input contributes to the outputs, against an input of zeros (Sundararajan et al., 2017).

    ``function`` maps the inputs to one number per record. The path integral is a Gauss-Legendre sum, so that the
    contributions of a record add up to its output less that of zeros.
    """
    places, weights = np.polynomial.legendre.leggauss(steps)
    totals = [torch.zeros_like(entry) for entry in inputs]
    for place, weight in zip((places + 1) / 2, weights / 2, strict=True):
        scaled = [(entry.detach() * place).requires_grad_() for entry in inputs]
        with torch.enable_grad():
            slopes = torch.autograd.grad(function(scaled).sum(), scaled)
        for total, slope in zip(totals, slopes, strict=True):
            total.add_(slope, alpha=float(weight))
    return [entry.detach() * total for entry, total in zip(inputs, totals, strict=True)]


def merge_contributions(network: FedSimNetwork, batch: Batch, steps: int = INTEGRATION_STEPS) -> list[Tensor]:
    """What each weighted output contributes to the prediction, (B, K, R) per list; of classes, to the likeliest."""
    with torch.no_grad():
        primary, lists = network.weighted(batch)
        likeliest = network.task.predict(network.merge(lists, primary, None)).argmax(dim=1, keepdim=True)  # (B, 1)

    def prediction(outputs: Sequence[Tensor]) -> Tensor:
        moved = [replace(weighted, outputs=entry) for weighted, entry in zip(lists, outputs, strict=True)]
        return network.task.predict(network.merge(moved, primary, None)).gather(1, likeliest).squeeze(1)  # (B,)

    return integrated_gradients(prediction, [weighted.outputs for weighted in lists], steps)


@torch.no_grad()
def learnt_weights(network: FedSimNetwork, similarity: Tensor) -> list[Tensor]:
    """The weight of each similarity, for every list."""
    return [gates.weigh(similarity.unsqueeze(0)).squeeze(0) for gates in network.gates()]


# The gates of a trained FedSim as data for charts: the weight curve and the importance of every row and output
#
# Letters: K partners of a list, R outputs per pair, G points of the curve.


EXPLAINED_RECORDS = 256


@dataclass(frozen=True, eq=False)
class WeightCurve:
    """What the weight gate of a secondary's list makes of a similarity."""

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
    """Records taken apart, their partners in the order of the sort gate; letters: n records."""

    party: str
    partner: Integers  # (n, K)
    similarity: Floats  # (n, K)
    weight: Floats  # (n, K)
    values: Floats  # (n, K, R), the contribution of every weighted output to the record's prediction


def weight_curves(model: Model, low: float = -3.0, high: float = 3.0, points: int = 61) -> list[WeightCurve]:
    """The learnt curve of every list (paper, figure "insight", middle)."""
    grid = np.linspace(low, high, points)
    network = _fedsim_network(model)
    found = learnt_weights(network, torch.tensor(grid, dtype=torch.float32, device=model.primary.part.device))
    return [
        WeightCurve(holders[0].name, grid, weight.double().cpu().numpy())
        for holders, weight in zip(model.groups, found, strict=True)
    ]


def merge_importance(
    model: Model, features: Features | NDArray[Any], lists: Sequence[Neighbours], steps: int = INTEGRATION_STEPS
) -> list[MergeImportance]:
    """Integrated gradients of the merge gate, averaged over these records (paper, figure "insight", right)."""
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
    """The same for each of these records by itself; all of them are held in memory."""
    records = model.records(as_features(features), lists)
    pieces = zip(*_contributions(model, records, steps), strict=True)
    return [
        Attribution(
            holders[0].name,
            listed.partner.astype(np.int64),
            listed.similarity.double().cpu().numpy(),
            learnt_weights(_fedsim_network(model), listed.similarity.flatten())[place]
            .reshape(listed.similarity.shape)
            .double()
            .cpu()
            .numpy(),
            torch.cat(parts).double().cpu().numpy(),
        )
        for place, (holders, listed, parts) in enumerate(zip(model.groups, records.lists, pieces, strict=True))
    ]


def _contributions(model: Model, records: PrimaryRecords, steps: int) -> Iterator[list[Tensor]]:
    """What each weighted output contributes, (B, K, R) per list, for some records at once."""
    network = _fedsim_network(model)
    for first in range(0, len(records.features), EXPLAINED_RECORDS):
        rows = np.arange(first, min(first + EXPLAINED_RECORDS, len(records.features)))
        yield merge_contributions(network, model.primary.batch(records, rows), steps)


def _fedsim_network(model: Model) -> FedSimNetwork:
    network = model.primary.part.network
    if not isinstance(network, FedSimNetwork):
        raise SettingError(f"{type(model.config.method).__name__} has no gates to look into; train FedSim")
    return network
