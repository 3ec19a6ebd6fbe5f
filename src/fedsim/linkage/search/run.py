"""Run a search over all its queries: tiles of queries on threads, results in the queries' order."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol

import numpy as np

from fedsim.linkage.search.lanes import lanes_of
from fedsim.linkage.search.select import Buffers, KeyLayout, key_layout, new_buffers, write_best
from fedsim.types import Floats, Integers

Progress = Callable[[int, int], None]


class Search(Protocol):
    """Finds the K nearest candidates of a tile of queries, exactly, ties by candidate row."""

    def tiles(self) -> list[Integers]: ...

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]: ...


class LaneKernel(Protocol):
    """Distances of many queries at once as fractions; the selector does the rest."""

    n_candidates: int
    ascending: bool  # candidates are visited by ascending row

    @property
    def largest_numerator(self) -> int: ...

    @property
    def largest_denominator(self) -> int: ...

    def tiles(self) -> list[Integers]: ...

    def bits_of(self, tile: Integers) -> int: ...

    def denominators(self, tile: Integers) -> Integers: ...

    def size_by_row(self) -> Integers: ...

    def scan(self, tile: Integers, buffers: Buffers, layout: KeyLayout) -> None: ...


class LaneSearch:
    """The exhaustive search with a lane kernel."""

    def __init__(self, kernel: LaneKernel) -> None:
        self.kernel = kernel
        self.size_by_row = kernel.size_by_row()

    def tiles(self) -> list[Integers]:
        return self.kernel.tiles()

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        kernel, bits = self.kernel, self.kernel.bits_of(tile)
        layout = key_layout(
            k,
            largest_numerator=kernel.largest_numerator,
            largest_denominator=kernel.largest_denominator,
            n_candidates=kernel.n_candidates,
            ascending=kernel.ascending,
        )
        used = kernel.denominators(tile)
        padding = np.ones((len(used), lanes_of(bits) - len(tile)), np.int64)
        buffers = new_buffers(layout, np.hstack([used, padding]), len(tile), bits)
        kernel.scan(tile, buffers, layout)
        partner, distance = np.empty((len(tile), k), np.int64), np.empty((len(tile), k))
        write_best(buffers, layout, self.size_by_row, partner, distance)
        return partner, distance


def run(
    search: Search, n_queries: int, k: int, threads: int | None = None, progress: Progress | None = None
) -> tuple[Integers, Floats]:
    """Partners and distances of all queries, each row in the order (distance, candidate row)."""
    partner, distance = np.empty((n_queries, k), np.int64), np.empty((n_queries, k))
    done = 0
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        waiting = {pool.submit(search.best, tile, k): tile for tile in search.tiles()}
        try:
            for future in as_completed(waiting):
                tile = waiting.pop(future)
                partner[tile], distance[tile] = future.result()
                done += len(tile)
                if progress is not None:
                    progress(done, n_queries)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return partner, distance
