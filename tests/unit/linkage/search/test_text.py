"""Edit distances of any texts follow the definition, ties included."""

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


@pytest.mark.parametrize("length", [16_383, 16_384, 32_740, 32_767, 32_768])
def test_long_texts_keep_their_normalised_distance(length: int) -> None:
    partner, distance = topk(["b"], ["a" * length, "b" * length], metric="levenshtein-normalised", k=1)
    assert partner.tolist() == [[1]]
    assert distance[0, 0] == (length - 1) / length
