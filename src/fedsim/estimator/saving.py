"""From a trained estimator to what its folders hold, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from fedsim.data.features import Preparation
from fedsim.difference import difference
from fedsim.errors import FileError, SettingError
from fedsim.estimator.federation import Federation, Linked
from fedsim.estimator.folder import Stored
from fedsim.estimator.pairs import PRIMARY, tables_of
from fedsim.estimator.rebuild import rebuilt
from fedsim.estimator.settings import plain, settings_of
from fedsim.estimator.state import class_from, class_state, rule_from, rule_state
from fedsim.splitnn.description import describe
from fedsim.training import Config
from fedsim.training.choices import Deviations, config_for
from fedsim.training.target_state import target_from, target_state

NOT_STORED = ("secondaries", "random_state", "device")  # tables of the parties; spent on the seed; of the machine
OBJECTS = ("metric", "method")  # words, or objects that JSON does not know


def stored(estimator: Any) -> Stored:
    """Everything a trained estimator needs to predict elsewhere, but no table."""
    federation: Federation = estimator.federation_
    given = estimator.get_params(deep=False) | vars(settings_of(estimator))
    parameters = {name: plain(value) for name, value in given.items() if name not in NOT_STORED}
    parameters |= {name: None for name in OBJECTS if not isinstance(parameters[name], str)}
    names = getattr(estimator, "feature_names_in_", None)
    classes = getattr(estimator, "classes_", None)
    facts = {
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "seed": federation.model.config.seed,
        "config": _described(federation.model.config),
        "identifiers": federation.identifiers,
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else names.tolist(),
        "classes": None if classes is None else class_state(classes),
        "target": target_state(federation.model.target),
        "history": estimator.history_,
    }
    parties = {party.rule.pair.party: party for party in federation.linked}
    return Stored(
        facts=facts,
        links={name: rule_state(party.rule) for name, party in parties.items()},
        features={
            PRIMARY: federation.preparation.to_json(),
            **{name: party.preparation.to_json() for name, party in parties.items()},
        },
        weights=federation.model.parts(),
    )


def restored(kind: Any, found: Stored, secondaries: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """A trained estimator of this kind; the secondaries bring their tables, in the order of training."""
    facts = found.facts
    if facts["estimator"] != kind.__name__:
        raise FileError(f"this is a model of {facts['estimator']}; load it with {facts['estimator']}.load")
    linked = _linked(found, tables_of(secondaries))
    parameters = {**facts["parameters"], "device": given["device"]}
    parameters["metric"] = parameters["metric"] or [party.rule.pair.metric for party in linked]
    parameters["method"] = parameters["method"] or given["method"]
    if parameters["method"] is None:
        raise SettingError("the model was trained with a method of your own; give the same to load as method=...")
    estimator = kind(secondaries, **parameters)
    config = _config(estimator, facts)
    target, preparation = target_from(facts["target"]), Preparation.from_json(found.features[PRIMARY])
    model = rebuilt(config, target, preparation, linked, found.weights)
    estimator.federation_ = Federation(model, preparation, tuple(facts["identifiers"]), linked)
    _remember(estimator, facts)
    return estimator


def _linked(found: Stored, tables: Sequence[pl.DataFrame]) -> tuple[Linked, ...]:
    if found.links and len(tables) != len(found.links):
        raise SettingError(
            f"{len(tables)} secondaries given, but the model was trained with {len(found.links)}; give their tables in "
            "the same order"
        )
    return tuple(
        Linked(rule_from(party, state), Preparation.from_json(found.features[party]), table)
        for (party, state), table in zip(found.links.items(), tables, strict=False)
    )


def _config(estimator: Any, facts: Mapping[str, Any]) -> Config:
    """The configuration that the parameters mean here; it must be the one that was trained."""
    deviations = Deviations(estimator.epochs, estimator.batch_size, estimator.learning_rate, estimator.patience)
    method = estimator.method if facts["config"]["method"]["kind"] != "Solo" else "solo"
    config = config_for(estimator.preset, method, deviations, seed=facts["seed"], device=estimator.device)
    other = difference(_described(config), facts["config"], "setting")
    if other:
        raise FileError(f"the model was trained with another configuration: {other}; use that version of FedSim")
    return config


def _described(config: Config) -> Any:
    return json.loads(json.dumps(describe(replace(config, device="any"))))


def _remember(estimator: Any, facts: Mapping[str, Any]) -> None:
    estimator.history_ = facts["history"]
    estimator.n_features_in_ = facts["n_features_in"]
    if facts["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(facts["feature_names_in"], dtype=object)
    if facts["classes"] is not None:
        estimator.classes_ = class_from(facts["classes"])
