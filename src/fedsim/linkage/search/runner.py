"""Run an exact search: distinct records, tiles of queries on threads, and the generic search by distance blocks.

Letters: T queries of a tile, C candidates of a chunk.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedsim.registry import LazyModule
from fedsim.types import Bits, Floats, Integers, Words

if TYPE_CHECKING:
    from fedsim.linkage.search import simd
else:  # numba takes a second to import
    simd = LazyModule("fedsim.linkage.search.simd")

Records = Any  # an array with one row per record, a list of strings, texts with weights, or a tuple of such columns
SearchProgress = Callable[[int, int], None]
QUERIES_PER_BLOCK_TILE = 32
CANDIDATES_PER_CHUNK = 32_768
ROWS_PER_HASH = 8192  # whose words fit into a cache
FIRST_HASH, HASH_FACTOR, HASH_SHIFT = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15), np.uint64(32)


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
    """Return the first row of every distinct record, ascending, and the distinct record of every row.

    >>> first, kind = distinct_records(["b", "a", "b"])
    >>> first.tolist(), kind.tolist()
    ([0, 1], [0, 1, 0])
    >>> first, kind = distinct_records(np.array([7, 3, 7, 5, 3]))
    >>> first.tolist(), kind.tolist()
    ([0, 1, 3], [0, 1, 0, 2, 1])
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
    if not len(table):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    bytes_of_row = table.view(np.uint8).reshape(len(table), -1)
    _, first, kind = np.unique(_row_hashes(bytes_of_row), return_index=True, return_inverse=True)
    if (table[first][kind] != table).any():  # hash collision: compare the rows instead
        complete_rows = bytes_of_row.view(np.dtype((np.void, bytes_of_row.shape[1]))).ravel()
        _, first, kind = np.unique(complete_rows, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[kind]


def _row_hashes(rows: Bits) -> Words:
    """Return a hash of every row, computed word by word for many rows at once."""
    hashes = np.full(len(rows), FIRST_HASH)
    for first in range(0, len(rows), ROWS_PER_HASH):
        here = slice(first, first + ROWS_PER_HASH)
        for column in to_words(rows[here]).T:
            hashes[here] = (hashes[here] ^ column) * HASH_FACTOR
            hashes[here] ^= hashes[here] >> HASH_SHIFT
    return hashes


def to_words(bits: Bits) -> Words:
    """Return packed bytes as 64-bit words, the last one padded with zeros."""
    spare = -bits.shape[1] % 8
    return np.ascontiguousarray(np.pad(bits, ((0, 0), (0, spare)))).view(np.uint64)


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


class TextArray(NamedTuple):
    """Strings as one array of code points and the positions where each begins."""

    chars: NDArray[np.uint32]
    starts: Integers

    @property
    def lengths(self) -> Integers:
        return np.diff(self.starts)


def to_text_array(strings: list[str]) -> TextArray:
    """Convert Unicode strings to one number per code point.

    >>> to_text_array(["né", ""]).lengths.tolist()
    [2, 0]
    """
    chars = np.frombuffer("".join(strings).encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    return TextArray(chars, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))


def number_characters(queries: TextArray, candidates: TextArray) -> tuple[TextArray, TextArray, int]:
    """Return both with characters numbered by the candidates' alphabet, and the size of that alphabet.

    Characters that occur only in queries get the number after the last.

    >>> queries, candidates, size = number_characters(to_text_array(["bx"]), to_text_array(["ab"]))
    >>> queries.chars.tolist(), candidates.chars.tolist(), size
    ([1, 2], [0, 1], 2)
    """
    present = np.zeros(sys.maxunicode + 1, bool)
    present[candidates.chars] = True
    size = int(present.sum())
    number_of = np.full(len(present), size, np.uint32)
    number_of[present] = np.arange(size, dtype=np.uint32)
    return (
        queries._replace(chars=number_of[queries.chars]),
        candidates._replace(chars=number_of[candidates.chars]),
        size,
    )


class Search(Protocol):
    """An exact search for the K nearest candidates of a tile of queries; ties go to the lower row."""

    def tiles(self) -> list[Integers]: ...

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]: ...


@runtime_checkable
class ReusableSearch(Search, Protocol):
    """A search that reuses what it computed about the candidates for other queries."""

    def with_queries(self, queries: Records) -> Self: ...


def run_search(
    search: Search, n_queries: int, k: int, threads: int | None = None, progress: SearchProgress | None = None
) -> tuple[Integers, Floats]:
    """Return the partners and distances of all queries, each row ordered by (distance, candidate row)."""
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
    """The default search of every metric: blocks of plain distances, one chunk of candidates at a time."""

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
            simd.merge_block(chunk.block(tile), first, partner, distance)
        return partner, distance
