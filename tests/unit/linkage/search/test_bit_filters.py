"""Distances of filters, empty ones included."""

from __future__ import annotations

import numpy as np
import pytest

import reference_distances
from fedsim.linkage import topk


def test_dice_of_empty_filters_is_zero_among_themselves_and_one_to_others() -> None:
    filters = np.array([[0], [255], [0]], np.uint8)
    partner, distance = topk(filters[:1], filters, metric="dice", k=3)
    assert partner.tolist() == [[0, 2, 1]]
    assert distance.tolist() == [[0.0, 0.0, 1.0]]


@pytest.mark.parametrize("metric", ["hamming", "dice"])
def test_groups_of_queries_that_fill_no_vector_are_exact(metric: str) -> None:
    rng = np.random.default_rng(8)
    queries, candidates = (rng.integers(0, 256, (n, 11)).astype(np.uint8) for n in (33, 70))
    oracle = reference_distances.hamming if metric == "hamming" else reference_distances.dice
    partner, distance = topk(queries, candidates, metric=metric, k=70, backend="flat")
    expected_partner, expected_distance = reference_distances.nearest(queries, candidates, oracle, 70)
    np.testing.assert_array_equal(partner, expected_partner)
    np.testing.assert_array_equal(distance, expected_distance)
