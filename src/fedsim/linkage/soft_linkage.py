"""Soft linkage: the K nearest partners of every record, their similarities and diagnostics (paper, section 4.1)."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.metrics import Metric, SaturatingMetric, get_metric
from fedsim.linkage.nearest import AUTO, BackendOptions, prepare_tables, search_prepared
from fedsim.linkage.search.runner import SearchProgress, count_records, row_tiles, take_records
from fedsim.privacy.bounds import check_sigma
from fedsim.types import Floats, Integers, Links, Scale
from fedsim.validation import validate_integer, validate_k

RECORDS_PER_TILE = 4096
QUANTILES = (0.05, 0.25, 0.50, 0.75, 0.95)
TIE_WARNING_SHARE = 0.25
HUB_FACTOR = 20  # times the average use
SATURATION_WARNING_SHARE = 0.05


def fit_scale(distance: Floats) -> Scale:
    """Return mean and standard deviation of the negative distances; a deviation of zero counts as one.

    >>> fit_scale(np.array([[1.0, 3.0]]))
    Scale(mean=-2.0, deviation=1.0)
    """
    if distance.min() == distance.max():  # summing would leave a rounding error for a deviation
        return Scale(-float(distance.flat[0]), 1.0)
    return Scale(-float(distance.mean()), float(distance.std()))


def similarities(
    distance: Floats, scale: Scale, *, sigma: float = 0.0, noise: np.random.Generator | Floats | None = None
) -> Floats:
    """Scale negative distances (equation 1) and add Gaussian noise (equation 2).

    This is the only place that adds noise to similarities.

    Parameters
    ----------
    distance
        Distances of any shape.
    scale
        The scale of the training links, see :func:`fit_scale`.
    sigma
        Standard deviation of the noise.
    noise
        A generator to draw the noise from, or standard normal values of the shape of ``distance``: values bound to a
        record or a pair stay the same when they are asked for again, so the noise cannot be averaged away.

    Examples
    --------
    >>> similarities(np.array([1.0, 3.0]), Scale(-2.0, 1.0)).tolist()
    [1.0, -1.0]
    """
    _check_noise(sigma, noise)
    if not (np.isfinite(scale.mean) and np.isfinite(scale.deviation) and scale.deviation > 0):
        message = "the scale needs a finite mean and a positive deviation; use the scale of the training links"
        raise SettingError(message, code="bad-scale")
    similarity = (-distance - scale.mean) / scale.deviation
    if sigma == 0 or noise is None:
        return similarity
    standard = noise.standard_normal(distance.shape) if isinstance(noise, np.random.Generator) else noise
    return np.asarray(similarity + sigma * standard)


def _check_noise(sigma: float, noise: np.random.Generator | Floats | None) -> None:
    check_sigma(sigma)
    if sigma > 0 and noise is None:
        raise SettingError(f"sigma={sigma} adds noise, which needs a random generator; give a seed", code="no-seed")


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

    Equal settings give equal links on every backend.

    Parameters
    ----------
    primary_ids, secondary_ids
        Identifiers: NumPy arrays, lists, pandas, polars or Arrow tables, or encoded tables.
    metric
        The name of a metric (see :mod:`fedsim.registry`) or a metric object, such as :class:`WeightedSum`.
    k
        Partners per primary record.
    sigma
        Standard deviation of the noise on similarities; it needs a ``seed``.
    seed
        Random seed or generator of the noise.
    scale
        The scale of earlier links, for new records; fitted to the distances by default.
    backend, device, threads
        How to search: ``"auto"`` chooses the fastest. The result does not depend on them.
    progress
        Called with the number of records done and the total.
    primary_name, secondary_name
        Names of the tables in error messages.

    Returns
    -------
    Links
        Partners, distances and similarities, nearest first.

    Examples
    --------
    >>> links = link(["ibm corp", "apple"], ["apple inc", "i.b.m. corp", "intel"], metric="levenshtein", k=2)
    >>> links.partner.tolist()
    [[1, 2], [0, 2]]
    """
    chosen = get_metric(metric)
    if seed is None or isinstance(seed, np.random.Generator):
        rng = seed
    else:
        rng = np.random.default_rng(validate_integer(seed, "seed", least=0))
    _check_noise(sigma, rng)
    queries, candidates = prepare_tables(chosen, primary_ids, secondary_ids, (primary_name, secondary_name))
    n_candidates = count_records(candidates)
    k = validate_k(k, n_candidates, f"the {secondary_name} table")
    options = BackendOptions(backend, device, threads, progress)
    wanted = min(k + 1, n_candidates)  # one more shows whether the boundary is a tie
    partner, distance, plan = search_prepared(chosen, queries, candidates, k=wanted, options=options)
    next_distance = distance[:, k].copy() if wanted > k else np.full(len(distance), np.inf)
    partner, distance = np.ascontiguousarray(partner[:, :k]), np.ascontiguousarray(distance[:, :k])
    scale = scale or fit_scale(distance)
    saturated = None
    if isinstance(chosen, SaturatingMetric):
        disjoint = sum(
            int(chosen.disjoint(take_records(queries, tile), take_records(candidates, partner[tile, -1])).sum())
            for tile in row_tiles(len(partner), RECORDS_PER_TILE)
        )
        saturated = disjoint / len(partner)
    return Links(
        partner=partner,
        distance=distance,
        similarity=similarities(distance, scale, sigma=sigma, noise=rng),
        scale=scale,
        sigma=sigma,
        metric=chosen.name,
        n_candidates=n_candidates,
        next_distance=next_distance,
        saturated=saturated,
        plan=plan,
    )


@dataclass(frozen=True)
class Improvement:
    """Delta: an estimate, before any training, of what FedSim can gain over simpler linkages (paper, Definition 1).

    A baseline calls some candidates matches. It overrates every match by what it lacks in similarity and loses the
    similarity of every other candidate: ``sum over matches (1 - s) + sum over non-matches s``, averaged over the
    records, with similarities scaled to [0, 1]. Larger means more to gain.
    """

    top1sim: float
    exact: float
    avgsim: float


def improvement_from_links(links: Links) -> Improvement:
    """Return Delta with the K linked partners as the only candidates."""
    distance = links.distance
    spread = float(distance.max() - distance.min()) or 1.0
    near = 1 - (distance - distance.min()) / spread  # (n, K)
    total = near.sum(axis=1)
    return Improvement(
        top1sim=float(np.mean(1 - 2 * near[:, 0] + total)),
        exact=float(np.mean(total - (distance == 0).sum(axis=1))),  # equal identifiers have similarity 1
        avgsim=float(np.mean(links.k - total)),
    )


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Figures that show whether links are good enough to train on.

    ``similarity_by_rank`` and ``distance_by_rank`` have one row per rank and one column per quantile; ``hubness``
    counts how often each candidate is a partner; ``improvement`` is Delta over simpler linkages; ``warnings`` are
    sentences.
    """

    similarity_by_rank: Floats
    distance_by_rank: Floats
    kth_distance: Floats
    boundary_tie_share: float
    hubness: Integers
    unused_share: float
    improvement: dict[str, float]
    warnings: tuple[str, ...]


def diagnose(links: Links) -> Diagnostics:
    """Compute figures and warnings about links before training.

    Parameters
    ----------
    links
        The result of :func:`link`.

    Examples
    --------
    >>> diagnose(link([[0.0], [9.0]], [[1.0], [8.0]], metric="euclidean", k=1)).hubness.tolist()
    [1, 1]
    """
    kth = links.distance[:, -1]
    hubness = np.bincount(links.partner.ravel(), minlength=links.n_candidates)
    tie_share = float((kth == links.next_distance).mean())
    warnings: list[str] = []
    if tie_share > TIE_WARNING_SHARE:
        warnings.append(
            f"ties: for {100 * tie_share:.0f} % of the records a candidate as near as the last partner was left out, "
            "and the lower row number decided; a larger k or a finer metric avoids this"
        )
    if links.distance.min() == links.distance.max():
        warnings.append(
            "all distances are equal, so the similarities carry no information; check the identifier columns"
        )
    if links.saturated is not None and links.saturated > SATURATION_WARNING_SHARE:
        warnings.append(
            f"saturation: for {100 * links.saturated:.0f} % of the records the filter of the last partner has no bit "
            "in common with theirs, so the distance no longer grows; use a larger threshold, or several"
        )
    average = hubness.mean()
    if links.k < links.n_candidates and hubness.max() > max(HUB_FACTOR * average, HUB_FACTOR):
        warnings.append(
            f"hubs: one candidate is a partner of {hubness.max():,} records, {hubness.max() / average:.0f} times the "
            "average, which reduces what the partner can add"
        )
    return Diagnostics(
        similarity_by_rank=np.quantile(links.similarity, QUANTILES, axis=0).T,
        distance_by_rank=np.quantile(links.distance, QUANTILES, axis=0).T,
        kth_distance=kth,
        boundary_tie_share=tie_share,
        hubness=hubness,
        unused_share=float((hubness == 0).mean()),
        improvement=asdict(improvement_from_links(links)),
        warnings=tuple(warnings),
    )
