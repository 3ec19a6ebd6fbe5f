"""Delta: an estimate, before any training, of what FedSim could gain over simpler linkages (paper, Definition 1).

A baseline calls some candidates matches. It overrates every match by what it lacks in similarity and loses every other
candidate's similarity: ``sum over matches (1 - s) + sum over non-matches s``, averaged over the records. Similarities
are scaled to [0, 1] here, 1 for the smallest distance seen and 0 for the largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.linkage.choices import metric_named
from fedsim.linkage.metric import Metric
from fedsim.linkage.nearest import AUTO, SECONDARY, Options, prepare_sides, search_prepared
from fedsim.linkage.search.blocks import BlockSearch
from fedsim.linkage.search.distinct import Records, count
from fedsim.linkage.search.run import Progress, run
from fedsim.types import Floats, Integers, Links
from fedsim.whole import partners_wanted


@dataclass(frozen=True)
class Improvement:
    """Delta over three baselines; larger means more to gain."""

    top1sim: float
    exact: float
    avgsim: float


def improvement_of(links: Links) -> Improvement:
    """Delta with the K linked partners as all there is; costs nothing beyond the links."""
    totals = _Totals(
        sums=links.distance.sum(axis=1),
        equal=(links.distance == 0).sum(axis=1),
        smallest=float(links.distance.min()),
        largest=float(links.distance.max()),
        n_candidates=links.k,
    )
    return _delta(links.distance, totals)


def improvement(
    primary_ids: Any,
    secondary_ids: Any,
    *,
    metric: str | Metric,
    k: int,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Improvement:
    """Delta over all pairs, as defined; the pairs are streamed and never held together."""
    chosen = metric_named(metric)
    queries, candidates = prepare_sides(chosen, primary_ids, secondary_ids)
    k = partners_wanted(k, count(candidates), SECONDARY)
    _, nearest, _ = search_prepared(chosen, queries, candidates, k=k, options=Options(AUTO, AUTO, threads))
    return _delta(nearest, _totals(chosen, queries, candidates, threads, progress))


@dataclass(frozen=True, eq=False)
class _Totals:
    """What Delta needs of all distances of every record."""

    sums: Floats
    equal: Floats
    smallest: float
    largest: float
    n_candidates: int


FIGURES = 4  # of every record: sum, smallest, largest, and how many distances are zero


class _Summing:
    """A search that adds up instead of ranking: in place of distances it gives the figures of every record."""

    def __init__(self, blocks: BlockSearch) -> None:
        self.blocks = blocks

    def tiles(self) -> list[Integers]:
        return self.blocks.tiles()

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        figures = np.stack([_figures(chunk.block(tile)) for chunk in self.blocks.chunks])  # (chunks, T, FIGURES)
        sums, zeros = figures[:, :, 0].sum(axis=0), figures[:, :, 3].sum(axis=0)
        found = np.column_stack([sums, figures[:, :, 1].min(axis=0), figures[:, :, 2].max(axis=0), zeros])
        return np.zeros((len(tile), k), np.int64), found


def _figures(block: Floats) -> Floats:
    return np.column_stack([block.sum(axis=1), block.min(axis=1), block.max(axis=1), (block == 0).sum(axis=1)])


def _totals(
    metric: Metric, queries: Records, candidates: Records, threads: int | None, progress: Progress | None
) -> _Totals:
    summing = _Summing(BlockSearch(queries, candidates, metric.blocks))
    _, figures = run(summing, count(queries), FIGURES, threads, progress)
    return _Totals(
        sums=figures[:, 0],
        equal=figures[:, 3],
        smallest=float(figures[:, 1].min()),
        largest=float(figures[:, 2].max()),
        n_candidates=count(candidates),
    )


def _delta(nearest: Floats, totals: _Totals) -> Improvement:
    spread = totals.largest - totals.smallest
    if spread == 0:
        spread = 1.0
    everyone = totals.n_candidates - (totals.sums - totals.n_candidates * totals.smallest) / spread
    near = 1 - (nearest - totals.smallest) / spread  # (n, K)
    return Improvement(
        top1sim=float(np.mean(1 - 2 * near[:, 0] + everyone)),
        exact=float(np.mean(everyone - totals.equal)),  # equal identifiers have similarity 1
        avgsim=float(np.mean(near.shape[1] - 2 * near.sum(axis=1) + everyone)),
    )
