"""The figures and warnings that a user sees before training."""

from __future__ import annotations

import numpy as np

import fedsim
from fedsim.linkage.encoding import Key, NumericFilter, Schema, SchemaField
from fedsim.linkage.soft_linkage import Improvement, improvement_from_links


def test_quantiles_by_rank_are_ordered() -> None:
    rng = np.random.default_rng(0)
    found = fedsim.diagnose(fedsim.link(rng.normal(size=(80, 2)), rng.normal(size=(40, 2)), metric="euclidean", k=6))
    assert found.similarity_by_rank.shape == found.distance_by_rank.shape == (6, 5)
    assert (np.diff(found.distance_by_rank, axis=0) >= 0).all()
    assert (np.diff(found.similarity_by_rank, axis=1) >= 0).all()


def test_hubness_counts_every_link() -> None:
    rng = np.random.default_rng(1)
    links = fedsim.link(rng.normal(size=(80, 2)), rng.normal(size=(40, 2)), metric="euclidean", k=6)
    found = fedsim.diagnose(links)
    assert found.hubness.sum() == 480
    assert found.unused_share == np.mean([row not in links.partner for row in range(40)])


def test_ties_at_the_boundary_are_counted_and_named() -> None:
    candidates = np.array([[1.0], [-1.0], [7.0]])
    tied = fedsim.diagnose(fedsim.link(np.zeros((5, 1)), candidates, metric="euclidean", k=1))
    clear = fedsim.diagnose(fedsim.link(np.ones((5, 1)), candidates, metric="euclidean", k=1))
    assert (tied.boundary_tie_share, clear.boundary_tie_share) == (1.0, 0.0)
    assert any("ties" in warning for warning in tied.warnings)


def test_a_hub_is_named() -> None:
    candidates = np.vstack([[[0.0]], np.arange(100, 160)[:, None]])
    found = fedsim.diagnose(fedsim.link(np.linspace(-1, 1, 90)[:, None], candidates, metric="euclidean", k=1))
    assert any("hubs" in warning for warning in found.warnings)


def test_filters_that_went_flat_are_named() -> None:
    schema = Schema(fields=(SchemaField("x", NumericFilter(low=0, high=100, threshold=1)),))
    key = Key(bytes(range(32)))
    primary = schema.encode({"x": np.linspace(10, 90, 20)}, key)
    secondary = schema.encode({"x": np.array([0.0, 50.0, 100.0])}, key)
    links = fedsim.link(primary, secondary, metric="hamming", k=3)
    assert links.saturated == 1.0
    assert any("saturation" in warning for warning in fedsim.diagnose(links).warnings)


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


def test_delta_follows_definition_1_with_the_k_partners_as_candidates() -> None:
    rng = np.random.default_rng(1)
    links = fedsim.link(rng.integers(0, 9, (20, 2)), rng.integers(0, 9, (9, 2)), metric="euclidean", k=9)
    expected = oracle(links.distance, 9)
    found = improvement_from_links(links)
    ours, theirs = ([each.top1sim, each.exact, each.avgsim] for each in (found, expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_equal_distances_give_a_finite_delta() -> None:
    links = fedsim.link(np.zeros((3, 1)), np.ones((4, 1)), metric="euclidean", k=2)
    assert np.isfinite(improvement_from_links(links).top1sim)
