"""One way to predict: the network, the trees beside it, and wider intervals while a secondary is away."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.pipeline.fit import FitPlan, fit
from fedsim.pipeline.partner_features import LocalRows
from fedsim.pipeline.predict import FittedModel, LinkedInputs
from fedsim.training import PrimaryData, SecondaryData, modern_preset
from fedsim.training.data import as_features
from fedsim.types import Split

SPLIT = Split(np.arange(80), np.arange(80, 100), np.arange(100, 120))
NO_NAMES = np.zeros((120, 0), np.float32)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    own, theirs = rng.normal(size=(120, 4)), rng.normal(size=(30, 2)).astype(np.float32)
    partner, similarity = rng.integers(0, 30, (120, 3)), rng.normal(size=(120, 3))
    data = PrimaryData(own, own[:, 0] + theirs[partner[:, 0], 0])
    rows = LocalRows([SecondaryData(theirs, partner, similarity)], theirs)
    fitted = fit(data, [rows], FitPlan(modern_preset(epochs=2, members=1), SPLIT, SPLIT.test, names=NO_NAMES))
    partners = rows.embedded()
    inputs = LinkedInputs(as_features(own), [partners.neighbours], NO_NAMES, [partners])
    return fitted, inputs


def test_records_of_the_test_set_are_predicted_as_when_the_model_was_fitted(case):
    fitted, inputs = case
    values, intervals = FittedModel(fitted.network.model, fitted.trees).predict(inputs)
    np.testing.assert_allclose(values[SPLIT.test], fitted.result.predictions["test"], rtol=1e-6)
    np.testing.assert_allclose(intervals[SPLIT.test], fitted.result.intervals["test"], rtol=1e-6)


def test_while_a_secondary_is_away_intervals_are_wider_by_its_factor(case):
    fitted, inputs = case
    model = FittedModel(fitted.network.model, fitted.trees, absence=[(["secondary"], 3.0)])
    away = LinkedInputs(inputs.features, inputs.lists, inputs.names, inputs.embedded, away=("secondary",))
    narrow, wide = (np.ptp(model.predict(each)[1], axis=1) for each in (inputs, away))
    np.testing.assert_allclose(wide, 3.0 * narrow, rtol=1e-6)
