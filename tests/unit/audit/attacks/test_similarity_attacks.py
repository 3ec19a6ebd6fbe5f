"""The paper's greedy attack stays under its bound; attackers who know more or weigh all links do not."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fedsim.linkage import fit_scale, similarities
from fedsim.privacy.bounds import success_bound
from fedsim_audit.attacks.similarity_attacks import (
    EXPECTED_SHARE,
    distance_attack,
    expected_success_rate,
    likelihood_attack,
    most_likely_distance,
)
from linked_filters import every_pair, most_hits


@pytest.mark.parametrize(("n_bits", "sigma"), list(product((64, 256, 1024, 4096), (0.05, 0.2, 0.4, 1, 4))))
def test_the_greedy_attack_on_distances_stays_under_tau(n_bits, sigma):
    view, _, distance = every_pair(n_bits, sigma)
    tau = success_bound(sigma, view.scale.deviation)
    of_distances = distance_attack(view, distance)
    assert of_distances.score.value * of_distances.targets <= most_hits(tau, of_distances.targets)
    assert of_distances.figures["bound tau"] == tau


@pytest.mark.parametrize("sigma", [0.05, 0.4, 2.0])
def test_the_expected_share_is_the_mean_over_many_draws(sigma):
    distance = np.random.default_rng(3).gamma(2.0, 8.0, 400).round()  # as far from normal as places are
    scale = fit_scale(distance)
    rng = np.random.default_rng(4)
    right = [
        most_likely_distance(similarities(distance, scale, sigma=sigma, noise=rng), scale, sigma) == distance
        for _ in range(2_000)
    ]
    doubt = 4.0 * np.std(np.mean(right, axis=1)) / np.sqrt(len(right))
    assert expected_success_rate(distance, scale, sigma) == pytest.approx(np.mean(right), abs=doubt)


@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.4, 1, 4])
def test_the_expected_share_stays_under_tau(sigma):
    view, _, distance = every_pair(1024, sigma)
    found = distance_attack(view, distance).figures
    assert found[EXPECTED_SHARE] <= found["bound tau"] * 1.01  # whole distances of random filters are not quite normal


def test_without_noise_every_distance_is_read_off():
    view, _, distance = every_pair(256, 0.0)
    assert distance_attack(view, distance).score.value == 1.0


def test_an_attack_on_all_links_breaks_the_bound():
    view, codes, _ = every_pair(256, 0.4)
    found = likelihood_attack(view, codes, rng=np.random.default_rng(0), targets=60)
    assert found.score.value > 0.95
    assert found.score.low > found.figures["bound tau"]
