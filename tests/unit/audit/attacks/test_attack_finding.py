"""Intervals and scores of attacks."""

from __future__ import annotations

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import InputError, SettingError
from fedsim.training.data import roc_auc
from fedsim_audit.attacks.attack_finding import (
    auc_estimate,
    binomial_estimate,
    bootstrap_estimate,
    rarer_class_mask,
    sample_targets,
)


def test_the_rarer_class_is_the_positive_one_and_an_auc_counts_ties_half():
    assert rarer_class_mask(np.array(["b", "a", "a"])).tolist() == [True, False, False]
    assert roc_auc(np.zeros(4), np.array([True, False, True, False])) == 0.5
    assert roc_auc(np.arange(4.0), np.ones(4, bool)) == 0.5


@pytest.mark.parametrize(("hits", "low", "high"), [(0, 0.0, 0.308), (5, 0.187, 0.813), (10, 0.692, 1.0)])
def test_a_rate_of_ten_trials_has_the_tabulated_exact_interval(hits, low, high):
    rate = binomial_estimate(hits, 10)
    assert (rate.low, rate.value, rate.high) == pytest.approx((low, hits / 10, high), abs=5e-4)


def test_an_attack_without_targets_or_rows_has_no_score():
    with raises(SettingError, "no-targets"):
        binomial_estimate(0, 0)
    with raises(InputError, "no-rows"):
        bootstrap_estimate(lambda rows: 0.0, 0, np.random.default_rng(0))


def test_the_interval_of_an_auc_contains_it_and_narrows_with_the_records():
    rng, widths = np.random.default_rng(0), []
    for n_rows in (50, 5_000):
        positive = rng.random(n_rows) < 0.5
        score = positive + rng.normal(size=n_rows)
        estimate = auc_estimate(score, positive, rng)
        assert estimate.low < roc_auc(score, positive) < estimate.high
        widths.append(estimate.high - estimate.low)
    assert widths[1] < widths[0] / 5


def test_targets_are_distinct_candidates_in_ascending_order():
    candidates = np.array([9, 4, 7, 1])
    assert sample_targets(candidates, None, np.random.default_rng(0)).tolist() == [1, 4, 7, 9]
    some = sample_targets(candidates, 3, np.random.default_rng(0)).tolist()
    assert len(set(some)) == 3
    assert some == sorted(some)
    assert set(some) < {1, 4, 7, 9}
