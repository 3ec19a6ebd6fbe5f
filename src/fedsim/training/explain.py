"""The gates of a trained FedSim as data for charts: the weight curve and the importance of every row and output.

Letters: K partners of a list, R outputs per pair, G points of the curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import SettingError
from fedsim.splitnn.explain import STEPS, learnt_weights, merge_contributions
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.methods.fedsim import FedSimNetwork
from fedsim.training.data import as_features
from fedsim.training.model import Model
from fedsim.training.primary import Records
from fedsim.types import Floats, Integers

RECORDS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class WeightCurve:
    """What the weight gate of a secondary's list makes of a similarity."""

    party: str
    similarity: Floats  # (G,)
    weight: Floats  # (G,)


@dataclass(frozen=True, eq=False)
class Importance:
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
    network = _fedsim(model)
    found = learnt_weights(network, torch.tensor(grid, dtype=torch.float32, device=model.primary.part.device))
    return [
        WeightCurve(holders[0].name, grid, weight.double().cpu().numpy())
        for holders, weight in zip(model.groups, found, strict=True)
    ]


def merge_importance(
    model: Model, features: Features | NDArray[Any], lists: Sequence[Neighbours], steps: int = STEPS
) -> list[Importance]:
    """Integrated gradients of the merge gate, averaged over these records (paper, figure "insight", right)."""
    records = model.records(as_features(features), lists)
    totals: list[Floats] = []
    for contributions in _contributions(model, records, steps):
        sums = [part.abs().sum(dim=0).double().cpu().numpy() for part in contributions]
        totals = [total + part for total, part in zip(totals, sums, strict=True)] if totals else sums
    return [
        Importance(holders[0].name, total / len(records.features))
        for holders, total in zip(model.groups, totals, strict=True)
    ]


def merge_attributions(
    model: Model, features: Features | NDArray[Any], lists: Sequence[Neighbours], steps: int = STEPS
) -> list[Attribution]:
    """The same for each of these records by itself; all of them are held in memory."""
    records = model.records(as_features(features), lists)
    pieces = zip(*_contributions(model, records, steps), strict=True)
    return [
        Attribution(
            holders[0].name,
            listed.partner.astype(np.int64),
            listed.similarity.double().cpu().numpy(),
            learnt_weights(_fedsim(model), listed.similarity.flatten())[place]
            .reshape(listed.similarity.shape)
            .double()
            .cpu()
            .numpy(),
            torch.cat(parts).double().cpu().numpy(),
        )
        for place, (holders, listed, parts) in enumerate(zip(model.groups, records.lists, pieces, strict=True))
    ]


def _contributions(model: Model, records: Records, steps: int) -> Iterator[list[Tensor]]:
    """What each weighted output contributes, (B, K, R) per list, for some records at once."""
    network = _fedsim(model)
    for first in range(0, len(records.features), RECORDS_AT_ONCE):
        rows = np.arange(first, min(first + RECORDS_AT_ONCE, len(records.features)))
        yield merge_contributions(network, model.primary.batch(records, rows), steps)


def _fedsim(model: Model) -> FedSimNetwork:
    network = model.primary.part.network
    if not isinstance(network, FedSimNetwork):
        raise SettingError(f"{type(model.config.method).__name__} has no gates to look into; train FedSim")
    return network
