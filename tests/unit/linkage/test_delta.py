"""Delta follows Definition 1 of the paper, streamed."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim.linkage import Improvement, distance_matrix, get_metric, improvement, improvement_from_links


def by_definition(distance: np.ndarray, matches: np.ndarray) -> float:
    similarity = 1 - (distance - distance.min()) / (distance.max() - distance.min())
    return float(np.where(matches, 1 - similarity, similarity).sum(axis=1).mean())


def oracle(distance: np.ndarray, k: int) -> Improvement:
    rank = np.argsort(np.argsort(distance, axis=1, kind="stable"), axis=1)
    return Improvement(
        top1sim=by_definition(distance, rank == 0),
        exact=by_definition(distance, distance == 0),
        avgsim=by_definition(distance, rank < k),
    )


@pytest.mark.parametrize("metric", ["euclidean", "levenshtein-normalised", "hamming"])
def test_streamed_delta_equals_the_definition(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.linkage.search.runner.CANDIDATES_PER_CHUNK", 16)
    rng = np.random.default_rng(0)
    tables = {
        "euclidean": [rng.integers(0, 9, (n, 2)).astype(float) for n in (40, 60)],
        "levenshtein-normalised": [["".join(rng.choice(list("abc"), 4)) for _ in range(n)] for n in (40, 60)],
        "hamming": [rng.integers(0, 4, (n, 2), dtype=np.uint8) for n in (40, 60)],
    }[metric]
    prepared = [get_metric(metric).prepare(table, "a") for table in tables]
    found = improvement(*tables, metric=metric, k=5)
    expected = oracle(distance_matrix(get_metric(metric), *prepared), 5)
    np.testing.assert_allclose(
        [found.top1sim, found.exact, found.avgsim], [expected.top1sim, expected.exact, expected.avgsim], rtol=1e-10
    )


def test_delta_of_links_takes_the_k_partners_for_all_there_is() -> None:
    rng = np.random.default_rng(1)
    links = fedsim.link(rng.normal(size=(20, 2)), rng.normal(size=(9, 2)), metric="euclidean", k=9)
    expected = oracle(links.distance, 9)
    found = improvement_from_links(links)
    np.testing.assert_allclose([found.top1sim, found.avgsim], [expected.top1sim, expected.avgsim], rtol=1e-10)


def test_equal_distances_give_a_finite_delta() -> None:
    links = fedsim.link(np.zeros((3, 1)), np.ones((4, 1)), metric="euclidean", k=2)
    assert np.isfinite(improvement_from_links(links).top1sim)
