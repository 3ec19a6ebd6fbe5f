"""Intervals around predictions cover the truth as often as they say, and are wider where the members disagree."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.splitnn import Neighbours
from fedsim.training import StandardLabel, train
from fedsim.training.data import ClassTarget, IntervalWidth, LogLabel
from training_fixtures import SPLIT, small_config, small_primary, small_secondaries


def test_they_cover_new_records_nine_times_out_of_ten():
    rng = np.random.default_rng(0)
    spread = rng.gamma(2.0, 0.5, size=6000)
    errors = rng.normal(size=6000) * np.hypot(0.7, spread)  # the spread says how far off the members are
    width = IntervalWidth.fit(errors[:1000], spread[:1000])
    inside = np.abs(errors[1000:]) <= width.half(spread[1000:])
    assert inside.mean() == pytest.approx(0.9, abs=0.025)
    for part in (spread[1000:] < 0.5, spread[1000:] > 1.5):  # and not only on average
        assert inside[part].mean() == pytest.approx(0.9, abs=0.05)


def test_without_spread_they_are_the_conformal_quantile_of_the_errors():
    errors = np.arange(-9.0, 10.0)  # 19 of them; nine tenths of 20 is the 18th
    assert IntervalWidth.fit(errors, np.zeros(19)).half(np.zeros(2)) == pytest.approx(np.sort(np.abs(errors))[17])


def test_perfect_predictions_have_empty_intervals():
    assert IntervalWidth.fit(np.zeros(5), np.zeros(5)).half(np.zeros(1)) == 0


@pytest.mark.parametrize(("members", "widths"), [(1, 1), (3, 10)])
def test_their_width_depends_on_the_record_if_there_are_members(members, widths):
    config = small_config(members=members, label=StandardLabel())
    result = train(small_primary(), small_secondaries(2), SPLIT, config)
    lower, upper = result.intervals["test"].T
    assert (lower <= result.predictions["test"]).all()
    assert (result.predictions["test"] <= upper).all()
    assert len(np.unique((upper - lower).round(6))) == widths


def test_a_model_gives_new_records_the_intervals_of_the_test_records():
    result = train(small_primary(), small_secondaries(), SPLIT, small_config(members=2))
    lists = [Neighbours(data.partner[SPLIT.test], data.similarity[SPLIT.test]) for data in small_secondaries()]
    values, intervals = result.model.predict_with_intervals(small_primary().features.take(SPLIT.test), lists)
    np.testing.assert_allclose(values, result.predictions["test"], rtol=1e-6)
    np.testing.assert_allclose(intervals, result.intervals["test"], rtol=1e-6)


def test_those_of_a_logarithm_are_asymmetric_and_positive():
    target = LogLabel(StandardLabel()).fit(np.array([1.0, 10.0, 100.0]))
    target = target.fit_intervals(np.array([[-1.0], [0.5], [1.0]]), np.zeros(3), np.array([1.0, 10.0, 100.0]))
    ((lower, upper),) = target.decode_intervals(np.zeros((1, 1)), np.zeros(1))
    assert 0 < lower < 10 < upper
    assert lower * upper == pytest.approx(100)


def test_classes_have_probabilities_instead():
    result = train(small_primary(classes=3), small_secondaries(), SPLIT, small_config(members=2, epochs=1))
    assert result.intervals == {}
    assert ClassTarget((1, 2)).decode_intervals(np.zeros((3, 1)), np.zeros(3)) is None
