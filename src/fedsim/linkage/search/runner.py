"""Run an exact search: distinct records, tiles of queries on threads, and the generic search by distance blocks.

Letters: T queries of a tile, C candidates of a chunk.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numba import njit

from fedsim.linkage.search import simd
from fedsim.types import Bits, Floats, Integers, Words

Records = Any  # an array with one row per record, a list of strings, texts with weights, or a tuple of such columns
SearchProgress = Callable[[int, int], None]
QUERIES_PER_BLOCK_TILE = 32
CANDIDATES_PER_CHUNK = 32_768


def row_tiles(n_queries: int, size: int) -> list[Integers]:
    """Return consecutive rows, ``size`` at a time.

    >>> [tile.tolist() for tile in row_tiles(5, 2)]
    [[0, 1], [2, 3], [4]]
    """
    return split_rows(np.arange(n_queries), size)


def split_rows(rows: Integers, size: int) -> list[Integers]:
    """Return rows in their given order, ``size`` at a time."""
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def distinct_records(records: Records) -> tuple[Integers, Integers]:
    """Return the row of the first record of every kind, and the kind of every record: equal records are searched once.

    >>> first, kind = distinct_records(["b", "a", "b"])
    >>> first.tolist(), kind.tolist()
    ([0, 1], [0, 1, 0])
    """
    records = getattr(records, "texts", records)
    if isinstance(records, list):
        kinds: dict[str, int] = {}
        kind = np.fromiter((kinds.setdefault(text, len(kinds)) for text in records), np.int64, len(records))
        return np.unique(kind, return_index=True)[1], kind
    if isinstance(records, tuple):
        records = np.column_stack([distinct_records(column)[1] for column in records])
    table = np.ascontiguousarray(records)
    if table.dtype.kind == "f":
        table = table + 0.0  # -0.0 equals 0.0
    bytes_of_row = table.view(np.uint8).reshape(len(table), -1)
    _, first, kind = np.unique(_row_hashes(bytes_of_row), return_index=True, return_inverse=True)
    if (table[first][kind] != table).any():  # two kinds of record share a hash: compare the rows instead
        complete_rows = bytes_of_row.view(np.dtype((np.void, bytes_of_row.shape[1]))).ravel()
        _, first, kind = np.unique(complete_rows, return_index=True, return_inverse=True)
    return first, kind


@njit(nogil=True, cache=True)
def _row_hashes(rows: Bits) -> Words:
    """Return the FNV-1a hash of every row."""
    hashes = np.empty(len(rows), np.uint64)
    for row in range(len(rows)):
        state = np.uint64(0xCBF29CE484222325)
        for place in range(rows.shape[1]):
            state = (state ^ np.uint64(rows[row, place])) * np.uint64(0x100000001B3)
        hashes[row] = state
    return hashes


def take_records(records: Records, rows: slice | Integers) -> Records:
    """Return some of the records, in the same form."""
    if isinstance(records, list):
        return records[rows] if isinstance(rows, slice) else [records[row] for row in rows]
    if isinstance(records, tuple):
        return tuple(take_records(column, rows) for column in records)
    return records[rows]


def count_records(records: Records) -> int:
    """Return the number of records."""
    return len(records[0]) if isinstance(records, tuple) else len(records)


class Search(Protocol):
    """A search that finds the K nearest candidates of a tile of queries, exactly; ties go to the lower row."""

    def tiles(self) -> list[Integers]: ...

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]: ...


@runtime_checkable
class ReusableSearch(Search, Protocol):
    """A search that keeps what it computed of the candidates when it is given other queries."""

    def with_queries(self, queries: Records) -> Self: ...


class LaneKernel(Protocol):
    """Computes the distances of many queries at once, as fractions."""

    n_candidates: int
    size_of: Integers  # by candidate row: index into the distinct sizes
    ascending: bool  # candidates are visited by ascending row
    largest_numerator: int
    largest_denominator: int

    def tiles(self) -> list[Integers]: ...

    def bits_of(self, tile: Integers) -> int: ...

    def denominators(self, tile: Integers) -> Integers: ...

    def scan(self, tile: Integers, buffers: simd.Buffers, layout: simd.KeyLayout) -> None: ...


class LaneSearch:
    """The exhaustive search with a lane kernel."""

    def __init__(self, kernel: LaneKernel) -> None:
        self.kernel = kernel

    def tiles(self) -> list[Integers]:
        return self.kernel.tiles()

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        kernel, bits = self.kernel, self.kernel.bits_of(tile)
        layout = simd.key_layout(
            k,
            largest_numerator=kernel.largest_numerator,
            largest_denominator=kernel.largest_denominator,
            n_candidates=kernel.n_candidates,
            ascending=kernel.ascending,
        )
        used = kernel.denominators(tile)
        padding = np.ones((len(used), simd.lane_count(bits) - len(tile)), np.int64)
        buffers = simd.new_buffers(layout, np.hstack([used, padding]), len(tile), bits)
        kernel.scan(tile, buffers, layout)
        partner, distance = np.empty((len(tile), k), np.int64), np.empty((len(tile), k))
        simd.write_best(buffers, layout, kernel.size_of, partner, distance)
        return partner, distance


def run_search(
    search: Search, n_queries: int, k: int, threads: int | None = None, progress: SearchProgress | None = None
) -> tuple[Integers, Floats]:
    """Return partners and distances of all queries, each row in the order (distance, candidate row)."""
    tiles = search.tiles()
    if len(tiles) == 1 and (tiles[0] == np.arange(n_queries)).all():
        best = search.best(tiles[0], k)
        if progress is not None:
            progress(n_queries, n_queries)
        return best
    partner, distance = np.empty((n_queries, k), np.int64), np.empty((n_queries, k))
    done = 0
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        waiting = {pool.submit(search.best, tile, k): tile for tile in tiles}
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


class DistanceBlocks(Protocol):
    """Computes the distances from some of the queries to all candidates of one chunk."""

    def block(self, tile: Integers) -> Floats: ...


BlocksFactory = Callable[[Records, Records], DistanceBlocks]


class BlockSearch:
    """The search that every metric gets for free: blocks of plain distances, chunk by chunk of the candidates."""

    def __init__(self, queries: Records, candidates: Records, blocks_of: BlocksFactory) -> None:
        self.n_queries, n_candidates = count_records(queries), count_records(candidates)
        self.firsts = range(0, n_candidates, CANDIDATES_PER_CHUNK)
        self.chunks = [
            blocks_of(queries, take_records(candidates, slice(first, first + CANDIDATES_PER_CHUNK)))
            for first in self.firsts
        ]

    def tiles(self) -> list[Integers]:
        return row_tiles(self.n_queries, QUERIES_PER_BLOCK_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        partner, distance = np.zeros((len(tile), k), np.int64), np.full((len(tile), k), np.inf)
        for first, chunk in zip(self.firsts, self.chunks, strict=True):
            _merge_block(chunk.block(tile), first, partner, distance)
        return partner, distance


@njit(nogil=True, cache=True)
def insert_sorted(partner: Integers, distance: Floats, row: int, value: float) -> bool:
    """Insert into a list sorted by (distance, row) if it is near enough; rows must come in ascending order."""
    place = len(distance) - 1
    if value >= distance[place]:
        return False
    while place > 0 and distance[place - 1] > value:
        distance[place], partner[place] = distance[place - 1], partner[place - 1]
        place -= 1
    distance[place], partner[place] = value, row
    return True


@njit(nogil=True, cache=True)
def replace_worst(nearest: Floats, found: Integers, value: float, row: int) -> None:
    """Replace the first entry of a heap ordered by (distance, row), largest first."""
    place, size = 0, len(nearest)
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and (
            nearest[child + 1] > nearest[child]
            or (nearest[child + 1] == nearest[child] and found[child + 1] > found[child])
        ):
            child += 1
        if nearest[child] < value or (nearest[child] == value and found[child] < row):
            break
        nearest[place], found[place] = nearest[child], found[child]
        place = child
    nearest[place], found[place] = value, row


@njit(nogil=True, cache=True)
def _merge_block(block: Floats, first: int, partner: Integers, distance: Floats) -> None:
    """Merge a block of distances into the list of every query."""
    for query in range(block.shape[0]):
        for place in range(block.shape[1]):
            if block[query, place] < distance[query, -1]:
                insert_sorted(partner[query], distance[query], first + place, block[query, place])
