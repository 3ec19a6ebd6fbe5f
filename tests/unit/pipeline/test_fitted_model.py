"""One way to fit a model, its network and boosted trees beside it, and one way to predict with it."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.pipeline.fitted_model import FitPlan, FittedModel, LinkedInputs, LocalRows, fit
from fedsim.protocol.session import PeerRestarted
from fedsim.splitnn.methods import Solo
from fedsim.training import Config, PrimaryData, SecondaryData, modern_preset, train
from fedsim.training.boosted_trees import StackedTrees, TreeInputs
from fedsim.training.data import as_features
from fedsim.types import Split
from session_fixtures import RENTALS

SPLIT = Split(np.arange(80), np.arange(80, 100), np.arange(100, 120))
CONFIG = Config(epochs=2, device="cpu", party_dropout=0.2)
NO_NAMES = np.zeros((120, 0), np.float32)


class RestartingRows:
    """Rows whose holder restarts once, while it is asked for its embedding."""

    def __init__(self, rows):
        self.rows, self.restarts, self.opened, self.finished = rows, 1, 0, 0

    def open(self, context):
        self.opened += 1
        return self.rows.open(context)

    def embedded(self):
        if self.restarts:
            self.restarts -= 1
            raise PeerRestarted(RENTALS)
        return self.rows.embedded()

    def finish(self):
        self.finished += 1


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    own, theirs = rng.normal(size=(120, 4)), rng.normal(size=(30, 2)).astype(np.float32)
    partner, similarity = rng.integers(0, 30, (120, 3)), rng.normal(size=(120, 3))
    labels = own[:, 0] + theirs[partner[:, 0], 0]
    return PrimaryData(own, labels), SecondaryData(theirs, partner, similarity), theirs


def test_the_network_is_the_one_that_training_alone_gives(case):
    data, secondary, _ = case
    fitted, alone = (
        fit(data, [LocalRows([secondary])], FitPlan(CONFIG, SPLIT)),
        train(data, [secondary], SPLIT, CONFIG),
    )
    assert fitted.result is fitted.network
    assert fitted.trees is None
    np.testing.assert_array_equal(fitted.result.predictions["test"], alone.predictions["test"])


def test_trees_beside_the_network_are_those_of_the_definition(case):
    data, secondary, theirs = case
    plan = FitPlan(CONFIG, SPLIT, {"few": SPLIT.test[:5], "more": SPLIT.validation[:7]}, names=NO_NAMES)
    fitted = fit(data, [LocalRows([secondary], theirs)], plan)
    network = fitted.network.predictions
    inputs = TreeInputs(NO_NAMES, [LocalRows([secondary], theirs).embedded()], CONFIG.party_dropout)
    ends = fitted.network.intervals.get("validation")
    known = StackedTrees.fit(data, SPLIT, (network["validation"], ends), seed=CONFIG.seed, log=False, inputs=inputs)
    for part, trees, rows in (("test", known.final, SPLIT.test), ("validation", known.chosen, SPLIT.validation)):
        columns = trees.columns(inputs.take(rows))
        expected, _ = trees.combine(network[part], None, as_features(data.features).take(rows), columns)
        np.testing.assert_array_equal(fitted.result.predictions[part], expected)
    assert len(fitted.linked["few"].columns.lists) == 5
    assert len(fitted.linked["more"].columns.lists) == 7
    assert fitted.result.metrics["test"] != fitted.network.metrics["test"]


def test_trees_that_must_not_learn_the_validation_records_predict_as_these_chose_them(case):
    data, secondary, theirs = case
    fitted = fit(data, [LocalRows([secondary], theirs)], FitPlan(CONFIG, SPLIT, names=NO_NAMES, refit_trees=False))
    assert fitted.trees is fitted.chosen_trees


def test_after_a_restart_of_a_holder_the_same_model_is_fitted(case):
    data, secondary, theirs = case
    restarting, seen = RestartingRows(LocalRows([secondary], theirs)), []
    plan = FitPlan(CONFIG, SPLIT, names=NO_NAMES, restarted=seen.append)
    found, quiet = fit(data, [restarting], plan), fit(data, [LocalRows([secondary], theirs)], plan)
    assert (restarting.opened, restarting.finished, [each.peer for each in seen]) == (2, 1, [RENTALS])
    np.testing.assert_array_equal(found.result.predictions["test"], quiet.result.predictions["test"])


def test_a_primary_alone_fits_without_partners(case):
    data, *_ = case
    with_solo = FitPlan(Config(method=Solo(), epochs=2, device="cpu"), SPLIT, {"explained": SPLIT.test})
    fitted = fit(data, [], with_solo)
    assert fitted.linked["explained"].lists == ()


@pytest.fixture(scope="module")
def predicting():
    rng = np.random.default_rng(0)
    own, theirs = rng.normal(size=(120, 4)), rng.normal(size=(30, 2)).astype(np.float32)
    partner, similarity = rng.integers(0, 30, (120, 3)), rng.normal(size=(120, 3))
    data = PrimaryData(own, own[:, 0] + theirs[partner[:, 0], 0])
    rows = LocalRows([SecondaryData(theirs, partner, similarity)], theirs)
    fitted = fit(data, [rows], FitPlan(modern_preset(epochs=2, members=1), SPLIT, names=NO_NAMES))
    partners = rows.embedded()
    inputs = LinkedInputs(as_features(own), [partners.neighbours], NO_NAMES, [partners])
    return fitted, inputs


def test_records_of_the_test_set_are_predicted_as_when_the_model_was_fitted(predicting):
    fitted, inputs = predicting
    values, intervals = FittedModel(fitted.network.model, fitted.trees).predict(inputs)
    np.testing.assert_allclose(values[SPLIT.test], fitted.result.predictions["test"], rtol=1e-6)
    np.testing.assert_allclose(intervals[SPLIT.test], fitted.result.intervals["test"], rtol=1e-6)


def test_while_a_secondary_is_away_intervals_are_wider_by_its_factor(predicting):
    fitted, inputs = predicting
    model = FittedModel(fitted.network.model, fitted.trees, absence=[(["secondary"], 3.0)])
    away = LinkedInputs(inputs.features, inputs.lists, inputs.names, inputs.embedded, away=("secondary",))
    narrow, wide = (np.ptp(model.predict(each)[1], axis=1) for each in (inputs, away))
    np.testing.assert_allclose(wide, 3.0 * narrow, rtol=1e-6)
