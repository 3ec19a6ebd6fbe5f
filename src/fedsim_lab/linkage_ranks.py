"""The rank of the true match: how far down the list of candidates a linkage places the record that it should find."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.linkage import distance_matrix, fit_scale, get_metric, similarities, topk
from fedsim.linkage.metrics import Metric
from fedsim.linkage.search.runner import split_rows, take_records
from fedsim.types import Floats, Integers

QUERIES_PER_TILE = 128  # whose distances to all candidates are held at once


@dataclass(frozen=True)
class RankSummary:
    """Share of queries whose true match is among the first 1, 5, ... candidates, and the mean rank of the match."""

    recall: dict[int, float]
    mean_rank: float


def summarise_ranks(ranks: Integers, depths: Sequence[int] = (1, 5, 10, 50)) -> RankSummary:
    """Return recall at several depths and the mean of ranks that start at 1.

    >>> summarise_ranks(np.array([1, 1, 3, 7]), (1, 5))
    RankSummary(recall={1: 0.5, 5: 0.75}, mean_rank=3.0)
    """
    return RankSummary({depth: float((ranks <= depth).mean()) for depth in depths}, float(ranks.mean()))


def ranks_in_lists(partner: Integers, truth: Integers) -> Integers:
    """Return the position of each query's match in its list, or 0 if the list does not contain it.

    >>> ranks_in_lists(np.array([[4, 2], [3, 1]]), np.array([2, 5])).tolist()
    [2, 0]
    """
    hits = partner == truth[:, np.newaxis]
    return np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, 0)


def ranks_in_rows(distance: Floats, truth: Integers) -> Integers:
    """Return the rank of each query's match among all candidates; at equal distance the lower row is first.

    >>> ranks_in_rows(np.array([[0.5, 0.1, 0.5]]), np.array([2])).tolist()
    [3]
    """
    own = np.take_along_axis(distance, truth[:, np.newaxis], axis=1)
    earlier = np.arange(distance.shape[1]) < truth[:, np.newaxis]
    return np.asarray(1 + (distance < own).sum(axis=1) + ((distance == own) & earlier).sum(axis=1))


def match_ranks(  # noqa: PLR0913
    queries: Any,
    candidates: Any,
    truth: Integers,
    metric: str | Metric,
    *,
    k: int,
    sigma: float,
    rng: np.random.Generator,
) -> tuple[Integers, Integers]:
    """Link two tables and rank each query's match, without noise and with noise on the similarities.

    Noise reorders the K nearest candidates; it cannot recover a match that is not among them.

    Parameters
    ----------
    queries, candidates, metric, k
        As in :func:`fedsim.linkage.topk`.
    truth
        The candidate row of every query's match, (n,).
    sigma, rng
        Standard deviation of the noise, relative to the spread of the similarities, and its random generator.

    Returns
    -------
    ranks, noisy_ranks
        Ranks from 1 to the number of candidates, (n,).
    """
    partner, distance = topk(queries, candidates, metric=metric, k=k)
    ranks = ranks_in_lists(partner, truth)
    missed = np.flatnonzero(ranks == 0)
    chosen = get_metric(metric)
    ours, theirs = chosen.prepare(queries, "primary"), chosen.prepare(candidates, "secondary")
    for rows in split_rows(missed, QUERIES_PER_TILE):  # all distances are needed for these alone
        ranks[rows] = ranks_in_rows(distance_matrix(chosen, take_records(ours, rows), theirs), truth[rows])
    shown = similarities(distance, fit_scale(distance), sigma=sigma, noise=rng)
    order = np.argsort(-shown, axis=1, kind="stable")
    noisy = ranks_in_lists(np.take_along_axis(partner, order, axis=1), truth)
    return ranks, np.where(noisy > 0, noisy, ranks)
