"""What is measured of predictions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import roc_auc_score

from fedsim.training.data import classification_metrics, selection_key

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
