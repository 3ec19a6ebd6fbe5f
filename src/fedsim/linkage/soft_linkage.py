"""Soft linkage: the K nearest partners, their similarities, diagnostics and the expected improvement (paper, section 4.1, Definition 1)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.metrics import Metric, SaturatingMetric, get_metric
from fedsim.linkage.nearest import AUTO, SECONDARY_TABLE, BackendOptions, prepare_tables, search_prepared
from fedsim.linkage.search.runner import (
    BlockSearch,
    Records,
    SearchProgress,
    count_records,
    row_tiles,
    run_search,
    take_records,
)
from fedsim.privacy.bounds import check_sigma
from fedsim.types import Floats, Integers, Links, Scale
from fedsim.validation import validate_integer, validate_k

# Soft linkage: the K nearest partners and how similar they are (paper, section 4.1, equations 1 and 2)


RECORDS_PER_TILE = 4096


def fit_scale(distance: Floats) -> Scale:
    """Mean and standard deviation of the negative distances; a deviation of zero counts as one.

    >>> fit_scale(np.array([[1.0, 3.0]]))
    Scale(mean=-2.0, deviation=1.0)
    """
    if distance.min() == distance.max():  # summing would leave a rounding error for a deviation
        return Scale(-float(distance.flat[0]), 1.0)
    return Scale(-float(distance.mean()), float(distance.std()))


def similarities(
    distance: Floats, scale: Scale, *, sigma: float = 0.0, rng: np.random.Generator | None = None
) -> Floats:
    """Scaled negative distances (equation 1) with Gaussian noise of scale ``sigma`` (equation 2)."""
    check_noise(sigma, rng)
    if not (np.isfinite(scale.mean) and np.isfinite(scale.deviation) and scale.deviation > 0):
        raise SettingError("the scale has no finite mean and positive deviation; take the one of the training links")
    similarity = (-distance - scale.mean) / scale.deviation
    return similarity if rng is None or sigma == 0 else similarity + rng.normal(0.0, sigma, size=distance.shape)


def link(  # noqa: PLR0913
    primary_ids: Any,
    secondary_ids: Any,
    *,
    metric: str | Metric,
    k: int,
    sigma: float = 0.0,
    seed: int | np.random.Generator | None = None,
    scale: Scale | None = None,
    backend: str = AUTO,
    device: str = AUTO,
    threads: int | None = None,
    progress: SearchProgress | None = None,
    primary_name: str = "primary",
    secondary_name: str = "secondary",
) -> Links:
    """Link every primary record to its K most similar secondary records.

    Identifiers may be NumPy arrays, lists, pandas, polars or Arrow tables, or encoded tables. Equal settings give equal
    links on every backend.

    >>> found = link(["ibm corp", "apple"], ["apple inc", "i.b.m. corp", "intel"], metric="levenshtein", k=2)
    >>> found.partner.tolist()
    [[1, 2], [0, 2]]
    """
    chosen = get_metric(metric)
    rng = to_generator(seed)
    check_noise(sigma, rng)
    queries, candidates = prepare_tables(chosen, primary_ids, secondary_ids, (primary_name, secondary_name))
    n_candidates = count_records(candidates)
    k = validate_k(k, n_candidates, f"the {secondary_name} table")
    options = BackendOptions(backend, device, threads, progress)
    one_more = min(k + 1, n_candidates)  # tells whether the boundary is a tie
    partner, distance, plan = search_prepared(chosen, queries, candidates, k=one_more, options=options)
    next_distance = distance[:, k].copy() if one_more > k else np.full(len(distance), np.inf)
    partner, distance = np.ascontiguousarray(partner[:, :k]), np.ascontiguousarray(distance[:, :k])
    fitted = scale or fit_scale(distance)
    return Links(
        partner=partner,
        distance=distance,
        similarity=similarities(distance, fitted, sigma=sigma, rng=rng),
        scale=fitted,
        sigma=sigma,
        metric=chosen.name,
        n_candidates=n_candidates,
        next_distance=next_distance,
        saturated=_saturated_share(chosen, queries, candidates, partner[:, -1]),
        plan=str(plan),
    )


def to_generator(seed: int | np.random.Generator | None) -> np.random.Generator | None:
    """A source of chance from a seed; none without one."""
    if seed is None or isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(validate_integer(seed, "seed", least=0))


def check_noise(sigma: float, rng: np.random.Generator | None) -> None:
    """Noise needs a scale of at least zero and a source of chance."""
    check_sigma(sigma)
    if sigma > 0 and rng is None:
        raise SettingError(f"sigma={sigma} asks for noise, but no random generator was given; give a seed")


def _saturated_share(metric: Metric, queries: Records, candidates: Records, kth: Integers) -> float | None:
    """Share of records whose last partner has nothing in common with them, counted tile by tile."""
    if not isinstance(metric, SaturatingMetric):
        return None
    tiles = row_tiles(len(kth), RECORDS_PER_TILE)
    flat = sum(
        int(metric.disjoint(take_records(queries, tile), take_records(candidates, kth[tile])).sum()) for tile in tiles
    )
    return flat / len(kth)


# Delta: an estimate, before any training, of what FedSim could gain over simpler linkages (paper, Definition 1)
#
# A baseline calls some candidates matches. It overrates every match by what it lacks in similarity and loses every
# other candidate's similarity: ``sum over matches (1 - s) + sum over non-matches s``, averaged over the records.
# Similarities are scaled to [0, 1] here, 1 for the smallest distance seen and 0 for the largest.


@dataclass(frozen=True)
class Improvement:
    """Delta over three baselines; larger means more to gain."""

    top1sim: float
    exact: float
    avgsim: float


def improvement_from_links(links: Links) -> Improvement:
    """Delta with the K linked partners as all there is; costs nothing beyond the links."""
    totals = _DistanceTotals(
        sums=links.distance.sum(axis=1),
        equal=(links.distance == 0).sum(axis=1),
        smallest=float(links.distance.min()),
        largest=float(links.distance.max()),
        n_candidates=links.k,
    )
    return _improvement(links.distance, totals)


def improvement(
    primary_ids: Any,
    secondary_ids: Any,
    *,
    metric: str | Metric,
    k: int,
    threads: int | None = None,
    progress: SearchProgress | None = None,
) -> Improvement:
    """Delta over all pairs, as defined; the pairs are streamed and never held together."""
    chosen = get_metric(metric)
    queries, candidates = prepare_tables(chosen, primary_ids, secondary_ids)
    k = validate_k(k, count_records(candidates), SECONDARY_TABLE)
    _, nearest, _ = search_prepared(chosen, queries, candidates, k=k, options=BackendOptions(AUTO, AUTO, threads))
    return _improvement(nearest, _distance_totals(chosen, queries, candidates, threads, progress))


@dataclass(frozen=True, eq=False)
class _DistanceTotals:
    """What Delta needs of all distances of every record."""

    sums: Floats
    equal: Floats
    smallest: float
    largest: float
    n_candidates: int


N_FIGURES = 4  # of every record: sum, smallest, largest, and how many distances are zero


class _SumSearch:
    """A search that adds up instead of ranking: in place of distances it gives the figures of every record."""

    def __init__(self, blocks: BlockSearch) -> None:
        self.blocks = blocks

    def tiles(self) -> list[Integers]:
        return self.blocks.tiles()

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        figures = np.stack([_block_figures(chunk.block(tile)) for chunk in self.blocks.chunks])  # (chunks, T, FIGURES)
        sums, zeros = figures[:, :, 0].sum(axis=0), figures[:, :, 3].sum(axis=0)
        found = np.column_stack([sums, figures[:, :, 1].min(axis=0), figures[:, :, 2].max(axis=0), zeros])
        return np.zeros((len(tile), k), np.int64), found


def _block_figures(block: Floats) -> Floats:
    return np.column_stack([block.sum(axis=1), block.min(axis=1), block.max(axis=1), (block == 0).sum(axis=1)])


def _distance_totals(
    metric: Metric, queries: Records, candidates: Records, threads: int | None, progress: SearchProgress | None
) -> _DistanceTotals:
    summing = _SumSearch(BlockSearch(queries, candidates, metric.blocks))
    _, figures = run_search(summing, count_records(queries), N_FIGURES, threads, progress)
    return _DistanceTotals(
        sums=figures[:, 0],
        equal=figures[:, 3],
        smallest=float(figures[:, 1].min()),
        largest=float(figures[:, 2].max()),
        n_candidates=count_records(candidates),
    )


def _improvement(nearest: Floats, totals: _DistanceTotals) -> Improvement:
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


# What to look at before training: are the links any good?


QUANTILES = (0.05, 0.25, 0.50, 0.75, 0.95)
TIE_WARNING_SHARE = 0.25
HUB_FACTOR = 20  # times the average use
SATURATION_WARNING_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Similarity and distance by rank (one row per rank, a column per quantile), ties, reuse and warnings in words."""

    similarity_by_rank: Floats
    distance_by_rank: Floats
    kth_distance: Floats
    boundary_tie_share: float
    hubness: Integers
    unused_share: float
    improvement: dict[str, float]
    warnings: tuple[str, ...]


def diagnose(links: Links) -> Diagnostics:
    """Figures and warnings of a linkage; ``hubness`` counts how often each candidate is a partner."""
    kth = links.distance[:, -1]
    hubness = np.bincount(links.partner.ravel(), minlength=links.n_candidates)
    tie_share = float((kth == links.next_distance).mean())
    return Diagnostics(
        similarity_by_rank=np.quantile(links.similarity, QUANTILES, axis=0).T,
        distance_by_rank=np.quantile(links.distance, QUANTILES, axis=0).T,
        kth_distance=kth,
        boundary_tie_share=tie_share,
        hubness=hubness,
        unused_share=float((hubness == 0).mean()),
        improvement=asdict(improvement_from_links(links)),
        warnings=tuple(_warnings(links, hubness, tie_share)),
    )


def _warnings(links: Links, hubness: Integers, tie_share: float) -> list[str]:
    found = []
    if tie_share > TIE_WARNING_SHARE:
        found.append(
            f"for {100 * tie_share:.0f} % of the records a candidate just as near as the last partner was left out; "
            "the lower row number decided - a larger k or a finer metric would not need that rule"
        )
    if links.distance.min() == links.distance.max():
        found.append("all distances are equal, so the similarities say nothing; check the identifier columns")
    if links.saturated is not None and links.saturated > SATURATION_WARNING_SHARE:
        found.append(
            f"for {100 * links.saturated:.0f} % of the records the last partner's filter has nothing in common with "
            "theirs: the distance has gone flat - a wider threshold, or several, would tell far candidates apart again"
        )
    average = hubness.mean()
    if links.k < links.n_candidates and hubness.max() > max(HUB_FACTOR * average, HUB_FACTOR):
        found.append(
            f"one candidate is a partner of {hubness.max():,} records, {hubness.max() / average:.0f} times the "
            "average; such hubs blur what the partner can add"
        )
    return found
