"""Searches on CUDA devices: which metrics have one, and whether it is faster than the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np

from fedsim.errors import DeviceError
from fedsim.linkage.metrics import Backend, Days, Dice, Euclidean, Hamming, Levenshtein, Metric, Position
from fedsim.linkage.search.runner import Records, Search, count_records, take_records
from fedsim.linkage.soft_linkage import GPU
from fedsim.types import Integers

MAX_K = 4096  # longer lists do not fit the shared memory of a multiprocessor
MAX_DIMENSIONS = 64
MAX_LENGTH = 2048  # of a query: longer ones do not fit the registers and are slow to compile
START_SECONDS = 2.0  # context, compilation of the kernels, copies
SAMPLED_QUERIES = 1024
SAMPLED_CANDIDATES = 16_384

Start = Callable[[Any], Any]  # from the module that holds the kernels to a table for a device


def gpu_backends(metric: Metric, queries: Records, candidates: Records, k: int) -> list[Backend]:
    """Return the search by a metric on CUDA devices, if there is one and records and lists fit it."""
    offered = _device_table(metric, queries, candidates)
    if offered is None or k > MAX_K:
        return []
    reason, table = offered

    def start() -> Search:
        from fedsim_ops import gpu_search  # noqa: PLC0415 - torch takes seconds to import

        return gpu_search.DeviceSearch(table(gpu_search))

    return [Backend(GPU, f"{reason} on the GPU", start)]


@singledispatch
def _device_table(metric: Metric, queries: Records, candidates: Records) -> tuple[str, Start] | None:
    """Return how records are compared and a function that makes the table of a device; None if there is no kernel."""
    return None


@_device_table.register(Hamming)
@_device_table.register(Dice)
def _filter_table(metric: Hamming | Dice, queries: Records, candidates: Records) -> tuple[str, Start]:
    reason, by_ones = f"products of {64 * candidates.shape[1]}-bit filters", isinstance(metric, Dice)
    return reason, lambda gpu: gpu.FilterTable(queries, candidates, by_ones=by_ones)


@_device_table.register(Euclidean)
@_device_table.register(Position)
@_device_table.register(Days)
def _point_table(metric: Metric, queries: Records, candidates: Records) -> tuple[str, Start] | None:
    if candidates.shape[1] > MAX_DIMENSIONS:
        return None
    return "float64 distances of every pair", lambda gpu: gpu.PointTable(queries, candidates)


@_device_table.register(Levenshtein)
def _text_table(metric: Levenshtein, queries: list[str], candidates: list[str]) -> tuple[str, Start] | None:
    if max(map(len, queries)) > MAX_LENGTH:
        return None
    reason = "bit-parallel edit distance of every pair"
    return reason, lambda gpu: gpu.TextTable(queries, candidates, normalised=metric.normalised)


def choose_faster(  # noqa: PLR0913, PLR0917
    metric: Metric, queries: Records, candidates: Records, k: int, on_cpu: Backend, on_gpu: Backend, threads: int
) -> Backend:
    """Return the backend that samples of the search show to be faster, with the estimates in its reason."""
    from fedsim_ops import gpu_search  # noqa: PLC0415 - torch takes seconds to import

    if not gpu_search.devices():
        return on_cpu
    cpu_seconds = _estimate_on_cpu(metric, queries, candidates, k, on_cpu) / threads
    there = f"{cpu_seconds:.2g} s on {threads} CPU threads"
    if cpu_seconds < START_SECONDS:
        return replace(on_cpu, reason=f"{on_cpu.reason}; estimated {there}, less than starting the GPU takes")
    try:
        search = on_gpu.start()
        gpu_seconds = _estimate_on_gpu(search, count_records(queries), k)
    except DeviceError as error:
        return replace(on_cpu, reason=f"{on_cpu.reason}; the GPU cannot be used: {error}")
    here = f"estimated {gpu_seconds:.2g} s on the GPU"
    if gpu_seconds < cpu_seconds:
        return replace(on_gpu, reason=f"{on_gpu.reason}; {here}, {there}", start=lambda: search)
    return replace(on_cpu, reason=f"{on_cpu.reason}; {here}, {there}")


def _estimate_on_cpu(metric: Metric, queries: Records, candidates: Records, k: int, backend: Backend) -> float:
    """Estimate the seconds on one CPU thread by searching a sample of both tables."""
    some_queries, some_candidates = (
        take_records(records, _spread_rows(count_records(records), most))
        for records, most in ((queries, SAMPLED_QUERIES), (candidates, SAMPLED_CANDIDATES))
    )
    k = min(k, count_records(some_candidates))
    offered = {sampled.name: sampled for sampled in metric.backends(some_queries, some_candidates, k)}
    search = offered[backend.name].start()
    seconds = _seconds(search, search.tiles(), k)
    growth = count_records(candidates) / count_records(some_candidates) if backend.exhaustive else 1.0
    return seconds * growth * count_records(queries) / count_records(some_queries)


def _estimate_on_gpu(search: Search, n_queries: int, k: int) -> float:
    """Estimate the seconds on all devices by searching some of the queries; start-up time is not included."""
    some = np.concatenate(search.tiles())[_spread_rows(n_queries, SAMPLED_QUERIES)]
    return _seconds(search, [some], k) * n_queries / len(some)


def _spread_rows(n: int, most: int) -> Integers:
    """Return at most ``most`` rows, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, most).astype(np.int64))


def _seconds(search: Search, tiles: Sequence[Integers], k: int) -> float:
    """Return the search time of these tiles, after a warm-up run that compiles what is needed."""
    search.best(tiles[0], k)
    start = time.perf_counter()
    for tile in tiles:
        search.best(tile, k)
    return time.perf_counter() - start
