"""A trained model from its weights: the networks are built anew from the columns' shapes, then filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedsim.data.features import Preparation
from fedsim.errors import FileError
from fedsim.estimator.federation import Linked, as_features
from fedsim.estimator.pairs import PRIMARY
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.links import BranchShape
from fedsim.splitnn.method import Blueprint
from fedsim.splitnn.part import Part
from fedsim.splitnn.secondary import LocalSecondary
from fedsim.training import Config, Model, SecondaryData
from fedsim.training.device import device_named
from fedsim.training.labels import Target
from fedsim.training.prepare import Setting, start_secondary
from fedsim.training.primary import Primary

Weights = Mapping[str, Tensor]


def rebuilt(
    config: Config, target: Target, preparation: Preparation, linked: Sequence[Linked], weights: Mapping[str, Weights]
) -> Model:
    """The model whose parties have these weights."""
    setting = Setting(config, device_named(config.device), total_steps=1, folder=None)
    holders = [_secondary(party, setting) for party in linked]
    branches = tuple(_branch(party, holder, config) for party, holder in zip(linked, holders, strict=True))
    columns = _no_records(preparation)
    plan = Blueprint(columns, config.local, branches, target.task)
    primary = setting.part(config.method.build(plan), PRIMARY)
    for name, part in {PRIMARY: primary, **{holder.name: holder.part for holder in holders}}.items():
        _fill(part, weights[name], name)
    sizes = columns.numbers.shape[1], columns.codes.shape[1]
    return Model(config, target, Primary(primary, target.task), tuple((holder,) for holder in holders), sizes, PRIMARY)


def _secondary(party: Linked, setting: Setting) -> LocalSecondary:
    pair = party.rule.pair
    features = as_features(party.preparation.apply(pair.their_features(party.table)))
    return start_secondary(SecondaryData(features, name=pair.party), setting)


def _branch(party: Linked, holder: LocalSecondary, config: Config) -> BranchShape:
    one = Neighbours(np.zeros((1, party.rule.k), dtype=np.int64), np.zeros((1, party.rule.k)))
    used = config.method.arrange(one, np.random.default_rng(0)).k
    return BranchShape(used, (holder.width,), np.zeros((0, used)))


def _no_records(preparation: Preparation) -> Features:
    """The columns of a party without a record in them."""
    return Features(
        numbers=np.zeros((0, len(preparation.names)), dtype=np.float32),
        codes=np.zeros((0, len(preparation.cardinalities)), dtype=np.int64),
        cardinalities=preparation.cardinalities,
        spread=preparation.spread,
    )


def _fill(part: Part, weights: Weights, party: str) -> None:
    try:
        part.network.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise FileError(f"the weights of {party} do not fit the model beside them; save it again") from error
    part.keep_best()
