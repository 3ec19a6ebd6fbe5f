"""Save a trained estimator as one folder per party, and load it.

::

    model/primary/      model.json, features.json, weights.safetensors
    model/coordinator/  links.json
    model/secondary-1/  features.json, weights.safetensors

A secondary's folder holds its own preprocessor and network; no party's table is stored, and nothing is unpickled.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedsim.data.features import FeaturePreprocessor
from fedsim.errors import FileError, SettingError
from fedsim.estimator.federation import Federation, LinkedTable, LinkRule
from fedsim.estimator.inputs import (
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
from fedsim.splitnn.methods import Method
from fedsim.splitnn.party_model import resolve_device
from fedsim.splitnn.secondary_model import restore_secondary
from fedsim.storage.files import atomic_folder
from fedsim.training import Config, Model, NeighbourList, restore_model
from fedsim.training.config import ConfigOverrides, build_config
from fedsim.training.labels import target_from_state, target_state
from fedsim.types import Scale
from fedsim.validation import first_difference

ESTIMATOR_FORMAT = "fedsim estimator 1"
MODEL, FEATURES, LINKS, WEIGHTS = "model.json", "features.json", "links.json", "weights.safetensors"
REQUIRED_FACTS = (
    *("parameters", "seed", "config", "identifiers", "n_features_in"),
    *("feature_names_in", "classes", "target", "history"),
)
NOT_STORED = ("secondaries", "random_state", "device")  # the parties' tables; replaced by the seed; of the machine
OBJECT_PARAMETERS = ("metric", "method")  # names, or objects that JSON cannot store
PartyWeights = dict[str, dict[str, Tensor]]


def save_estimator(path: Path, estimator: Any) -> None:
    """Write everything needed for prediction, or keep what was there; only a model's folder is ever replaced."""
    federation: Federation = estimator.federation_
    given = estimator.get_params(deep=False) | vars(estimator_settings(estimator))
    parameters = {name: to_builtin(value) for name, value in given.items() if name not in NOT_STORED}
    parameters |= {name: None for name in OBJECT_PARAMETERS if not isinstance(parameters[name], str)}
    names, classes = (getattr(estimator, name, None) for name in ("feature_names_in_", "classes_"))
    if classes is not None and not all(isinstance(value, int | float | str | bool) for value in classes.tolist()):
        raise SettingError("the classes are neither numbers nor text; a model with them cannot be saved")
    facts = {
        "format": ESTIMATOR_FORMAT,
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "seed": federation.model.config.seed,
        "config": _describe_config(federation.model.config),
        "identifiers": federation.identifiers,
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else names.tolist(),
        "classes": None if classes is None else {"type": classes.dtype.str, "values": classes.tolist()},
        "target": target_state(federation.model.target),
        "history": estimator.history_,
    }
    links = {party.rule.pair.party: link_rule_state(party.rule) for party in federation.linked}
    preprocessors = {party.rule.pair.party: party.preparation for party in federation.linked}
    weights = federation.model.parts()
    if path.exists() and not (path / PRIMARY / MODEL).is_file():
        raise FileError(f"{path} exists and is not a model; choose another folder", code="not-a-model")
    with atomic_folder(path) as folder:
        for party, preprocessor in {PRIMARY: federation.preparation, **preprocessors}.items():
            (folder / party).mkdir(parents=True)
            (folder / party / FEATURES).write_text(preprocessor.to_json(), encoding="utf-8")
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights[party].items()}
            (folder / party / WEIGHTS).write_bytes(safetensors.torch.save(tensors))
        (folder / COORDINATOR).mkdir()
        (folder / COORDINATOR / LINKS).write_text(json.dumps(links, indent=1), encoding="utf-8")
        (folder / PRIMARY / MODEL).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def load_estimator(kind: Any, path: Path, secondaries: Sequence[Any], *, method: Method | None, device: str) -> Any:
    """Load an estimator of this kind; the tables of the secondaries come in the order of training."""
    facts, links, features, weights = _read_folder(path)
    if facts["estimator"] != kind.__name__:
        message = f"this is a model of {facts['estimator']}; load it with {facts['estimator']}.load"
        raise FileError(message, code="other-estimator", estimator=facts["estimator"])
    tables = secondary_tables(secondaries)
    if links and len(tables) != len(links):
        message = (
            f"{len(tables)} secondaries given, but the model was trained with {len(links)}; give their tables in the "
            "same order"
        )
        raise SettingError(message, code="secondary-count", limit=len(links))
    linked = tuple(
        LinkedTable(link_rule_from_state(party, state), FeaturePreprocessor.from_json(features[party]), table)
        for (party, state), table in zip(links.items(), tables, strict=False)
    )
    parameters = {**facts["parameters"], "device": device}
    parameters["metric"] = parameters["metric"] or [party.rule.pair.metric for party in linked]
    parameters["method"] = parameters["method"] or method
    if parameters["method"] is None:
        message = "the model was trained with a custom method; pass the same to load as method=..."
        raise SettingError(message, code="custom-method")
    estimator = kind(secondaries, **parameters)
    preparation = FeaturePreprocessor.from_json(features[PRIMARY])
    model = _rebuild_model(_trained_config(estimator, facts), facts["target"], preparation, linked, weights)
    estimator.federation_ = Federation(model, preparation, tuple(facts["identifiers"]), linked)
    estimator.history_ = facts["history"]
    estimator.n_features_in_ = facts["n_features_in"]
    if facts["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(facts["feature_names_in"], dtype=object)
    if facts["classes"] is not None:
        estimator.classes_ = np.array(facts["classes"]["values"], dtype=np.dtype(facts["classes"]["type"]))
    return estimator


def _read_folder(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, str], PartyWeights]:
    """Return the primary's facts, the links, and each party's features and weights."""
    try:
        facts = json.loads((path / PRIMARY / MODEL).read_text(encoding="utf-8"))
        if facts["format"] != ESTIMATOR_FORMAT:
            message = f"{path} was written as '{facts['format']}', this version reads '{ESTIMATOR_FORMAT}'; train again"
            raise FileError(message, code="other-version", found=facts["format"])
        missing = [name for name in REQUIRED_FACTS if name not in facts]
        if missing:
            message = f"{path}: {PRIMARY}/{MODEL} lacks '{missing[0]}'; save the model again"
            raise FileError(message, code="missing-fact", fact=missing[0])
        links = json.loads((path / COORDINATOR / LINKS).read_text(encoding="utf-8"))
        parties = [PRIMARY, *links]
        features = {party: (path / party / FEATURES).read_text(encoding="utf-8") for party in parties}
        weights = {party: safetensors.torch.load((path / party / WEIGHTS).read_bytes()) for party in parties}
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        message = (
            f"{path} is not a readable model ({type(error).__name__}); give the folder that save() wrote, with all "
            "parties"
        )
        raise FileError(message, code="damaged-model") from error
    return facts, links, features, weights


def _trained_config(estimator: Any, facts: Mapping[str, Any]) -> Config:
    """Return the configuration of the parameters, which must be the one of training."""
    overrides = ConfigOverrides(estimator.epochs, estimator.batch_size, estimator.learning_rate, estimator.patience)
    method = estimator.method if facts["config"]["method"]["kind"] != "Solo" else "solo"
    config = build_config(estimator.preset, method, overrides, seed=facts["seed"], device=estimator.device)
    other = first_difference(_describe_config(config), facts["config"], "setting")
    if other:
        message = f"the model was trained with another configuration: {other}; use that version of FedSim"
        raise FileError(message, code="other-configuration", difference=other)
    return config


def _describe_config(config: Config) -> Any:
    return json.loads(json.dumps(describe(replace(config, device="any"))))


def _rebuild_model(
    config: Config,
    target: Mapping[str, Any],
    preparation: FeaturePreprocessor,
    linked: Sequence[LinkedTable],
    weights: PartyWeights,
) -> Model:
    """Build the networks from the columns' shapes, and load their weights."""
    lists = []
    for party in linked:
        pair = party.rule.pair
        features = Features.of(party.preparation.apply(pair.secondary_features(party.table)))
        device = resolve_device(config.device)
        holder = restore_secondary(pair.party, features, config.secondary, weights[pair.party], device=device)
        lists.append(NeighbourList(Neighbours.without_records(party.rule.k), (holder,)))
    columns = Features.without_records(len(preparation.names), preparation.cardinalities, preparation.spread)
    return restore_model(config, target_from_state(target), columns, lists, weights[PRIMARY], PRIMARY)


def link_rule_state(rule: LinkRule) -> dict[str, Any]:
    """Return the links to one secondary as JSON values."""
    return {
        "primary_columns": rule.pair.ours,
        "secondary_columns": rule.pair.theirs,
        "metric": metric_state(rule.pair.metric),
        "k": rule.k,
        "sigma": rule.sigma,
        "scale": [rule.scale.mean, rule.scale.deviation],
    }


def link_rule_from_state(party: str, state: Mapping[str, Any]) -> LinkRule:
    """Return the rule that :func:`link_rule_state` described."""
    try:
        metric = state["metric"]
        if not isinstance(metric, str):
            metric = WeightedSum(
                tuple(WeightedField(column, get_metric(word), weight) for column, word, weight in metric)
            )
        columns = tuple(state["primary_columns"]), tuple(state["secondary_columns"])
        pair = LinkedColumns(party, *columns, get_metric(metric))
        return LinkRule(pair, state["k"], state["sigma"], Scale(*state["scale"]))
    except (LookupError, TypeError) as error:
        raise FileError(f"the link rule of {party} cannot be read ({type(error).__name__}); save it again") from error


def metric_state(metric: Metric) -> Any:
    """Return the name of a metric, or the fields of a weighted sum.

    >>> metric_state(get_metric("days"))
    'days'
    """
    if isinstance(metric, WeightedSum):
        return [[field.column, metric_state(field.measure), field.weight] for field in metric.fields]
    if metric.name in METRICS and METRICS[metric.name] == metric:
        return metric.name
    raise SettingError(f"metric '{metric.name}' is not one of FedSim's own; a model with it cannot be saved")
