"""One way to fit a model: its network, boosted trees beside it, and the records that explain it."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.pipeline.fit import FitPlan, fit
from fedsim.pipeline.partner_features import LocalRows
from fedsim.protocol.session import PeerRestarted
from fedsim.splitnn.methods import Solo
from fedsim.training import Config, PrimaryData, SecondaryData, train
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
        fit(data, [LocalRows([secondary])], FitPlan(CONFIG, SPLIT, SPLIT.test)),
        train(data, [secondary], SPLIT, CONFIG),
    )
    assert fitted.result is fitted.network
    assert fitted.trees is None
    np.testing.assert_array_equal(fitted.result.predictions["test"], alone.predictions["test"])


def test_trees_beside_the_network_are_those_of_the_definition(case):
    data, secondary, theirs = case
    plan = FitPlan(CONFIG, SPLIT, SPLIT.test[:5], names=NO_NAMES, calibrated=SPLIT.validation[:7])
    fitted = fit(data, [LocalRows([secondary], theirs)], plan)
    network = fitted.network.predictions
    inputs = TreeInputs(NO_NAMES, [LocalRows([secondary], theirs).embedded()], CONFIG.party_dropout)
    ends = fitted.network.intervals.get("validation")
    known = StackedTrees.fit(data, SPLIT, (network["validation"], ends), seed=CONFIG.seed, log=False, inputs=inputs)
    for part, trees, rows in (("test", known.final, SPLIT.test), ("validation", known.chosen, SPLIT.validation)):
        columns = trees.columns(inputs.take(rows))
        expected, _ = trees.combine(network[part], None, as_features(data.features).take(rows), columns)
        np.testing.assert_array_equal(fitted.result.predictions[part], expected)
    assert len(fitted.explained.columns.lists) == 5
    assert len(fitted.calibrated.columns.lists) == 7
    assert fitted.result.metrics["test"] != fitted.network.metrics["test"]


def test_trees_that_must_not_learn_the_validation_records_predict_as_these_chose_them(case):
    data, secondary, theirs = case
    fitted = fit(
        data, [LocalRows([secondary], theirs)], FitPlan(CONFIG, SPLIT, SPLIT.test, names=NO_NAMES, refit_trees=False)
    )
    assert fitted.trees is fitted.chosen_trees


def test_after_a_restart_of_a_holder_the_same_model_is_fitted(case):
    data, secondary, theirs = case
    restarting, seen = RestartingRows(LocalRows([secondary], theirs)), []
    plan = FitPlan(CONFIG, SPLIT, SPLIT.test, names=NO_NAMES, restarted=seen.append)
    found, quiet = fit(data, [restarting], plan), fit(data, [LocalRows([secondary], theirs)], plan)
    assert (restarting.opened, restarting.finished, [each.peer for each in seen]) == (2, 1, [RENTALS])
    np.testing.assert_array_equal(found.result.predictions["test"], quiet.result.predictions["test"])


def test_a_primary_alone_fits_without_partners(case):
    data, *_ = case
    with_solo = FitPlan(Config(method=Solo(), epochs=2, device="cpu"), SPLIT, SPLIT.test)
    fitted = fit(data, [], with_solo)
    assert fitted.explained.lists == ()
