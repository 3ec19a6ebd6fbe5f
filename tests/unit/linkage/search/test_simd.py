"""The K best of every lane, whatever the order of the candidates."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.linkage import topk


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
