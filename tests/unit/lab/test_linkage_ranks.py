"""Ranks of true matches against a sort of all distances."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.linkage import distance_matrix, get_metric
from fedsim_lab.datasets.registers import generate_registers
from fedsim_lab.linkage_ranks import match_ranks, ranks_in_lists, ranks_in_rows, summarise_ranks


def sorted_ranks(distance, truth):
    """The place of every match in the list of all candidates, sorted by distance and row."""
    every = [sorted(range(len(row)), key=lambda place, row=row: (row[place], place)) for row in distance]
    return [order.index(match) + 1 for order, match in zip(every, truth, strict=True)]


def test_ranks_equal_the_places_in_a_sorted_list_with_ties():
    rng = np.random.default_rng(0)
    distance, truth = rng.integers(0, 4, (40, 12)).astype(float), rng.integers(0, 12, 40)
    ranks = ranks_in_rows(distance, truth)
    assert ranks.tolist() == sorted_ranks(distance, truth)
    order = np.argsort(distance, axis=1, kind="stable")
    np.testing.assert_array_equal(ranks_in_lists(order, truth), ranks)
    np.testing.assert_array_equal(ranks_in_lists(order[:, :3], truth), np.where(ranks <= 3, ranks, 0))


@pytest.mark.parametrize("metric", ["levenshtein-normalised", "qgram-dice"])
def test_a_match_beyond_the_list_gets_its_rank_among_all_candidates(metric):
    drawn = generate_registers(np.random.default_rng(1), ours=60, theirs=150)
    known = np.flatnonzero(drawn.truth >= 0)
    ours, truth = [drawn.ours[row] for row in known], drawn.truth[known]
    ranks, noisy = match_ranks(ours, drawn.theirs, truth, metric, k=2, sigma=0.0, rng=np.random.default_rng(2))
    chosen = get_metric(metric)
    every = distance_matrix(chosen, chosen.prepare(ours, "primary"), chosen.prepare(drawn.theirs, "secondary"))
    assert ranks.tolist() == sorted_ranks(every, truth)
    assert ranks.max() > 2
    np.testing.assert_array_equal(noisy, ranks)


def test_noise_reorders_the_list_and_nothing_else():
    rng = np.random.default_rng(3)
    points, truth = rng.normal(size=(80, 2)), rng.integers(0, 80, 80)
    ranks, noisy = match_ranks(points, points, truth, "euclidean", k=30, sigma=5.0, rng=rng)
    assert (ranks != noisy).any()
    np.testing.assert_array_equal(ranks <= 30, noisy <= 30)
    np.testing.assert_array_equal(ranks[ranks > 30], noisy[ranks > 30])


def test_recall_and_mean_rank_are_plain_averages():
    found = summarise_ranks(np.array([1, 4, 5, 6, 50, 51, 600]))
    assert found.recall == {1: 1 / 7, 5: 3 / 7, 10: 4 / 7, 50: 5 / 7}
    assert found.mean_rank == 717 / 7


def test_registers_spell_the_same_firms_differently():
    drawn = generate_registers(np.random.default_rng(4), ours=200, theirs=300, shared=0.5)
    known = drawn.truth[drawn.truth >= 0]
    assert len(known) == len(set(known.tolist())) == 100
    assert len(set(drawn.ours)) == 200
    same = np.mean([drawn.ours[row] == drawn.theirs[match] for row, match in enumerate(drawn.truth) if match >= 0])
    assert 0.02 < same < 0.4
