"""The exact K nearest candidates of every query: choose a backend, search, order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import DeviceError, InputError, SettingError
from fedsim.linkage.identifiers import check_compatible
from fedsim.linkage.metrics import GPU, Backend, Metric, get_metric
from fedsim.linkage.search.runner import (
    Records,
    SearchProgress,
    count_records,
    distinct_records,
    run_search,
    take_records,
)
from fedsim.types import Floats, Integers
from fedsim.validation import validate_integer, validate_k

AUTO = "auto"
SECONDARY_TABLE = "the secondary table"
MIN_PAIRS_FOR_GPU = 10**10  # pairs; below, starting the device costs more than the search


@dataclass(frozen=True)
class SearchPlan:
    """Which search was chosen, and why."""

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def plan_search(
    queries: Any, candidates: Any, *, metric: str | Metric, k: int, backend: str = AUTO, device: str = AUTO
) -> SearchPlan:
    """What :func:`topk` would choose for these tables, and why.

    >>> import numpy as np
    >>> print(plan_search(np.eye(3), np.eye(3), metric="euclidean", k=1))
    tree: k-d tree, best up to 16 dimensions (here 3)
    """
    chosen = get_metric(metric)
    sides = prepare_tables(chosen, queries, candidates)
    found = _choose_backend(
        chosen, *sides, validate_k(k, count_records(sides[1]), SECONDARY_TABLE), BackendOptions(backend, device)
    )
    return SearchPlan(found.name, found.reason)


@dataclass(frozen=True)
class BackendOptions:
    """How to search; nothing here changes the result."""

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
    """Partner rows and distances, both (queries, k), nearest first, ties by lower candidate row.

    Distances are int64 where the metric counts (Hamming, Levenshtein) and float64 elsewhere.

    >>> import numpy as np
    >>> partner, distance = topk(["cat"], ["dog", "cart", "cat"], metric="levenshtein", k=2)
    >>> partner.tolist(), distance.tolist()
    ([[2, 1]], [[0, 1]])
    """
    chosen = get_metric(metric)
    sides = prepare_tables(chosen, queries, candidates)
    k = validate_k(k, count_records(sides[1]), SECONDARY_TABLE)
    partner, distance, _ = search_prepared(
        chosen, *sides, k=k, options=BackendOptions(backend, device, threads, progress)
    )
    return partner, distance.astype(np.int64) if chosen.whole else distance


def search_prepared(
    metric: Metric, queries: Records, candidates: Records, *, k: int, options: BackendOptions
) -> tuple[Integers, Floats, SearchPlan]:
    """Partners, distances and the plan, for records that the metric has prepared; equal queries are searched once."""
    first, kind = distinct_records(queries)
    different = take_records(queries, first) if len(first) < len(kind) else queries
    chosen = _choose_backend(metric, different, candidates, k, options)
    threads = None if options.threads is None else validate_integer(options.threads, "threads", least=1)
    found = run_search(chosen.start(), count_records(different), k, threads, options.progress)
    if not np.isfinite(found[1]).all():
        raise InputError("distances overflow; use smaller numbers or weights")
    if different is queries:
        return *found, SearchPlan(chosen.name, chosen.reason)
    return found[0][kind], found[1][kind], SearchPlan(chosen.name, f"{chosen.reason}; {len(first):,} distinct queries")


def prepare_tables(
    metric: Metric, primary_ids: Any, secondary_ids: Any, names: tuple[str, str] = ("primary", "secondary")
) -> tuple[Records, Records]:
    """Both tables in the search's form, once it is clear that they may be compared."""
    check_compatible(primary_ids, secondary_ids, names)
    queries, candidates = metric.prepare(primary_ids, names[0]), metric.prepare(secondary_ids, names[1])
    for left, right in zip(_record_columns(queries), _record_columns(candidates), strict=True):
        if isinstance(left, np.ndarray) and left.shape[1:] != right.shape[1:]:
            raise InputError(
                f"the {names[0]} table's identifiers are {left.shape[1]} wide, those of the {names[1]} table "
                f"{right.shape[1]}; both sides need the same columns, or filters of the same size"
            )
    return queries, candidates


def _record_columns(records: Records) -> tuple[Any, ...]:
    return records if isinstance(records, tuple) else (records,)


def _choose_backend(metric: Metric, queries: Records, candidates: Records, k: int, options: BackendOptions) -> Backend:
    """The backend asked for, or the metric's first that pays; a GPU where there is one and the work is worth it."""
    offered = {backend.name: backend for backend in metric.backends(queries, candidates, k)}
    if options.device not in (AUTO, "cpu", "cuda"):
        raise SettingError(f"device '{options.device}' is unknown; choose auto, cpu or cuda")
    if options.backend != AUTO and options.backend not in offered:
        raise SettingError(
            f"backend '{options.backend}' cannot search by {metric.name}; choose {', '.join(['auto', *offered])}"
        )
    if options.backend != AUTO:
        return offered[options.backend]
    if options.device == "cuda" and GPU not in offered:
        raise DeviceError(f"there is no GPU search by {metric.name}; choose device cpu or auto")
    if options.device == "cuda" or (
        options.device == AUTO and _gpu_pays(offered, count_records(queries) * count_records(candidates))
    ):
        return offered[GPU]
    return next(backend for backend in offered.values() if backend.name != GPU and backend.pays())


def _gpu_pays(offered: dict[str, Backend], pairs: int) -> bool:
    """True for very large work on a machine with a GPU; importing torch takes seconds, so it comes last."""
    if GPU not in offered or pairs < MIN_PAIRS_FOR_GPU or not offered[GPU].pays():
        return False
    from fedsim.linkage.search import gpu  # noqa: PLC0415

    return gpu.available()
