"""Theorem 2 of the paper, both ways."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedsim.errors import SettingError
from fedsim.linkage.soft_linkage import fit_scale
from fedsim.privacy.bounds import (
    bayes_success,
    expected_success,
    lowest_bound,
    sigma_for_bound,
    sigma_for_expected_success,
    success_bound,
)
from fedsim_audit.attacks.similarity_attacks import expected_success_rate

sigmas = st.floats(1e-3, 1e2)
spreads = st.floats(1.0, 1e6)
HOUSE = 21178.86


def test_the_papers_figures():
    assert success_bound(4.0, HOUSE) == pytest.approx(1.9417e-05, rel=1e-4)
    assert success_bound(0.4, HOUSE) == pytest.approx(5.0720e-05, rel=1e-4)
    assert [round(sigma_for_bound(tau, HOUSE), 4) for tau in (1e-2, 1e-3, 1e-4)] == [0.0019, 0.0188, 0.1918]


@given(sigmas, spreads)
def test_more_noise_never_helps_the_attacker(sigma, spread):
    assert success_bound(2 * sigma, spread) <= success_bound(sigma, spread)


@given(st.floats(0.1, 5.0), st.floats(10.0, 1e5))
def test_noise_and_bound_undo_each_other(sigma, spread):
    assert sigma_for_bound(success_bound(sigma, spread), spread) == pytest.approx(sigma, rel=1e-6)


def test_more_links_lower_the_greedy_bound():
    assert success_bound(0.4, 100.0, queries=3) == pytest.approx(success_bound(0.4, 100.0) ** 3)
    with pytest.raises(SettingError):
        success_bound(1.0, 1.0, queries=0)


def test_certainty_needs_no_noise_and_no_noise_promises_nothing():
    assert sigma_for_bound(1.0, HOUSE) == 0.0
    assert success_bound(0.0, HOUSE) == 1.0


def test_an_unreachable_tau_is_refused_with_the_lowest_bound():
    with pytest.raises(SettingError) as caught:
        sigma_for_bound(1e-5, HOUSE)
    assert (caught.value.code, caught.value.limit) == ("tau-too-small", lowest_bound(HOUSE))


@pytest.mark.parametrize(("tau", "spread"), [(0.0, 1.0), (1.1, 1.0), (0.5, 0.0), (0.5, -1.0), (float("nan"), 1.0)])
def test_values_without_meaning_are_refused(tau, spread):
    with pytest.raises(SettingError):
        sigma_for_bound(tau, spread)


def test_expected_success_is_what_many_draws_of_the_noise_give():
    rng, sigma = np.random.default_rng(0), 0.4
    step = rng.uniform(0.02, 0.2, 300)
    similarity = np.rint(rng.standard_normal(300) / step) * step
    noisy = similarity + sigma * rng.standard_normal((3_000, 300))
    guesses = [np.rint(seen / step) * step for seen in (noisy / (1 + sigma**2), noisy)]
    share = max(np.isclose(guess, similarity).mean() for guess in guesses)
    assert expected_success(sigma, similarity, step / 2) == pytest.approx(share, abs=0.002)


@pytest.mark.parametrize("tau", [0.9, 0.3, 0.1])
def test_the_noise_for_an_expected_success_is_enough_and_hardly_more(tau):
    links = np.random.default_rng(1).standard_normal(2_000), np.full(2_000, 0.03)
    sigma = sigma_for_expected_success(tau, *links)
    assert expected_success(sigma, *links) <= tau < expected_success(0.99 * sigma, *links)


def test_a_success_that_no_noise_prevents_is_refused_with_the_least_one():
    with pytest.raises(SettingError) as caught:
        sigma_for_expected_success(0.05, np.zeros(10), np.full(10, 0.1))
    assert caught.value.code == "tau-too-small"
    assert caught.value.limit == pytest.approx(expected_success(1.0, np.zeros(10), np.full(10, 0.1)), rel=0.05)


def typos(copies: float) -> np.ndarray:
    """Distances of links, of which a share are to exact copies and the others to filters with typing errors."""
    rng = np.random.default_rng(2)
    return np.where(rng.random((500, 10)) < copies / 10, 0, rng.binomial(1024, 0.25, (500, 10))).astype(float)


def test_the_bayes_attacker_is_the_best_guesser_of_many_draws() -> None:
    distance = typos(0.7).ravel()
    scale, sigma = fit_scale(distance), 0.5
    values, counts = np.unique(distance, return_counts=True)
    rng, right = np.random.default_rng(4), []
    for _ in range(40):
        seen = -scale.deviation * sigma * rng.standard_normal(len(distance)) + distance
        posterior = np.log(counts) - (seen[:, None] - values) ** 2 / (2 * (sigma * scale.deviation) ** 2)
        right.append((values[posterior.argmax(axis=1)] == distance).mean())
    assert bayes_success(sigma, scale.deviation, distance) == pytest.approx(np.mean(right), abs=0.002)


@given(sigmas, st.lists(st.integers(0, 40), min_size=2, max_size=30).filter(lambda found: len(set(found)) > 1))
def test_no_greedy_attacker_beats_the_bayes_attacker(sigma, distances):
    distance = np.array(distances, dtype=float)
    scale = fit_scale(distance)
    best = bayes_success(sigma, scale.deviation, distance)
    commonest = np.unique(distance, return_counts=True)[1].max() / len(distance)
    assert max(commonest, expected_success_rate(distance, scale, sigma)) - 1e-9 <= best <= 1.0 + 1e-9


def test_theorem_2_does_not_bound_an_attacker_who_knows_the_distances() -> None:
    distance = typos(0.7)
    spread = fit_scale(distance).deviation
    assert bayes_success(sigma_for_bound(0.05, spread), spread, distance) > 0.1


def test_the_bayes_attacker_is_sure_without_noise_and_blind_under_much():
    distance = np.array([1.0, 1.0, 1.0, 5.0])
    assert bayes_success(0.0, 1.7, distance) == 1.0
    assert bayes_success(1e3, 1.7, distance) == pytest.approx(0.75)
