"""What a primary gains by asking again: noise that is drawn anew averages out, noise that is not does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsim.config.stored_audit import AttackKind
from fedsim.types import Scale
from fedsim_audit.attacks.attack_finding import MEDIAN_ERROR_METRES, REPETITIONS, SCORE_ONCE, AttackFinding
from fedsim_audit.attacks.location_attacks import TrueLocations
from fedsim_audit.attacks.repetition_attacks import (
    average_views,
    guess_features,
    held_out_ridge,
    location_attack,
    repeat_attack,
    repeated_inversion_attack,
)
from fedsim_audit.attacks.similarity_attacks import PrimaryView

RNG = np.random.default_rng


def noisy_views(jobs: int, sigma: float = 1.0) -> tuple[list[PrimaryView], np.ndarray]:
    """Jobs with the same links in other orders, and the similarities without noise."""
    rng = RNG(0)
    partner, similarity = np.argsort(rng.random((200, 40)), axis=1)[:, :8], rng.normal(size=(200, 8))
    views = []
    for _ in range(jobs):
        order = np.argsort(rng.random(partner.shape), axis=1)
        noisy = similarity + rng.normal(0.0, sigma, similarity.shape)
        mixed = (np.take_along_axis(values, order, axis=1) for values in (partner, noisy))
        views.append(PrimaryView(*mixed, Scale(0.0, 1.0), sigma))
    first = {(record, row): place for record, rows in enumerate(views[0].partner) for place, row in enumerate(rows)}
    plain = np.zeros(partner.shape)
    for record, rows in enumerate(partner):
        for row, value in zip(rows, similarity[record], strict=True):
            plain[record, first[record, row]] = value
    return views, plain


def test_the_mean_of_n_jobs_has_noise_smaller_by_the_root_of_n():
    views, plain = noisy_views(16)
    mean = average_views(views)
    assert mean.sigma == pytest.approx(0.25)
    assert (mean.similarity - plain).std() == pytest.approx(0.25, rel=0.1)


def test_links_that_other_jobs_lack_keep_their_own_similarity():
    views, _ = noisy_views(2)
    elsewhere = replace(views[1], partner=views[1].partner + 40)
    np.testing.assert_array_equal(average_views([views[0], elsewhere]).similarity, views[0].similarity)


def test_rows_that_no_link_names_are_no_targets():
    truth = np.array([[1.0, 103.0], [1.1, 103.1], [1.2, 103.2]])
    located = {"centre": np.where(np.arange(3)[:, None] == 1, np.nan, truth)}
    found = location_attack(located, truth, TrueLocations(truth, 100.0), rng=RNG(0))
    assert found.score.value == 1.0
    assert found.targets == 2


def test_of_two_ways_that_locate_all_rows_the_nearer_counts():
    truth = np.array([[1.0, 103.0], [1.1, 103.1]])
    located = {"far": truth + 1e-4, "near": truth + 1e-5}
    found = location_attack(located, truth, TrueLocations(truth, 500.0), rng=RNG(0))
    assert found.figures[MEDIAN_ERROR_METRES] == pytest.approx(1.6, rel=0.05)


def test_a_held_out_guess_equals_that_of_a_regression_without_the_row():
    rng, known = RNG(1), np.arange(30)
    rows, wanted = rng.normal(size=(50, 4)), rng.normal(size=(30, 2))
    guess = held_out_ridge(rows, wanted, known)
    scaled = (rows - rows[known].mean(axis=0)) / rows[known].std(axis=0)
    errors = []
    for penalty in np.logspace(-5, 1, 13) * 30:
        slow = np.zeros((30, 2))
        for row in known:
            rest = np.delete(known, row)
            left = np.column_stack([np.ones(29), scaled[rest]])
            lift = np.diag([0.0, *[penalty] * 4])
            slope = np.linalg.solve(left.T @ left + lift, left.T @ wanted[rest])
            slow[row] = np.array([1.0, *scaled[row]]) @ slope
        errors.append((((slow - wanted) ** 2).mean(), slow))
    np.testing.assert_allclose(guess[known], min(errors, key=lambda pair: pair[0])[1], rtol=1e-6)


FEATURES = RNG(4).normal(size=(300, 3))


def invert(sent: list[np.ndarray], known: np.ndarray) -> AttackFinding:
    """The attack on what jobs send."""
    guesses = [guess_features(rows, FEATURES, known) for rows in sent]
    return repeated_inversion_attack(guesses, FEATURES, known, rng=RNG(0))


def test_noise_on_what_jobs_send_averages_out_and_that_of_the_features_does_not():
    rng, lasting = RNG(5), RNG(6).normal(0.0, 2.0, FEATURES.shape)
    drawn = [rng.normal(0.0, 2.0, FEATURES.shape) for _ in range(40)]
    weights = [rng.normal(size=(3, 16)) for _ in drawn]
    anew, once = (
        invert([(FEATURES + noise) @ part for noise, part in zip(noises, weights, strict=True)], np.arange(60))
        for noises in (drawn, [lasting] * 40)
    )
    assert anew.score.value > 0.7
    assert once.score.value < 0.4


def test_the_best_number_of_repetitions_counts_and_all_scores_are_stated():
    found = invert([FEATURES], np.arange(40))

    def attempt(number: int):
        value = {1: 0.2, 10: 0.9, 30: 0.8}[number]
        return replace(found, score=replace(found.score, value=value))

    best = repeat_attack("x", AttackKind.REPEATED_FEATURES, 30, attempt)
    assert best.score.value == 0.9
    assert best.figures[SCORE_ONCE] == 0.2
    assert best.figures[REPETITIONS] == 10
    assert best.figures["score with 30 jobs"] == 0.8
