"""The search by tree gives the distances and ties of every pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import reference_distances
from fedsim.linkage import topk


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 60), st.integers(0, 3))
def test_points_on_a_lattice_rank_as_the_oracle(seed: int, dimensions: int, n: int, spread: int) -> None:
    rng = np.random.default_rng(seed)
    queries = rng.integers(-spread, spread + 1, (7, dimensions)).astype(float)
    candidates = rng.integers(-spread, spread + 1, (n, dimensions)).astype(float)
    k = int(rng.integers(1, n + 1))
    for backend in ("tree", "blocks"):
        partner, distance = topk(queries, candidates, metric="euclidean", k=k, backend=backend)
        expected_partner, expected_distance = reference_distances.nearest(
            queries, candidates, reference_distances.euclidean, k
        )
        np.testing.assert_array_equal(partner, expected_partner)
        np.testing.assert_array_equal(distance, expected_distance)


@pytest.mark.parametrize("backend", ["tree", "blocks"])
@pytest.mark.parametrize(("shift", "scale"), [(116.4, 1e-5), (1e9, 1e-3), (0.0, 1e-160), (-3e7, 1e60)])
def test_far_from_zero_and_any_scale_stay_exact(backend: str, shift: float, scale: float) -> None:
    rng = np.random.default_rng(5)
    queries, candidates = (rng.normal(size=(n, 3)) * scale + shift for n in (40, 500))
    partner, distance = topk(queries, candidates, metric="euclidean", k=9, backend=backend)
    expected_partner, expected_distance = reference_distances.nearest(
        queries, candidates, reference_distances.euclidean, 9
    )
    np.testing.assert_array_equal(distance, expected_distance)
    np.testing.assert_array_equal(partner, expected_partner)


def near_a_lattice(rng: np.random.Generator, n: int) -> np.ndarray:
    """Places written with two decimals: distances are equal but for the rounding of binary fractions."""
    return (rng.integers(-4, 5, (n, 2)) / 100 + np.array([39.89, 116.41])).round(2)


def around_the_pole(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.column_stack([90 - rng.integers(0, 3, n) / 100, rng.choice([-180.0, -90.0, 0.0, 90.0, 180.0], n)])


def within_a_centimetre(rng: np.random.Generator, n: int) -> np.ndarray:
    """So near that the chord on the unit sphere is mostly rounding."""
    return rng.integers(-5, 6, (n, 2)) * 1e-8 + np.array([39.89, 116.41])


@pytest.mark.parametrize("metric", ["euclidean", "great-circle"])
@pytest.mark.parametrize("draw", [near_a_lattice, around_the_pole, within_a_centimetre])
@pytest.mark.parametrize("far", [0.0, 20.0])
def test_the_tree_gives_the_bytes_of_every_pair_where_rounding_makes_near_ties(metric, draw, far) -> None:
    rng = np.random.default_rng(11)
    for _ in range(20):
        queries, candidates = draw(rng, 60) - [far, 0], draw(rng, 90)
        k = int(rng.integers(1, 12))
        tree = topk(queries, candidates, metric=metric, k=k, backend="tree")
        every_pair = topk(queries, candidates, metric=metric, k=k, backend="blocks")
        np.testing.assert_array_equal(tree[1], every_pair[1])
        np.testing.assert_array_equal(tree[0], every_pair[0])


def test_queries_very_far_away_are_exact() -> None:
    rng = np.random.default_rng(12)
    candidates = rng.normal(size=(200, 2))
    queries = rng.normal(size=(20, 2)) + 1e8
    tree = topk(queries, candidates, metric="euclidean", k=5, backend="tree")
    every_pair = topk(queries, candidates, metric="euclidean", k=5, backend="blocks")
    np.testing.assert_array_equal(tree[1], every_pair[1])
    np.testing.assert_array_equal(tree[0], every_pair[0])


def test_the_same_place_under_another_name_is_at_distance_zero() -> None:
    date_line, pole = np.array([[0.0, 180.0]]), np.array([[90.0, 10.0]])
    assert topk(date_line, np.array([[0.0, -180.0]]), metric="great-circle", k=1)[1].tolist() == [[0.0]]
    assert topk(pole, np.array([[90.0, -77.0]]), metric="great-circle", k=1)[1].tolist() == [[0.0]]
