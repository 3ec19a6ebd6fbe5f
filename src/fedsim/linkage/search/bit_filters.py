"""Exact K nearest filters: a popcount kernel, cells by the triangle inequality, and distances from ranks.

Letters: L lanes, W words per filter, n candidates.
"""

from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fedsim.linkage.search import simd
from fedsim.linkage.search.runner import row_tiles
from fedsim.types import Floats, Integers, Integers32, Words

RankRuns = Integers32  # columns low, high of every field in turn
WORD_LANE_BITS = 64
MAX_CELLS = 256
QUERIES_PER_CELL_TILE = 256
SAMPLED_QUERIES = 200
SAMPLED_CANDIDATES = 8192

# The popcount kernel. A lane holds one 64-bit word of a query; the word of a candidate is broadcast to all lanes, and
# xor, popcount and add compute the distances of a group of queries at once. The Dice distance between two filters is
# their Hamming distance divided by the ones of both, so one kernel serves both metrics.


class BitGroup(NamedTuple):
    """The words of a group of queries, one query per lane, and their latest distances."""

    words: Words  # (W, L)
    distance: Integers  # (L,)


def count_ones(words: Words) -> Integers:
    """Return the number of ones in every filter."""
    return np.asarray(np.bitwise_count(words).sum(axis=1, dtype=np.int64))


@intrinsic
def bits_within(typing_context: Any, group: Any, candidates: Any, row: Any, limit: Any, size: Any) -> Any:
    """Compute the Hamming distances from one candidate to all lanes; return true if any is within its limit."""
    signature = types.boolean(group, candidates, types.int64, limit, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        group_kind, group_value = signature.args[0], arguments[0]
        words, distance = (
            simd.ArrayPointer(context, builder, kind, builder.extract_value(group_value, place))
            for place, kind in enumerate(group_kind.types)
        )
        table = simd.ArrayPointer(context, builder, signature.args[1], arguments[1])
        limits = simd.ArrayPointer(context, builder, signature.args[3], arguments[3])
        lanes = simd.Lanes(context, builder, WORD_LANE_BITS)
        total = lanes.variable(lanes.constant(0))
        begin = builder.mul(arguments[2], words.length)
        with cgutils.for_range_slice(builder, simd.ZERO64, words.length, simd.ONE64, simd.I64) as (word, _):
            one_word = lanes.spread(table.scalar(builder.add(begin, word)))
            differing = builder.xor(lanes.load(words, builder.mul(word, lanes.width)), one_word)
            builder.store(builder.add(builder.load(total), lanes.call("ctpop", differing)), total)
        sums = builder.load(total)
        lanes.store(sums, distance, simd.ZERO64)
        return lanes.any_within(sums, lanes.load(limits, builder.mul(arguments[4], lanes.width)))

    return signature, generate


@njit(nogil=True, cache=True)
def _scan_bits(
    group: BitGroup, candidates: Words, size_of: Integers, buffers: simd.Buffers, layout: simd.KeyLayout
) -> None:
    keys, counters, histogram, denominator, limit = buffers
    distance = group.distance
    for row in range(len(candidates)):
        if bits_within(group, candidates, row, limit, size_of[row]):
            simd.offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, size_of[row], row)


class BitKernel:
    """Hamming or Dice distances from groups of queries to all candidates."""

    ascending = True

    def __init__(self, queries: Words, candidates: Words, *, by_ones: bool) -> None:
        self.queries, self.candidates, self.by_ones = queries, candidates, by_ones
        self.n_candidates = len(candidates)
        self.largest_numerator = WORD_LANE_BITS * candidates.shape[1]
        self.largest_denominator = 2 * self.largest_numerator if by_ones else 1
        self.sizes, self.size_of = np.unique(
            count_ones(candidates) if by_ones else np.zeros(self.n_candidates, np.int64), return_inverse=True
        )

    def tiles(self) -> list[Integers]:
        return row_tiles(len(self.queries), simd.lane_count(WORD_LANE_BITS))

    def bits_of(self, tile: Integers) -> int:
        return WORD_LANE_BITS

    def denominators(self, tile: Integers) -> Integers:
        """Return the ones of both filters per distinct number of ones and lane; two empty filters are equal."""
        if not self.by_ones:
            return np.ones((1, len(tile)), np.int64)
        ones = self.sizes[:, None] + count_ones(self.queries[tile])[None, :]  # (S, L)
        return np.asarray(np.maximum(ones, 1))

    def scan(self, tile: Integers, buffers: simd.Buffers, layout: simd.KeyLayout) -> None:
        lanes = simd.lane_count(WORD_LANE_BITS)
        words = np.zeros((self.queries.shape[1], lanes), np.uint64)
        words[:, : len(tile)] = self.queries[tile].T
        _scan_bits(BitGroup(words, np.zeros(lanes, np.int64)), self.candidates, self.size_of, buffers, layout)


@njit(nogil=True, cache=True)
def rank_distances(left: RankRuns, right: RankRuns) -> Floats:
    """Return the Hamming distances of FEDERAL numeric filters from their ranks.

    With sorted pivots, the FEDERAL filter of a number is one run of ones, ``[low, high)``. The Hamming distance between
    two filters is therefore ``|A| + |B| - 2 * overlap``, and two integers per field replace a filter of any size. This
    is for simulations and previews, where one process holds the pivots.
    """
    distances = np.zeros((len(left), len(right)))
    columns = right.T.copy()  # contiguous, so that the inner loop runs in vector registers
    for query in range(len(left)):
        for side in range(0, left.shape[1], 2):
            low, high = left[query, side], left[query, side + 1]
            lows, highs = columns[side], columns[side + 1]
            for row in range(len(right)):
                overlap = max(np.int32(min(high, highs[row]) - max(low, lows[row])), np.int32(0))
                distances[query, row] += np.int32(high - low + highs[row] - lows[row] - 2 * overlap)
    return distances


# The search by the triangle inequality, for data of low intrinsic dimension. Some candidates serve as centres; every
# candidate belongs to its nearest centre and is sorted by its distance to it. Given its distance to a centre, a query
# needs only the ring of candidates in that cell whose distance to the centre differs by at most the query's current
# K-th distance. This leaves about 2 % of all pairs for filters of places, but nearly all for filters of names, so a
# sample decides whether it pays off (see ``share_evaluated``).


class CandidateCells(NamedTuple):
    """Candidates sorted by cell and, within a cell, by distance to its centre."""

    centres: Words
    begins: Integers
    words: Words
    rows: Integers
    to_centre: Integers


class CellSearch:
    """Search filters by rings around centres."""

    def __init__(self, queries: Words, candidates: Words) -> None:
        self.queries, self.n_candidates = queries, len(candidates)
        n_cells = max(1, min(MAX_CELLS, self.n_candidates // 64))
        centres = candidates[np.linspace(0, self.n_candidates - 1, n_cells).astype(np.int64)]
        with ThreadPoolExecutor() as pool:
            tiles = row_tiles(self.n_candidates, 8192)
            cell, apart = np.hstack(list(pool.map(lambda rows: _nearest_centres(candidates[rows], centres), tiles)))
        order = np.lexsort((apart, cell))
        begins = np.searchsorted(cell[order], np.arange(n_cells + 1))
        self.cells = CandidateCells(np.ascontiguousarray(centres), begins, candidates[order], order, apart[order])
        self.size_of = np.zeros(self.n_candidates, np.int64)

    def with_queries(self, queries: Words) -> Self:
        """Return the same cells for other queries."""
        other = copy(self)
        other.queries = queries
        return other

    def tiles(self) -> list[Integers]:
        return row_tiles(len(self.queries), QUERIES_PER_CELL_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        partner, distance, _ = self.search(tile, k)
        return partner, distance

    def search(self, tile: Integers, k: int) -> tuple[Integers, Floats, int]:
        """Return partners, distances, and how many distances were computed."""
        most = WORD_LANE_BITS * self.queries.shape[1]
        layout = simd.key_layout(k, largest_numerator=most, largest_denominator=1, n_candidates=self.n_candidates)
        buffers = simd.new_buffers(layout, np.ones((1, 1), np.int64), 1, WORD_LANE_BITS)
        partner, distance = np.empty((len(tile), k), np.int64), np.empty((len(tile), k))
        evaluated = _search_tile(self.queries[tile], self.cells, buffers, layout, self.size_of, partner, distance)
        return partner, distance, int(evaluated)


def share_evaluated(queries: Words, candidates: Words, k: int) -> float:
    """Estimate from a sample of both sides the share of all pairs that the rings leave."""
    some = [
        table[np.unique(np.linspace(0, len(table) - 1, most).astype(np.int64))]
        for table, most in ((queries, SAMPLED_QUERIES), (candidates, SAMPLED_CANDIDATES))
    ]
    fewer = max(1, round(k * len(some[1]) / len(candidates)))
    evaluated = CellSearch(*some).search(np.arange(len(some[0])), fewer)[2]
    return evaluated / (len(some[0]) * len(some[1]))


@njit(nogil=True, cache=True)
def _hamming(left: Words, table: Words, row: int) -> int:
    total = 0
    for word in range(len(left)):
        total += simd.popcount(left[word] ^ table[row, word])
    return total


@njit(nogil=True, cache=True)
def _nearest_centres(candidates: Words, centres: Words) -> Integers:
    """Return the nearest centre of every candidate (row 0) and the distance to it (row 1)."""
    nearest = np.empty((2, len(candidates)), np.int64)
    for row in range(len(candidates)):
        best, least = 0, _hamming(candidates[row], centres, 0)
        for centre in range(1, len(centres)):
            apart = _hamming(candidates[row], centres, centre)
            if apart < least:
                best, least = centre, apart
        nearest[0, row], nearest[1, row] = best, least
    return nearest


@njit(nogil=True, cache=True)
def _search_tile(  # noqa: PLR0913, PLR0917
    queries: Words,
    cells: CandidateCells,
    buffers: simd.Buffers,
    layout: simd.KeyLayout,
    size_of: Integers,
    partner: Integers,
    distance: Floats,
) -> int:
    """Answer the queries one by one with the same buffers; return the number of distances computed."""
    evaluated = 0
    for query in range(len(queries)):
        simd.clear_buffers(buffers)
        evaluated += _search_rings(queries[query], cells, buffers, layout)
        simd.write_best(buffers, layout, size_of, partner[query : query + 1], distance[query : query + 1])
    return evaluated


@njit(nogil=True, cache=True)
def _search_rings(query: Words, cells: CandidateCells, buffers: simd.Buffers, layout: simd.KeyLayout) -> int:
    """Fill the buffer of the single lane, nearest cells first; return the number of distances computed."""
    centres, begins, words, rows, to_centre = cells
    keys, counters, histogram, denominator, limit = buffers
    distance, evaluated = np.zeros(1, np.int64), len(centres)
    apart = np.empty(len(centres), np.int64)
    for cell in range(len(centres)):
        apart[cell] = _hamming(query, centres, cell)
    nearest = int(np.argmin(apart))
    for step in range(len(centres)):
        cell = (nearest + step) % len(centres)
        begin, end = begins[cell], begins[cell + 1]
        if begin == end or apart[cell] - to_centre[end - 1] > limit[0, 0]:
            continue
        inner = begin + np.searchsorted(to_centre[begin:end], apart[cell] - limit[0, 0])
        for place in range(inner, end):
            if to_centre[place] - apart[cell] > limit[0, 0]:
                break
            evaluated += 1
            distance[0] = _hamming(query, words, place)
            if distance[0] <= limit[0, 0]:
                simd.offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, 0, rows[place])
    return evaluated
