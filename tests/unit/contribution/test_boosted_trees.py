"""Boosted trees beside the networks: classes that no record showed them are no reason to stop."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.contribution.rungs import Rung, SplitArrays, train_trees
from fedsim.types import Features, Split

TREES = Rung("trees", "Boosted trees", "trees", epochs=5)
N = 200


def arrays_with(rare: dict[int, int]) -> SplitArrays:
    """Classes 0 and 1 by the sign of a number, but for some rows of other classes."""
    features = Features(np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32))
    labels = (features.numbers[:, 0] > 0).astype(np.int64)
    labels[list(rare)] = list(rare.values())
    split = Split(np.arange(140), np.arange(140, 160), np.arange(160, N))
    about = {"name": "toy", "unit": "", "task": "classification", "split": "random", "seed": 0}
    return SplitArrays(features, features, (), labels, np.arange(N), split, about)


@pytest.mark.parametrize("rare", [{150: 2}, {170: 2}, {150: 2, 170: 3}, {150: -1}])
def test_a_class_that_no_learnt_record_has_gets_no_probability(rare: dict[int, int]) -> None:
    arrays = arrays_with(rare)
    found = train_trees(TREES, TREES.primary_data(arrays), arrays)
    classes, learnt = np.unique(arrays.labels), np.unique(arrays.labels[:160])  # test records are predicted last
    assert (found.predictions.shape, found.on_validation.shape) == ((40, len(classes)), (20, len(classes)))
    assert not found.on_validation[:, ~np.isin(classes, [0, 1])].any()
    assert not found.predictions[:, ~np.isin(classes, learnt)].any()
    np.testing.assert_allclose(found.predictions.sum(axis=1), 1.0)


def test_validation_records_of_unknown_classes_alone_leave_the_choice_to_the_training_records() -> None:
    arrays = arrays_with(dict.fromkeys(range(140, 160), 2))
    found = train_trees(TREES, TREES.primary_data(arrays), arrays)
    assert found.test["accuracy"] > 0.9


def test_one_class_alone_is_predicted_for_sure() -> None:
    arrays = arrays_with(dict.fromkeys(range(N), 0) | {199: 1})
    found = train_trees(TREES, TREES.primary_data(arrays), arrays)
    np.testing.assert_allclose(found.predictions, [[1.0, 0.0]] * 40, atol=1e-9)
