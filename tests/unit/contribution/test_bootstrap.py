"""Intervals that are paired, drawn by group, and scores that count records by weight."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

from fedsim.contribution.ladder import ACCURACY, AUC, RMSE, SeedPredictions, bootstrap_scores, measure_for_task


def judged(rng: np.random.Generator, n: int = 400, better: float = 0.0) -> SeedPredictions:
    labels = rng.normal(size=n)
    common, own = rng.normal(size=n), rng.normal(0.0, 0.1, n)
    guesses = {"before": labels + common, "after": labels + (1 - better) * common + own * (better > 0)}
    return SeedPredictions(labels, np.arange(n), guesses)


def test_equal_predictions_gain_exactly_nothing() -> None:
    gain = bootstrap_scores([judged(np.random.default_rng(0))], RMSE, np.random.default_rng(1)).gain(
        "before", "after", lower_is_better=True
    )
    assert (gain.estimate, gain.low, gain.high) == (0.0, 0.0, 0.0)


def test_a_common_error_cancels_out_of_a_paired_gain() -> None:
    seeds = [judged(np.random.default_rng(seed), better=0.1) for seed in range(3)]
    gain = bootstrap_scores(seeds, RMSE, np.random.default_rng(1)).gain("before", "after", lower_is_better=True)
    assert gain.low < gain.estimate < gain.high
    assert gain.low > 0.05  # the error of each alone is 0.03 a seed; unpaired, zero would be among the likely


def test_groups_are_drawn_together_and_so_widen_the_interval() -> None:
    one = judged(np.random.default_rng(0), n=100, better=0.3)
    copied = {name: np.repeat(values, 9) for name, values in one.predictions.items()}
    widths = []
    for groups in (np.arange(900), np.repeat(np.arange(100), 9)):
        seeds = [SeedPredictions(np.repeat(one.labels, 9), groups, copied)]
        gain = bootstrap_scores(seeds, RMSE, np.random.default_rng(1)).gain("before", "after", lower_is_better=True)
        widths.append(gain.high - gain.low)
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.2)


def test_weighted_scores_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    labels, group = rng.integers(0, 2, 300), rng.integers(0, 40, 300)
    guess = np.round(rng.random(300), 1)  # with ties
    both = np.column_stack([1 - guess, guess])
    weight = rng.integers(0, 4, 40).astype(float)
    found, counts = np.unique(group, return_inverse=True)[1], weight[group]
    assert AUC.scorer(both, labels, found)(weight) == pytest.approx(roc_auc_score(labels, guess, sample_weight=counts))
    assert ACCURACY.scorer(both, labels, found)(weight) == pytest.approx(
        accuracy_score(labels, both.argmax(axis=1), sample_weight=counts)
    )
    errors = np.sqrt(np.average((guess - labels) ** 2, weights=counts))
    assert RMSE.scorer(guess, labels, found)(weight) == pytest.approx(errors)


def test_intervals_of_a_mean_cover_it_about_as_often_as_they_say() -> None:
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        labels = np.zeros(150)
        guesses = {"before": rng.normal(2.0, 0.1, 150), "after": rng.normal(1.0, 0.5, 150)}
        gain = bootstrap_scores([SeedPredictions(labels, np.arange(150), guesses)], RMSE, rng, draws=200).gain(
            "before", "after", lower_is_better=True
        )
        covered += gain.low <= np.sqrt(4.01) - np.sqrt(1.25) <= gain.high
    assert 50 <= covered <= 60


def five_seeds(rng: np.random.Generator, *, shared: bool, n: int = 150) -> list[SeedPredictions]:
    """Five trainings, each a little luckier or not, judged by the same test records or by fresh ones."""
    seeds = []
    for seed in range(5):
        if not (shared and seeds):
            error, skill = rng.normal(2.0, 1.0, n), rng.normal(0.5, 0.5, n)
        guesses = {"before": error, "after": error - skill - rng.normal(0.0, 0.03)}
        seeds.append(SeedPredictions(np.zeros(n), np.arange(n) + (0 if shared else n * seed), guesses))
    return seeds


@pytest.mark.parametrize("shared", [True, False])
def test_intervals_cover_whether_seeds_share_their_test_records_or_not(shared: bool) -> None:
    covered, truth = 0, np.sqrt(5.0) - np.sqrt(1.5**2 + 1.25)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        seeds = five_seeds(rng, shared=shared)
        gain = bootstrap_scores(seeds, RMSE, rng, draws=200).gain("before", "after", lower_is_better=True)
        covered += gain.low <= truth <= gain.high
    assert covered >= 88  # 95 are promised; with records drawn anew for every seed it would be 77 where they are shared


def test_a_seed_of_few_groups_that_no_drawing_took_does_not_count() -> None:
    rng = np.random.default_rng(0)
    seeds = [
        SeedPredictions(np.zeros(2), np.array([2 * seed, 2 * seed + 1]), {"one": rng.normal(size=2)})
        for seed in range(8)
    ]
    assert np.isfinite(bootstrap_scores(seeds, RMSE, rng).resamples["one"]).all()


def test_the_measure_follows_the_task() -> None:
    names = [
        measure_for_task(*case).name
        for case in (
            ("regression", np.arange(3.0)),
            ("classification", np.array([0, 1])),
            ("classification", np.array([0, 1, 2])),
        )
    ]
    assert names == ["rmse", "auc", "accuracy"]
