"""Laws of the search kernels, on inputs that a generator would rather not meet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from fedsim.linkage import topk

texts = st.lists(st.text(alphabet=st.characters(exclude_categories=[]), max_size=70), min_size=1, max_size=12)
small_texts = st.lists(st.text(alphabet="ab", max_size=5), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(texts, texts, st.booleans())
def test_edit_distance_holds_for_any_unicode(queries: list[str], candidates: list[str], normalised: bool) -> None:
    metric = "levenshtein-normalised" if normalised else "levenshtein"
    oracle = oracles.normalised_levenshtein if normalised else oracles.levenshtein
    partner, distance = topk(queries, candidates, metric=metric, k=len(candidates))
    expected_partner, expected_distance = oracles.nearest(queries, candidates, oracle, len(candidates))
    np.testing.assert_array_equal(partner, expected_partner)
    np.testing.assert_array_equal(distance, expected_distance)


@settings(deadline=None, max_examples=100)
@given(small_texts, small_texts, st.data())
def test_edit_distance_ties_go_to_the_lower_row(queries: list[str], candidates: list[str], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(candidates)))
    partner, _ = topk(queries, candidates, metric="levenshtein", k=k)
    np.testing.assert_array_equal(partner, oracles.nearest(queries, candidates, oracles.levenshtein, k)[0])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 60), st.integers(0, 3))
def test_points_on_a_lattice_rank_as_the_oracle(seed: int, dimensions: int, n: int, spread: int) -> None:
    rng = np.random.default_rng(seed)
    queries = rng.integers(-spread, spread + 1, (7, dimensions)).astype(float)
    candidates = rng.integers(-spread, spread + 1, (n, dimensions)).astype(float)
    k = int(rng.integers(1, n + 1))
    for backend in ("tree", "flat"):
        partner, distance = topk(queries, candidates, metric="euclidean", k=k, backend=backend)
        expected_partner, expected_distance = oracles.nearest(queries, candidates, oracles.euclidean, k)
        np.testing.assert_array_equal(partner, expected_partner)
        np.testing.assert_array_equal(distance, expected_distance)


@pytest.mark.parametrize("backend", ["tree", "flat"])
@pytest.mark.parametrize(("shift", "scale"), [(116.4, 1e-5), (1e9, 1e-3), (0.0, 1e-160), (-3e7, 1e60)])
def test_far_from_zero_and_any_scale_stay_exact(backend: str, shift: float, scale: float) -> None:
    rng = np.random.default_rng(5)
    queries, candidates = (rng.normal(size=(n, 3)) * scale + shift for n in (40, 500))
    partner, distance = topk(queries, candidates, metric="euclidean", k=9, backend=backend)
    expected_partner, expected_distance = oracles.nearest(queries, candidates, oracles.euclidean, 9)
    np.testing.assert_array_equal(distance, expected_distance)
    np.testing.assert_array_equal(partner, expected_partner)


@pytest.mark.parametrize("order", ["ascending", "descending", "constant"])
@pytest.mark.parametrize("k", [1, 20, 150])
def test_selector_survives_every_order_of_candidates(order: str, k: int) -> None:
    levels = {"ascending": np.arange(3000), "descending": np.arange(3000)[::-1], "constant": np.full(3000, 7)}[order]
    candidates = np.packbits(np.arange(4096)[None, :] < levels[:, None], axis=1)
    queries = np.zeros((2, candidates.shape[1]), np.uint8)
    for backend in ("flat", "cells"):
        partner, distance = topk(queries, candidates, metric="hamming", k=k, backend=backend)
        rows = np.lexsort((np.arange(3000), levels))[:k]
        np.testing.assert_array_equal(partner[1], rows)
        np.testing.assert_array_equal(distance[1], levels[rows])


def test_a_flood_of_ties_in_dictionary_order_still_goes_to_the_lower_row() -> None:
    rng = np.random.default_rng(0)
    candidates = ["".join(rng.choice(list("xyz"), 6)) for _ in range(20_000)]
    partner, distance = topk(["aaaaaa"], candidates, metric="levenshtein", k=30)
    np.testing.assert_array_equal(partner[0], np.arange(30))
    assert set(distance[0]) == {6}


def test_candidates_deeper_than_the_kept_columns_are_exact() -> None:
    stem = "abc" * 500
    candidates = [stem + tail for tail in ("", "x", "xy", "xyz")] + [stem[:-1] + "q", "short"]
    queries = [stem + "xy", "ab", "z" * 200]
    partner, distance = topk(queries, candidates, metric="levenshtein", k=6)
    expected_partner, expected_distance = oracles.nearest(queries, candidates, oracles.levenshtein, 6)
    np.testing.assert_array_equal(partner, expected_partner)
    np.testing.assert_array_equal(distance, expected_distance)


def test_dice_of_empty_filters_is_zero_among_themselves_and_one_to_others() -> None:
    filters = np.array([[0], [255], [0]], np.uint8)
    partner, distance = topk(filters[:1], filters, metric="dice", k=3)
    assert partner.tolist() == [[0, 2, 1]]
    assert distance.tolist() == [[0.0, 0.0, 1.0]]
