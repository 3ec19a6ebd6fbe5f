"""A trained model from its weights, without a record."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FileError, SettingError
from fedsim.splitnn import Features
from fedsim.splitnn.secondary_model import restore_secondary
from fedsim.training import NeighbourList, restore_model, train
from fedsim.training.data import ClassTarget, MinMaxLabel, StandardLabel, target_from_state, target_state
from fedsim.types import Links
from training_fixtures import METHODS, SPLIT, encoded_config, small_config, small_primary, small_secondaries

LABELS = np.array([3.0, 7.5, 4.25])


def without_records(features):
    return replace(features.take(np.arange(0)), spread=features.many_valued)


def holders_of(config, parties, weights):
    return [
        NeighbourList(
            Links.without_records(data.neighbours.k),
            (restore_secondary(data.name, data.features, config.secondary, weights[data.name]),),
        )
        for data in parties
    ]


@pytest.mark.parametrize("name", [name for name in METHODS if name != "solo"])
@pytest.mark.parametrize(("start", "members"), [(small_config, 1), (encoded_config, 2)])
def test_a_restored_model_predicts_the_same_bits(name, start, members):
    config = start(METHODS[name], epochs=1, members=members)
    primary, parties = small_primary(classes=3), small_secondaries(2)
    model = train(primary, parties, SPLIT, config).model
    weights, target = model.parts(), target_from_state(target_state(model.target))
    lists = holders_of(config, parties, weights)
    again = restore_model(config, target, without_records(primary.features), lists, weights["primary"])
    given = primary.features, [data.neighbours for data in parties]
    np.testing.assert_array_equal(again.predict(*given), model.predict(*given))


def test_weights_of_another_model_are_refused():
    config, parties = small_config(epochs=1), small_secondaries()
    model = train(small_primary(), parties, SPLIT, config).model
    weights = model.parts()
    lists = holders_of(config, parties, weights)
    with raises(FileError, "weights-mismatch"):
        restore_model(config, model.target, Features(np.zeros((0, 9))), lists, weights["primary"])


CALIBRATED = StandardLabel().fit(LABELS).calibrate(np.zeros((3, 1)), np.ones(3), LABELS)


@pytest.mark.parametrize(
    "target", [MinMaxLabel().fit(LABELS), StandardLabel().fit(LABELS), CALIBRATED, ClassTarget((-1, 5, 9), 1.5)]
)
def test_a_target_comes_back_from_json(target):
    assert target_from_state(json.loads(json.dumps(target_state(target)))) == target


def test_a_target_that_cannot_be_read_or_written_says_so():
    for state in ({}, {"shift": 0.0}, {"classes": None}):
        with pytest.raises(FileError) as unreadable:
            target_from_state(state)
        assert unreadable.value.code == "target-unreadable"
    with raises(SettingError, "target-not-savable"):
        target_state(object())


def test_an_earlier_model_tells_how_many_classes_there_are():
    assert target_from_state({"classes": 3}) == ClassTarget((0, 1, 2), temperature=1.0)
