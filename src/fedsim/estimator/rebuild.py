"""A trained model from its weights: the networks are built anew from the columns' shapes, then filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedsim.data.features import Preparation
from fedsim.estimator.federation import Linked
from fedsim.estimator.pairs import PRIMARY
from fedsim.splitnn.below import restored_secondary
from fedsim.splitnn.device import device_named
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.training import Config, HeldList, Model, restored
from fedsim.training.labels import Target

Weights = Mapping[str, Tensor]


def rebuilt(
    config: Config, target: Target, preparation: Preparation, linked: Sequence[Linked], weights: Mapping[str, Weights]
) -> Model:
    """The model whose parties have these weights."""
    lists = [_held(party, config, weights[party.rule.pair.party]) for party in linked]
    columns = Features.without_records(len(preparation.names), preparation.cardinalities, preparation.spread)
    return restored(config, target, columns, lists, weights[PRIMARY], PRIMARY)


def _held(party: Linked, config: Config, weights: Weights) -> HeldList:
    pair = party.rule.pair
    features = Features.of(party.preparation.apply(pair.their_features(party.table)))
    device = device_named(config.device)
    holder = restored_secondary(pair.party, features, config.below, weights, device=device)
    return HeldList(Neighbours.without_records(party.rule.k), (holder,))
