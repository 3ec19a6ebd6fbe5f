"""The paper's greedy attack stays under its bound; attackers who know more or weigh all links do not."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from fedsim.errors import InputError, SettingError
from fedsim.linkage import fit_scale, get_metric, similarities
from fedsim.privacy.bounds import success_bound
from fedsim.types import EncodedTable
from fedsim_audit.attacks.similarity_attacks import (
    EXPECTED_SHARE,
    Codebook,
    PrimaryView,
    distance_attack,
    expected_success_rate,
    greedy_attack,
    likelihood_attack,
    most_likely_distance,
)

HAMMING = get_metric("hamming")


def filters(n_records, n_bits, seed) -> EncodedTable:
    return EncodedTable(np.random.default_rng(seed).integers(0, 256, (n_records, n_bits // 8), np.uint8), n_bits, "one")


def every_pair(n_bits, sigma, seed=0):
    """All filters of one side linked to all of the other, as a primary sees them, with codebook and true distances."""
    codes = Codebook.of(HAMMING, filters(80, n_bits, seed), filters(600, n_bits, seed + 1))
    distance = codes.distances(np.arange(80))[:, codes.truth]
    scale = fit_scale(distance)
    similarity = similarities(distance, scale, sigma=sigma, noise=np.random.default_rng(seed + 2))
    partner = np.broadcast_to(np.arange(600), distance.shape)
    return PrimaryView(partner, similarity, scale, sigma), codes, distance


def most_hits(bound, trials) -> int:
    return int(binom.ppf(0.999, trials, bound))


@pytest.mark.parametrize(("n_bits", "sigma"), list(product((64, 256, 1024, 4096), (0.05, 0.2, 0.4, 1, 4))))
def test_the_greedy_attack_stays_under_tau(n_bits, sigma):
    view, codes, distance = every_pair(n_bits, sigma)
    tau = success_bound(sigma, view.scale.deviation)
    of_distances = distance_attack(view, distance)
    of_filters = greedy_attack(view, codes, rng=np.random.default_rng(9))
    assert of_distances.score.value * of_distances.targets <= most_hits(tau, of_distances.targets)
    assert of_filters.score.value * of_filters.targets <= most_hits(tau, of_filters.targets)
    assert of_filters.figures["bound tau"] == tau


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
    view, codes, distance = every_pair(256, 0.0)
    assert distance_attack(view, distance).score.value == 1.0
    assert greedy_attack(view, codes, rng=np.random.default_rng(0), queries=8).score.value > 0.9


def test_more_links_make_the_greedy_attack_worse():
    view, codes, _ = every_pair(256, 0.1)
    one, three = (greedy_attack(view, codes, rng=np.random.default_rng(0), queries=q) for q in (1, 3))
    assert three.figures["bound tau"] == pytest.approx(one.figures["bound tau"] ** 3)
    assert three.figures["share of distances guessed"] < one.figures["share of distances guessed"]


def test_an_attack_on_all_links_breaks_the_bound():
    view, codes, _ = every_pair(256, 0.4)
    found = likelihood_attack(view, codes, rng=np.random.default_rng(0), targets=60)
    assert found.score.value > 0.95
    assert found.score.low > found.figures["bound tau"]


def test_equal_chance_gives_an_equal_finding():
    view, codes, _ = every_pair(64, 0.1)
    first, second = (greedy_attack(view, codes, rng=np.random.default_rng(5)) for _ in range(2))
    assert first == second


def test_inputs_that_do_not_fit_are_refused():
    view, codes, _ = every_pair(64, 0.1)
    with pytest.raises(SettingError) as too_many:
        greedy_attack(view, codes, rng=np.random.default_rng(0), queries=81)
    assert too_many.value.code == "too-many-queries"
    with pytest.raises(InputError) as mismatch:
        greedy_attack(view, Codebook.of(HAMMING, filters(80, 64, 0), filters(2, 64, 1)), rng=np.random.default_rng(0))
    assert (mismatch.value.code, mismatch.value.limit) == ("codebook-mismatch", 2)
