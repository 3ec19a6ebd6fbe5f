"""The exact K nearest candidates of every query: choose a backend, search, order."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import DeviceError, InputError, SettingError
from fedsim.linkage.identifiers import check_compatible
from fedsim.linkage.metrics import GPU, Backend, Metric, get_metric
from fedsim.linkage.search import runner
from fedsim.linkage.search.runner import Records, SearchProgress, count_records
from fedsim.types import Floats, Integers
from fedsim.validation import validate_integer, validate_k

AUTO = "auto"
MIN_PAIRS_FOR_GPU = 10**10  # with fewer pairs, starting the device costs more than the search


@dataclass(frozen=True)
class BackendOptions:
    """How to search; the result does not depend on it."""

    backend: str = AUTO
    device: str = AUTO
    threads: int | None = None
    progress: SearchProgress | None = None


def topk(  # noqa: PLR0913
    queries: Any,
    candidates: Any,
    *,
    metric: str | Metric,
    k: int,
    backend: str = AUTO,
    device: str = AUTO,
    threads: int | None = None,
    progress: SearchProgress | None = None,
) -> tuple[Integers, NDArray[Any]]:
    """Find the K nearest candidates of every query, exactly; ties go to the lower candidate row.

    Parameters
    ----------
    queries, candidates, metric, k, backend, device, threads, progress
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
    k = validate_k(k, count_records(sides[1]), "the secondary table")
    options = BackendOptions(backend, device, threads, progress)
    partner, distance, _ = search_prepared(chosen, *sides, k=k, options=options)
    return partner, distance.astype(np.int64) if chosen.whole else distance


def search_prepared(
    metric: Metric, queries: Records, candidates: Records, *, k: int, options: BackendOptions
) -> tuple[Integers, Floats, str]:
    """Return partners, distances and the plan for records that the metric has prepared; search equal queries once."""
    first, kind = runner.distinct_records(queries)
    repeated = len(first) < len(kind)
    distinct = runner.take_records(queries, first) if repeated else queries
    backend = _choose_backend(metric, distinct, candidates, k, options)
    threads = None if options.threads is None else validate_integer(options.threads, "threads", least=1)
    partner, distance = runner.run_search(backend.start(), count_records(distinct), k, threads, options.progress)
    if not np.isfinite(distance).all():
        raise InputError("distances overflow; use smaller numbers or weights", code="distance-overflow")
    plan = f"{backend.name}: {backend.reason}"
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
    """Return the backend of the options, or the metric's first one that pays off."""
    offered = {backend.name: backend for backend in metric.backends(queries, candidates, k)}
    if options.device not in (AUTO, "cpu", "cuda"):
        raise SettingError(f"device '{options.device}' is unknown; choose auto, cpu or cuda", code="unknown-device")
    if options.backend != AUTO:
        if options.backend not in offered:
            valid = ", ".join([AUTO, *offered])
            message = f"backend '{options.backend}' cannot search by {metric.name}; choose {valid}"
            raise SettingError(message, code="unknown-backend")
        return offered[options.backend]
    if options.device == "cuda" and GPU not in offered:
        raise DeviceError(f"there is no GPU search by {metric.name}; choose device cpu or auto", code="no-gpu-search")
    large = count_records(queries) * count_records(candidates) >= MIN_PAIRS_FOR_GPU
    use_gpu = options.device == "cuda"
    if options.device == AUTO and GPU in offered and large and offered[GPU].pays():
        from fedsim.linkage.search import gpu  # noqa: PLC0415 - importing torch takes seconds

        use_gpu = gpu.available()
    if use_gpu:
        return offered[GPU]
    return next(backend for backend in offered.values() if backend.name != GPU and backend.pays())
