"""The figures and warnings that a user sees before training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import fedsim
from fedsim.linkage.encoding import Key, NumericFilter, Schema, SchemaField
from fedsim.linkage.soft_linkage import improvement_from_links


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


def test_delta_follows_definition_1_with_similarities_scaled_over_the_partners_of_each_record() -> None:
    # By hand: the sum over the matches of 1 - s plus the sum over the other partners of s, where s is 1 for the nearest
    # partner of a record and 0 for its furthest, whatever the distances of other records are.
    #   distances    s             Top1Sim: the nearest   Exact: distance 0    AvgSim: all three
    #    0  1  2     1  1/2  0     0 + 1/2 + 0 = 0.5      0 + 1/2 + 0 = 0.5    0 + 1/2 + 1 = 1.5
    #    4  5 14     1 9/10  0     0 + 9/10 + 0 = 0.9     1 + 9/10 + 0 = 1.9   0 + 1/10 + 1 = 1.1
    #   10 18 50     1  4/5  0     0 + 4/5 + 0 = 0.8      1 + 4/5 + 0 = 1.8    0 + 1/5 + 1 = 1.2
    links = fedsim.link(np.zeros((3, 1)), np.ones((3, 1)), metric="euclidean", k=3)
    found = improvement_from_links(replace(links, distance=np.array([[0.0, 1, 2], [4, 5, 14], [10, 18, 50]])))
    np.testing.assert_allclose([found.top1sim, found.exact, found.avgsim], [2.2 / 3, 4.2 / 3, 3.8 / 3])


def test_partners_that_are_equally_near_are_all_as_similar_as_the_match() -> None:
    links = fedsim.link(np.zeros((3, 1)), np.ones((4, 1)), metric="euclidean", k=2)
    assert improvement_from_links(links).top1sim == 1.0  # 1 - 1 for the match, 1 for the other
