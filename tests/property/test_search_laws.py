"""Laws of the search kernels, on inputs that a generator would rather not meet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import reference_distances
from fedsim.linkage import topk

texts = st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=70), min_size=1, max_size=12)
small_texts = st.lists(st.text(alphabet="ab", max_size=5), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(texts, texts, st.booleans())
def test_edit_distance_holds_for_any_unicode(queries: list[str], candidates: list[str], normalised: bool) -> None:
    metric = "levenshtein-normalised" if normalised else "levenshtein"
    oracle = reference_distances.normalised_levenshtein if normalised else reference_distances.levenshtein
    partner, distance = topk(queries, candidates, metric=metric, k=len(candidates))
    expected_partner, expected_distance = reference_distances.nearest(queries, candidates, oracle, len(candidates))
    np.testing.assert_array_equal(partner, expected_partner)
    np.testing.assert_array_equal(distance, expected_distance)


@settings(deadline=None, max_examples=100)
@given(small_texts, small_texts, st.data())
def test_edit_distance_ties_go_to_the_lower_row(queries: list[str], candidates: list[str], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(candidates)))
    partner, _ = topk(queries, candidates, metric="levenshtein", k=k)
    np.testing.assert_array_equal(
        partner, reference_distances.nearest(queries, candidates, reference_distances.levenshtein, k)[0]
    )


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


@pytest.mark.parametrize("order", ["ascending", "descending", "constant"])
@pytest.mark.parametrize("k", [1, 20, 150])
def test_selector_survives_every_order_of_candidates(order: str, k: int) -> None:
    levels = {"ascending": np.arange(3000), "descending": np.arange(3000)[::-1], "constant": np.full(3000, 7)}[order]
    candidates = np.packbits(np.arange(4096)[None, :] < levels[:, None], axis=1)
    queries = np.zeros((2, candidates.shape[1]), np.uint8)
    partner, distance = topk(queries, candidates, metric="hamming", k=k, backend="flat")
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
    expected_partner, expected_distance = reference_distances.nearest(
        queries, candidates, reference_distances.levenshtein, 6
    )
    np.testing.assert_array_equal(partner, expected_partner)
    np.testing.assert_array_equal(distance, expected_distance)


def test_dice_of_empty_filters_is_zero_among_themselves_and_one_to_others() -> None:
    filters = np.array([[0], [255], [0]], np.uint8)
    partner, distance = topk(filters[:1], filters, metric="dice", k=3)
    assert partner.tolist() == [[0, 2, 1]]
    assert distance.tolist() == [[0.0, 0.0, 1.0]]


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


def test_records_that_share_a_hash_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.linkage.search.runner._row_hashes", lambda rows: np.zeros(len(rows), np.uint64))
    partner, _ = topk(np.eye(3), np.eye(3), metric="euclidean", k=1)
    assert partner.tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("length", [16_383, 16_384, 32_740, 32_767, 32_768])
def test_long_texts_keep_their_normalised_distance(length: int) -> None:
    partner, distance = topk(["b"], ["a" * length, "b" * length], metric="levenshtein-normalised", k=1)
    assert partner.tolist() == [[1]]
    assert distance[0, 0] == (length - 1) / length


def test_the_same_place_under_another_name_is_at_distance_zero() -> None:
    date_line, pole = np.array([[0.0, 180.0]]), np.array([[90.0, 10.0]])
    assert topk(date_line, np.array([[0.0, -180.0]]), metric="great-circle", k=1)[1].tolist() == [[0.0]]
    assert topk(pole, np.array([[90.0, -77.0]]), metric="great-circle", k=1)[1].tolist() == [[0.0]]
