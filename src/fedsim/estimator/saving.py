"""Save a trained estimator as one folder per party, and load it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors.torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from fedsim.data.features import FeaturePreprocessor
from fedsim.errors import FileError, SettingError
from fedsim.estimator.federation import Federation, LinkedTable, LinkRule
from fedsim.estimator.parameters import (
    COORDINATOR,
    PRIMARY,
    LinkedColumns,
    estimator_settings,
    secondary_tables,
    to_builtin,
)
from fedsim.linkage import Metric, WeightedField, WeightedSum, get_metric
from fedsim.registry import METRICS
from fedsim.splitnn.checkpoint_store import describe
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.party_model import resolve_device
from fedsim.splitnn.secondary_model import restore_secondary
from fedsim.storage.digest import first_difference
from fedsim.storage.files import atomic_folder
from fedsim.training import Config, Model, NeighbourList, restore_model
from fedsim.training.config import ConfigOverrides, build_config
from fedsim.training.labels import Target, target_from_state, target_state
from fedsim.types import Scale

# A trained estimator on the disk: one folder per party, JSON and safetensors, nothing that must be unpickled
#
# ::
#
#     model/primary/      model.json, features.json, weights.safetensors
#     model/coordinator/  links.json
#     model/secondary-1/  features.json, weights.safetensors
#
# A secondary's folder holds its own preparation and network; no party's table is stored.


ESTIMATOR_FORMAT = "fedsim estimator 1"
MODEL, FEATURES, LINKS, WEIGHTS = "model.json", "features.json", "links.json", "weights.safetensors"
REQUIRED_FACTS = (
    "parameters",
    "seed",
    "config",
    "identifiers",
    "n_features_in",
    "feature_names_in",
    "classes",
    "target",
    "history",
)


@dataclass(frozen=True, eq=False)
class StoredEstimator:
    """What the folders hold: facts of the primary and the coordinator, features and weights of each party with data."""

    facts: Mapping[str, Any]
    links: Mapping[str, Any]
    features: Mapping[str, str]
    weights: Mapping[str, Mapping[str, Tensor]]


def write_model_folder(path: Path, stored: StoredEstimator) -> None:
    """Write all folders, or leave what was there; only a model's folder is ever replaced."""
    if path.exists() and not (path / PRIMARY / MODEL).is_file():
        raise FileError(f"{path} exists and holds no model; choose another folder")
    with atomic_folder(path) as part:
        _write_parties(part, stored)


def read_model_folder(path: Path) -> StoredEstimator:
    """What :func:`write_folder` wrote."""
    try:
        facts = json.loads((path / PRIMARY / MODEL).read_text(encoding="utf-8"))
        if facts["format"] != ESTIMATOR_FORMAT:
            raise FileError(
                f"{path} was written as '{facts['format']}', this version reads '{ESTIMATOR_FORMAT}'; train again"
            )
        lost = [name for name in REQUIRED_FACTS if name not in facts]
        if lost:
            raise FileError(f"{path}: {PRIMARY}/{MODEL} has lost '{lost[0]}'; save the model again")
        links = json.loads((path / COORDINATOR / LINKS).read_text(encoding="utf-8"))
        parties = [PRIMARY, *links]
        features = {party: (path / party / FEATURES).read_text(encoding="utf-8") for party in parties}
        weights = {party: safetensors.torch.load((path / party / WEIGHTS).read_bytes()) for party in parties}
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise FileError(
            f"{path} is no readable model ({type(error).__name__}); give the folder that save() wrote, with all parties"
        ) from error
    return StoredEstimator(facts, links, features, weights)


def _write_parties(folder: Path, stored: StoredEstimator) -> None:
    for party, features in stored.features.items():
        (folder / party).mkdir(parents=True)
        (folder / party / FEATURES).write_text(features, encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in stored.weights[party].items()}
        (folder / party / WEIGHTS).write_bytes(safetensors.torch.save(tensors))
    (folder / COORDINATOR).mkdir()
    (folder / COORDINATOR / LINKS).write_text(json.dumps(stored.links, indent=1), encoding="utf-8")
    (folder / PRIMARY / MODEL).write_text(
        json.dumps({"format": ESTIMATOR_FORMAT, **stored.facts}, indent=1), encoding="utf-8"
    )


# What training left, as plain JSON values, and back


def link_rule_state(rule: LinkRule) -> dict[str, Any]:
    """The links to one secondary."""
    return {
        "primary_columns": rule.pair.ours,
        "secondary_columns": rule.pair.theirs,
        "metric": metric_state(rule.pair.metric),
        "k": rule.k,
        "sigma": rule.sigma,
        "scale": [rule.scale.mean, rule.scale.deviation],
    }


def link_rule_from_state(party: str, state: Mapping[str, Any]) -> LinkRule:
    """The rule that :func:`rule_state` described."""
    try:
        pair = LinkedColumns(
            party,
            tuple(state["primary_columns"]),
            tuple(state["secondary_columns"]),
            metric_from_state(state["metric"]),
        )
        return LinkRule(pair, state["k"], state["sigma"], Scale(*state["scale"]))
    except (LookupError, TypeError) as error:
        raise FileError(f"the link rule of {party} cannot be read ({type(error).__name__}); save it again") from error


def metric_state(metric: Metric) -> Any:
    """A word, or the fields of a weighted sum.

    >>> metric_state(get_metric("days"))
    'days'
    """
    if isinstance(metric, WeightedSum):
        return [[field.column, metric_state(field.measure), field.weight] for field in metric.fields]
    if metric.name in METRICS and METRICS[metric.name] == metric:
        return metric.name
    raise SettingError(f"metric '{metric.name}' is not one of FedSim's own; a model with it cannot be saved")


def metric_from_state(state: Any) -> Metric:
    """The metric that :func:`metric_state` described."""
    if isinstance(state, str):
        return get_metric(state)
    return WeightedSum(tuple(WeightedField(column, get_metric(word), weight) for column, word, weight in state))


def classes_state(classes: NDArray[Any]) -> dict[str, Any]:
    """The user's classes: whole numbers, numbers, true/false or text."""
    if not all(isinstance(value, int | float | str | bool) for value in classes.tolist()):
        raise SettingError("the classes are neither numbers nor text; a model with them cannot be saved")
    return {"type": classes.dtype.str, "values": classes.tolist()}


def classes_from_state(state: Mapping[str, Any]) -> NDArray[Any]:
    """The classes that :func:`class_state` described."""
    return np.array(state["values"], dtype=np.dtype(state["type"]))


# A trained model from its weights: the networks are built anew from the columns' shapes, then filled


NamedWeights = Mapping[str, Tensor]


def rebuild_model(
    config: Config,
    target: Target,
    preparation: FeaturePreprocessor,
    linked: Sequence[LinkedTable],
    weights: Mapping[str, NamedWeights],
) -> Model:
    """The model whose parties have these weights."""
    lists = [_restore_neighbour_list(party, config, weights[party.rule.pair.party]) for party in linked]
    columns = Features.without_records(len(preparation.names), preparation.cardinalities, preparation.spread)
    return restore_model(config, target, columns, lists, weights[PRIMARY], PRIMARY)


def _restore_neighbour_list(party: LinkedTable, config: Config, weights: NamedWeights) -> NeighbourList:
    pair = party.rule.pair
    features = Features.of(party.preparation.apply(pair.secondary_features(party.table)))
    device = resolve_device(config.device)
    holder = restore_secondary(pair.party, features, config.secondary, weights, device=device)
    return NeighbourList(Neighbours.without_records(party.rule.k), (holder,))


# From a trained estimator to what its folders hold, and back


NOT_STORED = ("secondaries", "random_state", "device")  # tables of the parties; spent on the seed; of the machine
OBJECT_PARAMETERS = ("metric", "method")  # words, or objects that JSON does not know


def store_estimator(estimator: Any) -> StoredEstimator:
    """Everything a trained estimator needs to predict elsewhere, but no table."""
    federation: Federation = estimator.federation_
    given = estimator.get_params(deep=False) | vars(estimator_settings(estimator))
    parameters = {name: to_builtin(value) for name, value in given.items() if name not in NOT_STORED}
    parameters |= {name: None for name in OBJECT_PARAMETERS if not isinstance(parameters[name], str)}
    names = getattr(estimator, "feature_names_in_", None)
    classes = getattr(estimator, "classes_", None)
    facts = {
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "seed": federation.model.config.seed,
        "config": _describe_config(federation.model.config),
        "identifiers": federation.identifiers,
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else names.tolist(),
        "classes": None if classes is None else classes_state(classes),
        "target": target_state(federation.model.target),
        "history": estimator.history_,
    }
    parties = {party.rule.pair.party: party for party in federation.linked}
    return StoredEstimator(
        facts=facts,
        links={name: link_rule_state(party.rule) for name, party in parties.items()},
        features={
            PRIMARY: federation.preparation.to_json(),
            **{name: party.preparation.to_json() for name, party in parties.items()},
        },
        weights=federation.model.parts(),
    )


def restore_estimator(kind: Any, found: StoredEstimator, secondaries: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """A trained estimator of this kind; the secondaries bring their tables, in the order of training."""
    facts = found.facts
    if facts["estimator"] != kind.__name__:
        raise FileError(f"this is a model of {facts['estimator']}; load it with {facts['estimator']}.load")
    linked = _linked_secondaries(found, secondary_tables(secondaries))
    parameters = {**facts["parameters"], "device": given["device"]}
    parameters["metric"] = parameters["metric"] or [party.rule.pair.metric for party in linked]
    parameters["method"] = parameters["method"] or given["method"]
    if parameters["method"] is None:
        raise SettingError("the model was trained with a method of your own; give the same to load as method=...")
    estimator = kind(secondaries, **parameters)
    config = _trained_config(estimator, facts)
    target, preparation = target_from_state(facts["target"]), FeaturePreprocessor.from_json(found.features[PRIMARY])
    model = rebuild_model(config, target, preparation, linked, found.weights)
    estimator.federation_ = Federation(model, preparation, tuple(facts["identifiers"]), linked)
    _set_fitted_attributes(estimator, facts)
    return estimator


def _linked_secondaries(found: StoredEstimator, tables: Sequence[pl.DataFrame]) -> tuple[LinkedTable, ...]:
    if found.links and len(tables) != len(found.links):
        raise SettingError(
            f"{len(tables)} secondaries given, but the model was trained with {len(found.links)}; give their tables in "
            "the same order"
        )
    return tuple(
        LinkedTable(link_rule_from_state(party, state), FeaturePreprocessor.from_json(found.features[party]), table)
        for (party, state), table in zip(found.links.items(), tables, strict=False)
    )


def _trained_config(estimator: Any, facts: Mapping[str, Any]) -> Config:
    """The configuration that the parameters mean here; it must be the one that was trained."""
    deviations = ConfigOverrides(estimator.epochs, estimator.batch_size, estimator.learning_rate, estimator.patience)
    method = estimator.method if facts["config"]["method"]["kind"] != "Solo" else "solo"
    config = build_config(estimator.preset, method, deviations, seed=facts["seed"], device=estimator.device)
    other = first_difference(_describe_config(config), facts["config"], "setting")
    if other:
        raise FileError(f"the model was trained with another configuration: {other}; use that version of FedSim")
    return config


def _describe_config(config: Config) -> Any:
    return json.loads(json.dumps(describe(replace(config, device="any"))))


def _set_fitted_attributes(estimator: Any, facts: Mapping[str, Any]) -> None:
    estimator.history_ = facts["history"]
    estimator.n_features_in_ = facts["n_features_in"]
    if facts["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(facts["feature_names_in"], dtype=object)
    if facts["classes"] is not None:
        estimator.classes_ = classes_from_state(facts["classes"])
