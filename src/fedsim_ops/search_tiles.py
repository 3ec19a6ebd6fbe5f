"""Run searches as tiles of queries against chunks of candidates, on this machine or on a cluster.

Because results are ordered by (distance, candidate row), the K best of a table are the K best among the K best of its
chunks. An engine may therefore search tiles in any order, and again after a failure; every engine returns the same
bytes.

Letters: T queries of a tile, w candidates found so far, at most K.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedsim.linkage.soft_linkage import BackendOptions, Engine, SearchMemory, search_prepared
from fedsim.registry import LazyModule
from fedsim.types import Floats, Integers

if TYPE_CHECKING:
    from fedsim.linkage.metrics import Metric
    from fedsim.linkage.search import runner
    from fedsim.linkage.search.runner import Records
else:  # numba takes a second to import
    runner = LazyModule("fedsim.linkage.search.runner")

RECORDS_PER_TASK = 16_384
CHUNK_BYTES = 2**28  # of candidates; a worker's index of places takes about six times as much


@dataclass(frozen=True, eq=False)
class CandidateChunk:
    """Prepared candidates, the table row of the first one, and how to search them."""

    metric: Metric
    records: Records
    first: int
    k: int
    options: BackendOptions


@dataclass(frozen=True, eq=False)
class TileBest:
    """The nearest candidates of a tile, by (distance, row)."""

    partner: Integers  # (T, w)
    distance: Floats  # (T, w)


@dataclass(frozen=True, eq=False)
class QueryTile:
    """Numbered, prepared queries, and the results found for them in earlier chunks."""

    number: int
    records: Records
    before: TileBest | None = None


class TileEngine(Engine, Protocol):
    """An engine that searches tiles of queries."""

    def search_tiles(self, chunk: CandidateChunk, tiles: Iterable[QueryTile]) -> Iterator[tuple[int, TileBest, str]]:
        """Yield the number, best candidates and plan of every tile, in any order; hold only a few tiles at a time."""
        ...


def search_tile(chunk: CandidateChunk, tile: QueryTile, memory: SearchMemory) -> tuple[TileBest, str]:
    """Return the best candidates of a tile in this chunk and earlier ones, and the plan.

    ``memory`` keeps the index of the chunk for the next tile.
    """
    metric, k = chunk.metric, min(chunk.k, runner.count_records(chunk.records))
    rows, distance, _ = search_prepared(metric, tile.records, chunk.records, k=k, options=chunk.options, memory=memory)
    if tile.before is None:
        return TileBest(rows + chunk.first, distance), memory.plan
    # Both are sorted and earlier rows are lower, so a stable sort by distance is a sort by (distance, row).
    partners = np.concatenate([tile.before.partner, rows + chunk.first], axis=1)
    distances = np.concatenate([tile.before.distance, distance], axis=1)
    order = np.argsort(distances, axis=1, kind="stable")[:, : chunk.k]
    best = TileBest(np.take_along_axis(partners, order, axis=1), np.take_along_axis(distances, order, axis=1))
    return best, memory.plan


def search_by_tiles(
    engine: TileEngine, metric: Metric, queries: Records, candidates: Records, k: int, options: BackendOptions
) -> tuple[Integers, Floats, str]:
    """Search tables that are in memory with an engine that searches tiles."""
    n_queries, n_candidates, plan = runner.count_records(queries), runner.count_records(candidates), ""
    rows = records_per_chunk(metric, candidates)
    tiles = runner.row_tiles(n_queries, RECORDS_PER_TASK)
    best: dict[int, TileBest] = {}
    for first in range(0, n_candidates, rows):
        records = candidates if rows >= n_candidates else runner.take_records(candidates, slice(first, first + rows))
        chunk = CandidateChunk(metric, records, first, k, replace(options, progress=None, engine=None))
        tasks = (
            QueryTile(number, runner.take_records(queries, tile), best.get(number)) for number, tile in enumerate(tiles)
        )
        for done, (number, found, plan) in enumerate(engine.search_tiles(chunk, tasks), 1):  # noqa: B007
            best[number] = found
            if options.progress is not None:
                share = (first // rows * len(tiles) + done) / (-(-n_candidates // rows) * len(tiles))
                options.progress(int(share * n_queries), n_queries)
    partner, distance = np.empty((n_queries, k), np.int64), np.empty((n_queries, k))
    for number, tile in enumerate(tiles):
        found = best.pop(number)
        partner[tile], distance[tile] = found.partner, found.distance
    return partner, distance, f"{plan}; {engine.describe()}"


def records_per_chunk(metric: Metric, candidates: Records) -> int:
    """Return the number of candidates per chunk; all of them if the metric's weights depend on the whole table."""
    if getattr(metric, "weighs_by_table", False):
        return 2**62
    return max(1, CHUNK_BYTES * runner.count_records(candidates) // max(1, record_bytes(candidates)))


def record_bytes(records: Any) -> int:
    """Return the approximate size of prepared records in bytes."""
    if isinstance(records, tuple):
        return sum(record_bytes(column) for column in records)
    if isinstance(records, np.ndarray):
        return int(records.nbytes)
    return sum(map(len, getattr(records, "texts", records))) + 64 * len(records)
