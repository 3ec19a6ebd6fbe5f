"""Soft linkage: the K nearest partners and how similar they are (paper, section 4.1, equations 1 and 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.choices import metric_named
from fedsim.linkage.metric import Metric, Saturating
from fedsim.linkage.nearest import AUTO, Options, prepare_sides, search_prepared
from fedsim.linkage.search.distinct import Records, count, part
from fedsim.linkage.search.run import Progress
from fedsim.linkage.search.tiles import tiles_of
from fedsim.privacy.bounds import check_sigma
from fedsim.types import Floats, Integers, Links, Scale
from fedsim.whole import partners_wanted, whole_number

RECORDS_AT_ONCE = 4096


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
    progress: Progress | None = None,
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
    chosen = metric_named(metric)
    rng = generator_from(seed)
    check_noise(sigma, rng)
    queries, candidates = prepare_sides(chosen, primary_ids, secondary_ids, (primary_name, secondary_name))
    n_candidates = count(candidates)
    k = partners_wanted(k, n_candidates, f"the {secondary_name} table")
    options = Options(backend, device, threads, progress)
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


def generator_from(seed: int | np.random.Generator | None) -> np.random.Generator | None:
    """A source of chance from a seed; none without one."""
    if seed is None or isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(whole_number(seed, "seed", least=0))


def check_noise(sigma: float, rng: np.random.Generator | None) -> None:
    """Noise needs a scale of at least zero and a source of chance."""
    check_sigma(sigma)
    if sigma > 0 and rng is None:
        raise SettingError(f"sigma={sigma} asks for noise, but no random generator was given; give a seed")


def _saturated_share(metric: Metric, queries: Records, candidates: Records, kth: Integers) -> float | None:
    """Share of records whose last partner has nothing in common with them, counted tile by tile."""
    if not isinstance(metric, Saturating):
        return None
    tiles = tiles_of(len(kth), RECORDS_AT_ONCE)
    flat = sum(int(metric.disjoint(part(queries, tile), part(candidates, kth[tile])).sum()) for tile in tiles)
    return flat / len(kth)
