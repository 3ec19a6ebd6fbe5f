"""What is measured of predictions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import roc_auc_score

from fedsim.training.data import IntervalWidth, classification_metrics, regression_metrics, selection_key

seeds = st.integers(0, 2**32 - 1)


def of_two(probability: np.ndarray) -> np.ndarray:
    return np.column_stack([1 - probability, probability])


@given(seeds)
def test_the_area_under_the_curve_is_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    classes = np.r_[0, 1, rng.integers(0, 2, 48)]
    probability = np.round(rng.random(50), 1)  # with ties
    assert classification_metrics(of_two(probability), classes)["auc"] == pytest.approx(
        roc_auc_score(classes, probability)
    )


def test_one_class_alone_has_an_area_of_one_half():
    assert classification_metrics(of_two(np.array([0.2, 0.7])), np.array([1, 1]))["auc"] == 0.5


def test_more_than_two_classes_have_no_area():
    assert set(classification_metrics(np.eye(3), np.arange(3))) == {"accuracy", "log_loss"}


def test_the_best_epoch_is_chosen_by_accuracy_and_log_loss_whatever_the_area_is():
    assert selection_key({"accuracy": 0.9, "log_loss": 0.3, "auc": 0.1}) == (0.9, -0.3)


@given(seeds, st.sampled_from([2, 3]))
def test_a_record_of_weight_two_counts_as_two_in_all_metrics(seed, n_classes):
    rng = np.random.default_rng(seed)
    times, labels, found = rng.integers(1, 4, 30), rng.normal(size=30), rng.normal(size=30)
    weighted, repeated = (
        regression_metrics(found, labels, times),
        regression_metrics(*np.repeat([found, labels], times, 1)),
    )
    assert weighted == pytest.approx(repeated)
    classes, probabilities = rng.integers(0, n_classes, 30), rng.dirichlet(np.ones(n_classes), 30)
    repeated = classification_metrics(np.repeat(probabilities, times, 0), np.repeat(classes, times))
    assert classification_metrics(probabilities, classes, times.astype(float)) == pytest.approx(repeated)


def test_intervals_are_as_wide_as_the_weightiest_errors_need():
    errors, weights = np.arange(1.0, 101.0), np.where(np.arange(100) < 50, 1.0, 0.01)
    assert IntervalWidth.fit(errors, np.zeros(100), weights).half(np.zeros(1)) == pytest.approx(46)
    assert IntervalWidth.fit(errors, np.zeros(100), np.full(100, 7.0)).half(np.zeros(1)) == pytest.approx(91)
