"""Intervals around predictions cover the truth as often as they say, and are wider where the members disagree.

Probabilities of classes say how often they are right.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.splitnn.party_model import AdamW
from fedsim.training import PrimaryData, StandardLabel, TaskType, train
from fedsim.training.data import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    ClassTarget,
    IntervalWidth,
    LogLabel,
    calibration_error,
    classification_metrics,
    fit_temperature,
    scale_probabilities,
)
from fedsim.types import Links, Split
from training_fixtures import METHODS, SPLIT, small_config, small_primary, small_secondaries


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
    lists = [Links(data.partner[SPLIT.test], data.similarity[SPLIT.test]) for data in small_secondaries()]
    values, intervals = result.model.predict_with_intervals(small_primary().features.take(SPLIT.test), lists)
    np.testing.assert_allclose(values, result.predictions["test"], rtol=1e-6)
    np.testing.assert_allclose(intervals, result.intervals["test"], rtol=1e-6)


def test_those_of_a_logarithm_are_asymmetric_and_positive():
    target = LogLabel(StandardLabel()).fit(np.array([1.0, 10.0, 100.0]))
    target = target.calibrate(np.array([[-1.0], [0.5], [1.0]]), np.zeros(3), np.array([1.0, 10.0, 100.0]))
    ((lower, upper),) = target.decode_intervals(np.zeros((1, 1)), np.zeros(1))
    assert 0 < lower < 10 < upper
    assert lower * upper == pytest.approx(100)


def test_classes_have_probabilities_instead():
    result = train(small_primary(classes=3), small_secondaries(), SPLIT, small_config(members=2, epochs=1))
    assert result.intervals == {}
    assert ClassTarget((1, 2)).decode_intervals(np.zeros((3, 1)), np.zeros(3)) is None


def drawn_classes(n, n_classes, seed=0):
    """True probabilities of many records, and a class of each drawn by them."""
    rng = np.random.default_rng(seed)
    true = rng.dirichlet(np.ones(n_classes), n)
    return true, (true.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_temperature_undoes_too_much_and_too_little_confidence(n_classes, temperature):
    true, classes = drawn_classes(20_000, n_classes)
    stated = scale_probabilities(true, 1 / temperature)
    found = fit_temperature(stated[:10_000], classes[:10_000])
    assert found == pytest.approx(temperature, rel=0.05)
    scaled = scale_probabilities(stated, found)
    before, after = (classification_metrics(part[10_000:], classes[10_000:]) for part in (stated, scaled))
    assert after["accuracy"] == before["accuracy"]
    assert calibration_error(scaled[10_000:], classes[10_000:]) < 0.02
    if temperature != 1.0:
        assert after["log_loss"] < before["log_loss"] - 0.01
        assert calibration_error(stated[10_000:], classes[10_000:]) > 0.05


def test_a_weight_counts_as_repeated_records_in_a_temperature():
    true, classes = drawn_classes(2000, 3)
    stated, times = scale_probabilities(true, 0.4), np.where(classes == 0, 3, 1)
    weighted = fit_temperature(stated, classes, times / times.mean())
    assert weighted == pytest.approx(fit_temperature(stated.repeat(times, axis=0), classes.repeat(times)), rel=1e-3)
    assert weighted != pytest.approx(fit_temperature(stated, classes), rel=1e-3)


@pytest.mark.parametrize("right", [True, False])
def test_a_few_validation_records_never_make_a_model_certain(right):
    sure = np.array([[0.99, 0.01]] * 5)
    found = scale_probabilities(sure, fit_temperature(sure, np.zeros(5, int) if right else np.ones(5, int)))
    assert MIN_TEMPERATURE < fit_temperature(sure, np.zeros(5, int)) <= 1.0
    assert (found[0, 0] < 0.999) if right else (found[0, 0] < 0.6)


def test_a_probability_of_zero_stays_finite():
    found = fit_temperature(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0]))
    assert 1.0 < found <= MAX_TEMPERATURE + 1e-9
    assert np.isfinite(scale_probabilities(np.array([[1.0, 0.0]]), found)).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_overconfident_members_are_calibrated_on_validation_records_and_classes_stay(n_classes):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(700, 4))
    clear = np.digitize(features[:, 0], [0.0] if n_classes == 2 else [-0.5, 0.5])
    labels = np.where(rng.random(700) < 0.35, rng.integers(0, n_classes, 700), clear)
    labels[:100] = clear[:100]  # only the training records are that clear
    split = Split(np.arange(100), np.arange(100, 400), np.arange(400, 700))
    config = small_config(METHODS["solo"], epochs=20, members=2, optimiser=AdamW(rate=3e-2))
    result = train(PrimaryData(features, labels, TaskType.CLASSES), [], split, config)
    temperature, calibrated = result.model.target.temperature, result.predictions["test"]
    plain = classification_metrics(scale_probabilities(calibrated, 1 / temperature), labels[split.test])
    assert temperature > 1.5
    assert result.metrics["test"]["log_loss"] < 0.9 * plain["log_loss"]
    assert result.metrics["test"]["accuracy"] == plain["accuracy"]
    np.testing.assert_allclose(result.model.predict(features[split.test], []), calibrated, rtol=1e-6)
