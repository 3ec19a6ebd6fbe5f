"""Every metric, by every search it offers, gives what a slow obvious oracle gives, ties included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest

import reference_distances
from fedsim.errors import SettingError
from fedsim.linkage import WeightedField, WeightedSum, get_metric, link, topk
from fedsim.linkage.metrics import Backend, FormulaBlocks, Metric, blocks_backend
from fedsim.linkage.private_linkage import LinkageConfig, link_encoded_tables
from fedsim.registry import METRICS
from fedsim.types import EncodedTable


@dataclass(frozen=True)
class Case:
    """A metric, its oracle, and how to draw records; few distinct values, so that ties abound."""

    metric: Metric
    oracle: Callable[..., Any]
    draw: Callable[[np.random.Generator, int], Any]
    weighted: bool = False  # the oracle needs all candidates, whose frequencies decide the weights

    def __str__(self) -> str:
        return self.metric.name


def grid(rng: np.random.Generator, n: int) -> Any:
    return rng.integers(-3, 4, (n, 2)).astype(float)


def continuous(rng: np.random.Generator, n: int) -> Any:
    return rng.normal(size=(n, 3)) + np.array([116.4, 39.9, 0])


def wide(rng: np.random.Generator, n: int) -> Any:
    return rng.integers(0, 3, (n, 20)).astype(float)


def on_earth(rng: np.random.Generator, n: int) -> Any:
    places = np.column_stack([rng.uniform(-90, 90, n), rng.uniform(-180, 180, n)])
    places[: n // 4] = rng.choice([[90.0, 0.0], [90.0, 77.0], [0.0, 180.0], [0.0, -180.0]], n // 4)
    return places


def titles(rng: np.random.Generator, n: int) -> list[str]:
    lengths = rng.choice([0, 1, 3, 15, 16, 17, 32, 33, 64, 65, 130], n)
    return ["".join(rng.choice(list("ab é漢🎲"), length)) for length in lengths]


def names(rng: np.random.Generator, n: int) -> list[str]:
    words = ["Ltd", "ltd.", "Belgor", "Belgr", "Marine", "marina", "X", "É", "2", "&", "株式会社トヨタ"]
    return [" ".join(rng.choice(words, size)) for size in rng.integers(0, 5, n)]


def packed(rng: np.random.Generator, n: int) -> Any:
    bits = rng.integers(0, 2, (n, 90)) * rng.integers(0, 2, (n, 1))
    return np.packbits(bits, axis=1)


def runs(rng: np.random.Generator, n: int) -> Any:
    return np.sort(rng.integers(0, 12, (n, 2, 2)), axis=2).reshape(n, 4)


def people(rng: np.random.Generator, n: int) -> Any:
    born = np.datetime64("1980-01-01") + rng.integers(0, 5, n)
    return pl.DataFrame({"name": rng.choice(["ann", "anna", "hanna", "bob"], n), "born": born.astype(str)})


def person_distance(left: Any, right: Any) -> float:
    days = abs((np.datetime64(left[1]) - np.datetime64(right[1])).astype(int))
    return 2.0 * reference_distances.normalised_levenshtein(left[0], right[0]) + 0.25 * float(days)


PERSON = WeightedSum(
    (WeightedField("name", get_metric("levenshtein-normalised"), 2.0), WeightedField("born", get_metric("days"), 0.25))
)

CASES = [
    Case(get_metric("euclidean"), reference_distances.euclidean, grid),
    Case(get_metric("euclidean"), reference_distances.euclidean, continuous),
    Case(get_metric("euclidean"), reference_distances.euclidean, wide),
    Case(get_metric("great-circle"), reference_distances.great_circle, on_earth),
    Case(get_metric("levenshtein"), reference_distances.levenshtein, titles),
    Case(get_metric("levenshtein-normalised"), reference_distances.normalised_levenshtein, titles),
    Case(get_metric("qgram-dice"), reference_distances.qgram_dice, titles, weighted=True),
    Case(get_metric("qgram-dice"), reference_distances.qgram_dice, names, weighted=True),
    Case(get_metric("hamming"), reference_distances.hamming, packed),
    Case(get_metric("dice"), reference_distances.dice, packed),
    Case(get_metric("rank-hamming"), reference_distances.rank_hamming, runs),
    Case(PERSON, person_distance, people),
]


def backends_of(case: Case) -> list[str]:
    rng = np.random.default_rng(0)
    two = case.metric.prepare(case.draw(rng, 3), "primary"), case.metric.prepare(case.draw(rng, 3), "secondary")
    return [backend.name for backend in case.metric.backends(*two, 1)]


PAIRS = [
    pytest.param(case, name, id=f"{case}-{case.draw.__name__}-{name}") for case in CASES for name in backends_of(case)
]


@pytest.mark.parametrize(("case", "backend"), PAIRS)
@pytest.mark.parametrize(("n_queries", "n_candidates", "k"), [(40, 60, 7), (3, 25, 25), (70, 1, 1)])
def test_search_equals_the_oracle(
    monkeypatch: pytest.MonkeyPatch, case: Case, backend: str, n_queries: int, n_candidates: int, k: int
) -> None:
    rng = np.random.default_rng(n_queries)
    queries, candidates = case.draw(rng, n_queries), case.draw(rng, n_candidates)
    partner, distance = topk(queries, candidates, metric=case.metric, k=k, backend=backend)
    rows = (queries.rows(), candidates.rows()) if hasattr(queries, "rows") else (queries, candidates)
    oracle = case.oracle(candidates) if case.weighted else case.oracle
    expected_partner, expected_distance = reference_distances.nearest(*rows, oracle, k)
    if case.metric.name == "great-circle":  # libraries round sine and cosine differently in the last bit
        np.testing.assert_allclose(distance, expected_distance, rtol=1e-9, atol=1e-6)
        return
    np.testing.assert_array_equal(distance, expected_distance)
    np.testing.assert_array_equal(partner, expected_partner)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plan_says_what_it_chose_and_why(case: Case) -> None:
    rng = np.random.default_rng(1)
    backend, _, reason = link(case.draw(rng, 5), case.draw(rng, 9), metric=case.metric, k=2).plan.partition(": ")
    assert backend in backends_of(case)
    assert len(reason) > 10


@pytest.mark.parametrize("case", CASES, ids=str)
def test_threads_change_nothing(case: Case) -> None:
    rng = np.random.default_rng(2)
    queries, candidates = case.draw(rng, 300), case.draw(rng, 80)
    one = topk(queries, candidates, metric=case.metric, k=5, threads=1)
    four = topk(queries, candidates, metric=case.metric, k=5, threads=4)
    np.testing.assert_array_equal(one[0], four[0])
    np.testing.assert_array_equal(one[1], four[1])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_queries_keep_their_own_order(case: Case) -> None:
    rng = np.random.default_rng(3)
    queries, candidates = case.draw(rng, 50), case.draw(rng, 40)
    forward = topk(queries, candidates, metric=case.metric, k=4)[0]
    np.testing.assert_array_equal(topk(queries[::-1], candidates, metric=case.metric, k=4)[0], forward[::-1])


@dataclass(frozen=True)
class Jaccard:
    """A metric of another package: one minus the share of common ones."""

    name: str = "jaccard"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Any:
        return get_metric("hamming").prepare(records, table)

    def blocks(self, left: Any, right: Any) -> FormulaBlocks:
        return FormulaBlocks(self.distances, left, right)

    def distances(self, left: Any, right: Any) -> Any:
        common, either = (
            np.bitwise_count(join(left[:, None], right[None])).sum(axis=2) for join in (np.bitwise_and, np.bitwise_or)
        )
        return 1.0 - common / np.maximum(either, 1)

    def backends(self, queries: Any, candidates: Any, k: int) -> list[Backend]:
        return [blocks_backend(self, queries, candidates)]


def test_a_metric_registered_from_outside_links_tables_and_serves_jobs() -> None:
    rng = np.random.default_rng(0)
    left, right = (EncodedTable(packed(rng, n), 8 * packed(rng, 1).shape[1], "ab" * 32) for n in (12, 20))
    with METRICS.temporarily("jaccard", Jaccard(), summary="Share of ones that two filters do not have in common."):
        assert link(left, right, metric="jaccard", k=3).metric == "jaccard"
        config = LinkageConfig("jaccard", 3, sigma=0.5)
        _, links = link_encoded_tables(left, right, np.ones(12, bool), config, bytes(32), "rents")
        assert links.partner.shape == (12, 3)
    with pytest.raises(SettingError) as caught:
        link(left, right, metric="jaccard", k=3)
    assert caught.value.code == "unknown-metric"
