"""Soft linkage: the exact K nearest partners of every record, similarities and diagnostics (paper, section 4.1)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage.identifiers import check_compatible
from fedsim.linkage.metrics import Backend, Metric, SaturatingMetric, get_metric
from fedsim.registry import ENGINES, LazyModule
from fedsim.types import SATURATION_WARNING_SHARE, TIE_WARNING_SHARE, AnyArray, Floats, Integers, LinkageResult, Scale
from fedsim.validation import validate_integer, validate_k, validate_number

if TYPE_CHECKING:
    from fedsim.linkage.search import runner
    from fedsim.linkage.search.runner import Records, ReusableSearch, SearchProgress
else:
    runner = LazyModule("fedsim.linkage.search.runner")

AUTO = "auto"
RECORDS_PER_TILE = 4096
QUANTILES = (0.05, 0.25, 0.50, 0.75, 0.95)
HUB_FACTOR = 20  # times the average use


class Engine(Protocol):
    """Runs searches elsewhere, with the same results; a context manager that may start or connect to a cluster."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def check(self) -> None:
        """Raise an error if searches cannot run; do not start anything."""
        ...

    def search(
        self, metric: Metric, queries: Records, candidates: Records, k: int, options: BackendOptions
    ) -> tuple[Integers, Floats, str]:
        """Return the partners and distances of all queries, and the plan."""
        ...

    def describe(self) -> str:
        """Return a readable description of where searches run."""
        ...


def load_engine(setting: str) -> Engine | None:
    """Return the engine for a setting: a name, followed by a colon and an address if the engine has one.

    ``local``, this process, needs none.

    >>> load_engine("local") is None
    True
    """
    name, mark, address = setting.partition(":")
    engine = ENGINES[name]
    if mark and not (ENGINES.detail(name, "address") and address):
        message = f"engine '{setting}' has no valid address; use local, ray, ray:auto or ray:HOST:PORT"
        raise SettingError(message, code="bad-engine-address", value=setting)
    return None if engine is None else engine(*[address] * bool(mark))


@dataclass(frozen=True)
class BackendOptions:
    """How to search; the result does not depend on these options."""

    backend: str = AUTO
    threads: int | None = None
    progress: SearchProgress | None = None
    engine: Engine | None = None


@dataclass
class SearchMemory:
    """What one search leaves for the next one over the same candidates: its index and its plan."""

    index: ReusableSearch | None = None
    plan: str = ""


def topk(  # noqa: PLR0913
    queries: Any,
    candidates: Any,
    *,
    metric: str | Metric,
    k: int,
    backend: str = AUTO,
    threads: int | None = None,
    progress: SearchProgress | None = None,
    engine: Engine | None = None,
) -> tuple[Integers, AnyArray]:
    """Find the K nearest candidates of every query, exactly; ties go to the lower candidate row.

    Parameters
    ----------
    queries, candidates, metric, k, backend, threads, progress, engine
        As in :func:`fedsim.linkage.link`.

    Returns
    -------
    partner, distance
        Arrays of shape (queries, k), nearest first. Distances are int64 for metrics that count (Hamming, Levenshtein)
        and float64 otherwise.

    Examples
    --------
    >>> partner, distance = topk(["cat"], ["dog", "cart", "cat"], metric="levenshtein", k=2)
    >>> partner.tolist(), distance.tolist()
    ([[2, 1]], [[0, 1]])
    """
    chosen = get_metric(metric)
    sides = prepare_tables(chosen, queries, candidates)
    k = validate_k(k, runner.count_records(sides[1]), "the secondary table")
    options = BackendOptions(backend, threads, progress, engine)
    partner, distance, _ = search_prepared(chosen, *sides, k=k, options=options)
    return partner, distance.astype(np.int64) if chosen.whole else distance


def search_prepared(
    metric: Metric,
    queries: Records,
    candidates: Records,
    *,
    k: int,
    options: BackendOptions,
    memory: SearchMemory | None = None,
) -> tuple[Integers, Floats, str]:
    """Return partners, distances and the plan for prepared records; equal queries are searched once.

    ``memory`` is for several searches over the same candidates.
    """
    first, kind = runner.distinct_records(queries)
    repeated = len(first) < len(kind)
    distinct = runner.take_records(queries, first) if repeated else queries
    threads = None if options.threads is None else validate_integer(options.threads, "threads", least=1)
    if options.engine is not None:
        partner, distance, plan = options.engine.search(metric, distinct, candidates, k, options)
    else:
        memory = memory or SearchMemory()
        if memory.index is None:
            backend = _choose_backend(metric, distinct, candidates, k, options)
            search, memory.plan = backend.start(), f"{backend.name}: {backend.reason}"
            memory.index = search if isinstance(search, runner.ReusableSearch) else None
        else:
            search = memory.index.with_queries(distinct)
        n_queries, plan = runner.count_records(distinct), memory.plan
        partner, distance = runner.run_search(search, n_queries, k, threads, options.progress)
    if not np.isfinite(distance).all():
        raise InputError("distances overflow; use smaller numbers or weights", code="distance-overflow")
    if not repeated:
        return partner, distance, plan
    return partner[kind], distance[kind], f"{plan}; {len(first):,} distinct queries"


def prepare_tables(
    metric: Metric, primary_ids: Any, secondary_ids: Any, names: tuple[str, str] = ("primary", "secondary")
) -> tuple[Records, Records]:
    """Return both tables in the form that the search needs, after checking that they can be compared."""
    check_compatible(primary_ids, secondary_ids, names)
    queries, candidates = metric.prepare(primary_ids, names[0]), metric.prepare(secondary_ids, names[1])
    columns = ((queries, candidates),) if not isinstance(queries, tuple) else zip(queries, candidates, strict=True)
    for left, right in columns:
        if isinstance(left, np.ndarray) and left.shape[1:] != right.shape[1:]:
            widths = f"{left.shape[1]} in the {names[0]} table and {right.shape[1]} in the {names[1]} table"
            message = f"identifiers of width {widths}; both need the same columns, or filters of the same size"
            raise InputError(message, code="width-mismatch")
    return queries, candidates


def _choose_backend(metric: Metric, queries: Records, candidates: Records, k: int, options: BackendOptions) -> Backend:
    """Return the backend set in the options, or the metric's first one, which is the fastest."""
    offered = {backend.name: backend for backend in metric.backends(queries, candidates, k)}
    if options.backend == AUTO:
        return next(iter(offered.values()))
    if options.backend not in offered:
        valid = ", ".join([AUTO, *offered])
        message = f"backend '{options.backend}' cannot search by {metric.name}; choose {valid}"
        raise SettingError(message, code="unknown-backend")
    return offered[options.backend]


def fit_scale(distance: Floats) -> Scale:
    """Return the mean and standard deviation of the negative distances; a deviation of zero counts as one.

    Parameters
    ----------
    distance
        The distances, of any shape.

    Examples
    --------
    >>> fit_scale(np.array([[1.0, 3.0]]))
    Scale(mean=-2.0, deviation=1.0)
    """
    if distance.min() == distance.max():  # summing would leave a rounding error as the deviation
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
        The scale of the training links; see :func:`fit_scale`.
    sigma
        Standard deviation of the noise.
    noise
        A generator to draw the noise from, or standard normal values with the shape of ``distance``: values bound to a
        record or a pair stay the same when requested again, so the noise cannot be averaged away.

    Examples
    --------
    >>> similarities(np.array([1.0, 3.0]), Scale(-2.0, 1.0)).tolist()
    [1.0, -1.0]
    """
    check_noise(sigma, noise)
    if not (np.isfinite(scale.mean) and np.isfinite(scale.deviation) and scale.deviation > 0):
        message = "the scale needs a finite mean and a positive deviation; use the scale of the training links"
        raise SettingError(message, code="bad-scale")
    similarity = (-distance - scale.mean) / scale.deviation
    if sigma == 0 or noise is None:
        return similarity
    standard = noise.standard_normal(distance.shape) if isinstance(noise, np.random.Generator) else noise
    return np.asarray(similarity + sigma * standard)


def check_noise(sigma: float, noise: np.random.Generator | Floats | None) -> None:
    """Check the standard deviation of the noise, and that there is a source to draw the noise from."""
    validate_number(sigma, "sigma", least=0)
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
    threads: int | None = None,
    progress: SearchProgress | None = None,
    engine: Engine | None = None,
    primary_name: str = "primary",
    secondary_name: str = "secondary",
) -> LinkageResult:
    """Link every primary record to its K most similar secondary records.

    Equal settings produce equal links on every backend.

    Parameters
    ----------
    primary_ids, secondary_ids
        Identifiers: NumPy arrays, lists, pandas, polars or Arrow tables, or encoded tables.
    metric
        The name of a metric (see :mod:`fedsim.registry`) or a metric object, such as :class:`WeightedSum`.
    k
        Partners per primary record.
    sigma
        Standard deviation of the noise on similarities; requires a ``seed``.
    seed
        Random seed or generator for the noise.
    scale
        The scale of earlier links, for new records; fitted to the distances by default.
    backend, threads
        How to search: ``"auto"`` chooses the fastest. The result does not depend on them.
    progress
        A function that is called with the number of records done and the total.
    engine
        Where to search: an :class:`Engine` whose context is active; by default, this process.
        The result does not depend on it.
    primary_name, secondary_name
        Names of the tables in error messages.

    Returns
    -------
    LinkageResult
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
    check_noise(sigma, rng)
    queries, candidates = prepare_tables(chosen, primary_ids, secondary_ids, (primary_name, secondary_name))
    n_candidates = runner.count_records(candidates)
    k = validate_k(k, n_candidates, f"the {secondary_name} table")
    options = BackendOptions(backend, threads, progress, engine)
    wanted = min(k + 1, n_candidates)  # one more shows whether the boundary is a tie
    partner, distance, plan = search_prepared(chosen, queries, candidates, k=wanted, options=options)
    next_distance = distance[:, k].copy() if wanted > k else np.full(len(distance), np.inf)
    partner, distance = np.ascontiguousarray(partner[:, :k]), np.ascontiguousarray(distance[:, :k])
    scale = scale or fit_scale(distance)
    saturated = None
    if isinstance(chosen, SaturatingMetric):
        disjoint = 0
        for tile in runner.row_tiles(len(partner), RECORDS_PER_TILE):
            last = runner.take_records(candidates, partner[tile, -1])
            disjoint += int(chosen.disjoint(runner.take_records(queries, tile), last).sum())
        saturated = disjoint / len(partner)
    return LinkageResult(
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

    A baseline treats some candidates as matches. It overrates every match by what that match lacks in similarity, and
    loses the similarity of every other candidate: ``sum over matches (1 - s) + sum over non-matches s``, averaged over
    the records. Larger means more to gain. The paper leaves open how similarities are scaled to [0, 1]; over the K
    partners of each record, Delta comes out as in the paper (docs/results-paper.md), over all pairs it does not.
    """

    top1sim: float
    exact: float
    avgsim: float


def improvement_from_links(links: LinkageResult) -> Improvement:
    """Return Delta with the K linked partners as the only candidates."""
    distance, nearest = links.distance, links.distance.min(axis=1, keepdims=True)
    spread = distance.max(axis=1, keepdims=True) - nearest
    near = 1 - (distance - nearest) / np.where(spread > 0, spread, 1)  # (n, K)
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
    counts how often each candidate is a partner; ``improvement`` is Delta over simpler linkages; ``warnings`` holds
    messages for the user.
    """

    similarity_by_rank: Floats
    distance_by_rank: Floats
    kth_distance: Floats
    boundary_tie_share: float
    hubness: Integers
    unused_share: float
    improvement: dict[str, float]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        nearest, last = (f"{self.distance_by_rank[rank, len(QUANTILES) // 2]:.4g}" for rank in (0, -1))
        figures = f"median distance {nearest} (nearest) to {last} (last), {100 * self.unused_share:.0f} % unused"
        return f"Diagnostics({figures}{''.join(f'; {warning}' for warning in self.warnings)})"


def link_warnings(
    tie_share: float, hubness: Integers, k: int, *, flat: bool, saturated: float | None
) -> tuple[str, ...]:
    """Return warnings about links that may be useless: ties, equal distances (``flat``), saturation, hubs."""
    warnings: list[str] = []
    if tie_share > TIE_WARNING_SHARE:
        warnings.append(
            f"ties: for {100 * tie_share:.0f} % of the records a candidate as near as the last partner was left out, "
            "and the lower row number decided; a larger k or a finer metric avoids this"
        )
    if flat:
        warnings.append(
            "all distances are equal, so the similarities carry no information; check the identifier columns"
        )
    if saturated is not None and saturated > SATURATION_WARNING_SHARE:
        warnings.append(
            f"saturation: for {100 * saturated:.0f} % of the records the filter of the last partner has no bit "
            "in common with theirs, so the distance no longer grows; use a larger threshold, or several"
        )
    average = hubness.mean()
    if k < len(hubness) and hubness.max() > max(HUB_FACTOR * average, HUB_FACTOR):
        warnings.append(
            f"hubs: one candidate is a partner of {hubness.max():,} records, {hubness.max() / average:.0f} times the "
            "average, which reduces what the partner can add"
        )
    return tuple(warnings)


def diagnose(links: LinkageResult) -> Diagnostics:
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
    flat = bool(links.distance.min() == links.distance.max())
    return Diagnostics(
        similarity_by_rank=np.quantile(links.similarity, QUANTILES, axis=0).T,
        distance_by_rank=np.quantile(links.distance, QUANTILES, axis=0).T,
        kth_distance=kth,
        boundary_tie_share=tie_share,
        hubness=hubness,
        unused_share=float((hubness == 0).mean()),
        improvement=asdict(improvement_from_links(links)),
        warnings=link_warnings(tie_share, hubness, links.k, flat=flat, saturated=links.saturated),
    )
