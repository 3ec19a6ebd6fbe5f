"""Exact K nearest filters: popcount kernel, rank form of numeric filters, and cells by the triangle inequality."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedsim.linkage.search.lanes import (
    I64,
    ONE64,
    ZERO64,
    ArrayPointer,
    Buffers,
    KeyLayout,
    Lanes,
    clear_buffers,
    key_layout,
    lane_count,
    new_buffers,
    offer_lanes,
    popcount,
    write_best,
)
from fedsim.linkage.search.runner import row_tiles
from fedsim.types import Bits, Floats, Integers

# Exact K nearest bit filters by Hamming or Dice distance
#
# A lane holds one 64-bit word of a query; a candidate's word is spread over all lanes, and xor, popcount and add give
# the distances of a whole group of queries at once. The Dice distance of two filters is their Hamming distance
# divided by the ones of both, so one kernel serves the two metrics.
#
# Letters: L lanes, W words per filter, n candidates.


Words = NDArray[np.uint64]
WORD_LANE_BITS = 64


class BitGroup(NamedTuple):
    """The words of a group's queries, one query per lane, and their latest distances."""

    words: Words  # (W, L)
    distance: Integers  # (L,)


def to_words(bits: Bits) -> Words:
    """Packed bytes as 64-bit words, the last one filled with zeros."""
    spare = -bits.shape[1] % 8
    return np.ascontiguousarray(np.pad(bits, ((0, 0), (0, spare)))).view(np.uint64)


def count_ones(words: Words) -> Integers:
    """Number of ones in every filter."""
    return np.asarray(np.bitwise_count(words).sum(axis=1, dtype=np.int64))


@intrinsic
def bits_within(typing_context: Any, group: Any, candidates: Any, row: Any, limit: Any, size: Any) -> Any:
    """Hamming distances of one candidate to all lanes; true if any keeps its limit."""
    signature = types.boolean(group, candidates, types.int64, limit, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        group_kind, group_value = signature.args[0], arguments[0]
        words, distance = (
            ArrayPointer(context, builder, kind, builder.extract_value(group_value, place))
            for place, kind in enumerate(group_kind.types)
        )
        table = ArrayPointer(context, builder, signature.args[1], arguments[1])
        limits = ArrayPointer(context, builder, signature.args[3], arguments[3])
        lanes = Lanes(context, builder, WORD_LANE_BITS)
        total = lanes.variable(lanes.constant(0))
        begin = builder.mul(arguments[2], words.length)
        with cgutils.for_range_slice(builder, ZERO64, words.length, ONE64, I64) as (word, _):
            one_word = lanes.spread(table.scalar(builder.add(begin, word)))
            differing = builder.xor(lanes.load(words, builder.mul(word, lanes.width)), one_word)
            builder.store(builder.add(builder.load(total), lanes.call("ctpop", differing)), total)
        sums = builder.load(total)
        lanes.store(sums, distance, ZERO64)
        return lanes.any_within(sums, lanes.load(limits, builder.mul(arguments[4], lanes.width)))

    return signature, generate


@njit(nogil=True, cache=True)
def _scan_bits(group: BitGroup, candidates: Words, size_of: Integers, buffers: Buffers, layout: KeyLayout) -> None:
    keys, counters, histogram, denominator, limit = buffers
    distance = group.distance
    for row in range(len(candidates)):
        if bits_within(group, candidates, row, limit, size_of[row]):
            offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, size_of[row], row)


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
        return row_tiles(len(self.queries), lane_count(WORD_LANE_BITS))

    def bits_of(self, tile: Integers) -> int:
        return WORD_LANE_BITS

    def denominators(self, tile: Integers) -> Integers:
        """Per distinct number of ones and lane, the ones of both filters; two empty filters are equal."""
        if not self.by_ones:
            return np.ones((1, len(tile)), np.int64)
        ones = self.sizes[:, None] + count_ones(self.queries[tile])[None, :]  # (S, L)
        return np.asarray(np.maximum(ones, 1))

    def size_by_row(self) -> Integers:
        return self.size_of

    def scan(self, tile: Integers, buffers: Buffers, layout: KeyLayout) -> None:
        lanes = lane_count(WORD_LANE_BITS)
        words = np.zeros((self.queries.shape[1], lanes), np.uint64)
        words[:, : len(tile)] = self.queries[tile].T
        _scan_bits(BitGroup(words, np.zeros(lanes, np.int64)), self.candidates, self.size_of, buffers, layout)


# Exact K nearest FEDERAL numeric filters without the filters
#
# With its pivots sorted, a FEDERAL filter of a number is one run of ones, ``[low, high)``. The Hamming distance of two
# filters is therefore ``|A| + |B| - 2 * overlap``: two integers per field replace a filter of any size. This is for
# simulation and for a party's own preview, where one process holds the pivots.
#
# Letters: L lanes, F fields, n candidates.


RANK_LANE_BITS = 32
RankRuns = NDArray[np.int32]


class RankGroup(NamedTuple):
    """The runs of a group's queries, one query per lane, and their latest distances."""

    runs: RankRuns  # (2 F, L): low and high of every field in turn
    ones: RankRuns  # (L,)
    distance: RankRuns  # (L,)


@intrinsic
def ranks_within(typing_context: Any, group: Any, candidates: Any, row: Any, ones: Any, limit: Any) -> Any:
    """Hamming distances of one candidate to all lanes; true if any keeps its limit."""
    signature = types.boolean(group, candidates, types.int64, types.int64, limit)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        runs, query_ones, distance = (
            ArrayPointer(context, builder, kind, builder.extract_value(arguments[0], place))
            for place, kind in enumerate(signature.args[0].types)
        )
        table = ArrayPointer(context, builder, signature.args[1], arguments[1])
        limits = ArrayPointer(context, builder, signature.args[4], arguments[4])
        lanes = Lanes(context, builder, RANK_LANE_BITS)
        total = lanes.variable(builder.add(lanes.load(query_ones, ZERO64), lanes.spread(arguments[3])))
        begin = builder.mul(arguments[2], runs.length)
        with cgutils.for_range_slice(builder, ZERO64, runs.length, ir.Constant(I64, 2), I64) as (side, _):
            low = lanes.load(runs, builder.mul(side, lanes.width))
            high = lanes.load(runs, builder.mul(builder.add(side, ONE64), lanes.width))
            place = builder.add(begin, side)
            top = lanes.call("smin", high, lanes.spread(table.scalar(builder.add(place, ONE64))))
            bottom = lanes.call("smax", low, lanes.spread(table.scalar(place)))
            overlap = lanes.call("smax", builder.sub(top, bottom), lanes.constant(0))
            twice = builder.shl(overlap, lanes.constant(1))
            builder.store(builder.sub(builder.load(total), twice), total)
        sums = builder.load(total)
        lanes.store(sums, distance, ZERO64)
        return lanes.any_within(sums, lanes.load(limits, ZERO64))

    return signature, generate


@njit(nogil=True, cache=True)
def _scan_ranks(group: RankGroup, candidates: RankRuns, ones: Integers, buffers: Buffers, layout: KeyLayout) -> None:
    keys, counters, histogram, denominator, limit = buffers
    distance = group.distance
    for row in range(len(candidates)):
        if ranks_within(group, candidates, row, ones[row], limit):
            offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, 0, row)


class RankKernel:
    """Hamming distances of FEDERAL numeric filters from groups of queries to all candidates."""

    ascending = True

    def __init__(self, queries: RankRuns, candidates: RankRuns) -> None:
        self.queries, self.candidates = queries, candidates
        self.ones, self.query_ones = _count_run_ones(candidates), _count_run_ones(queries)
        self.n_candidates, self.largest_denominator = len(candidates), 1
        self.largest_numerator = int(self.ones.max() + self.query_ones.max())

    def tiles(self) -> list[Integers]:
        return row_tiles(len(self.queries), lane_count(RANK_LANE_BITS))

    def bits_of(self, tile: Integers) -> int:
        return RANK_LANE_BITS

    def denominators(self, tile: Integers) -> Integers:
        return np.ones((1, len(tile)), np.int64)

    def size_by_row(self) -> Integers:
        return np.zeros(self.n_candidates, np.int64)

    def scan(self, tile: Integers, buffers: Buffers, layout: KeyLayout) -> None:
        lanes = lane_count(RANK_LANE_BITS)
        runs = np.zeros((self.queries.shape[1], lanes), np.int32)
        runs[:, : len(tile)] = self.queries[tile].T
        ones = np.zeros(lanes, np.int32)
        ones[: len(tile)] = self.query_ones[tile]
        _scan_ranks(RankGroup(runs, ones, np.zeros(lanes, np.int32)), self.candidates, self.ones, buffers, layout)


def _count_run_ones(runs: RankRuns) -> Integers:
    return np.asarray((runs[:, 1::2].astype(np.int64) - runs[:, 0::2]).sum(axis=1))


# Exact K nearest filters by the triangle inequality, where the data's intrinsic dimension is low
#
# Some candidates serve as centres; every other belongs to its nearest centre and is sorted by its distance to it. A
# query that knows its distance to a centre needs from that cell only the ring of candidates whose own distance to the
# centre differs by at most its present K-th distance. On filters of places about 2 % of all pairs are left; on
# filters of names nearly all, so a sample decides whether this pays (see ``share_evaluated``).


MAX_CELLS = 256
QUERIES_PER_CELL_TILE = 256
SAMPLED_QUERIES = 200
SAMPLED_CANDIDATES = 8192


class CandidateCells(NamedTuple):
    """Candidates by cell, inside a cell by distance to its centre."""

    centres: Words
    begins: Integers
    words: Words
    rows: Integers
    to_centre: Integers


class CellSearch:
    """Search of filters by rings around centres."""

    def __init__(self, queries: Words, candidates: Words) -> None:
        self.queries, self.n_candidates = queries, len(candidates)
        n_cells = max(1, min(MAX_CELLS, self.n_candidates // 64))
        centres = candidates[np.linspace(0, self.n_candidates - 1, n_cells).astype(np.int64)]
        with ThreadPoolExecutor() as pool:
            parts = pool.map(
                lambda rows: _nearest_centres(candidates[rows], centres), row_tiles(self.n_candidates, 8192)
            )
            cell, apart = np.hstack(list(parts))
        order = np.lexsort((apart, cell))
        begins = np.searchsorted(cell[order], np.arange(n_cells + 1))
        self.cells = CandidateCells(np.ascontiguousarray(centres), begins, candidates[order], order, apart[order])
        self.size_of = np.zeros(self.n_candidates, np.int64)

    def tiles(self) -> list[Integers]:
        return row_tiles(len(self.queries), QUERIES_PER_CELL_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        partner, distance, _ = self.search(tile, k)
        return partner, distance

    def search(self, tile: Integers, k: int) -> tuple[Integers, Floats, int]:
        """Partners, distances, and how many distances were computed for them."""
        layout = key_layout(
            k,
            largest_numerator=WORD_LANE_BITS * self.queries.shape[1],
            largest_denominator=1,
            n_candidates=self.n_candidates,
        )
        buffers = new_buffers(layout, np.ones((1, 1), np.int64), 1, WORD_LANE_BITS)
        partner, distance = np.empty((len(tile), k), np.int64), np.empty((len(tile), k))
        evaluated = _search_tile(self.queries[tile], self.cells, buffers, layout, self.size_of, partner, distance)
        return partner, distance, int(evaluated)


def share_evaluated(queries: Words, candidates: Words, k: int) -> float:
    """Which part of all pairs the rings leave, estimated from a spread sample of both sides."""
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
        total += popcount(left[word] ^ table[row, word])
    return total


@njit(nogil=True, cache=True)
def _nearest_centres(candidates: Words, centres: Words) -> Integers:
    """For every candidate its centre, and below that its distance to it."""
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
    buffers: Buffers,
    layout: KeyLayout,
    size_of: Integers,
    partner: Integers,
    distance: Floats,
) -> int:
    """Answer the queries one after the other with the same buffers; the number of distances computed."""
    evaluated = 0
    for query in range(len(queries)):
        clear_buffers(buffers)
        evaluated += _search_rings(queries[query], cells, buffers, layout)
        write_best(buffers, layout, size_of, partner[query : query + 1], distance[query : query + 1])
    return evaluated


@njit(nogil=True, cache=True)
def _search_rings(query: Words, cells: CandidateCells, buffers: Buffers, layout: KeyLayout) -> int:
    """Fill the one lane's buffer, nearest cells first; the number of distances computed."""
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
        for place in range(_first_at_least(to_centre, begin, end, apart[cell] - limit[0, 0]), end):
            if to_centre[place] - apart[cell] > limit[0, 0]:
                break
            evaluated += 1
            distance[0] = _hamming(query, words, place)
            if distance[0] <= limit[0, 0]:
                offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, 0, rows[place])
    return evaluated


@njit(nogil=True, cache=True)
def _first_at_least(values: Integers, begin: int, end: int, least: int) -> int:
    """Binary search in an ascending part of an array."""
    while begin < end:
        middle = (begin + end) // 2
        if values[middle] < least:
            begin = middle + 1
        else:
            end = middle
    return begin
