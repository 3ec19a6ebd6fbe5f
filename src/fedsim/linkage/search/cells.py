"""Exact K nearest filters by the triangle inequality, where the data's intrinsic dimension is low.

Some candidates serve as centres; every other belongs to its nearest centre and is sorted by its distance to it. A query
that knows its distance to a centre needs from that cell only the ring of candidates whose own distance to the centre
differs by at most its present K-th distance. On filters of places about 2 % of all pairs are left; on filters of names
nearly all, so a sample decides whether this pays (see ``share_evaluated``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numba import njit

from fedsim.linkage.search.bits import BITS_PER_LANE, Words
from fedsim.linkage.search.lanes import popcount
from fedsim.linkage.search.select import Buffers, KeyLayout, clear, key_layout, new_buffers, offer_lanes, write_best
from fedsim.linkage.search.tiles import tiles_of
from fedsim.types import Floats, Integers

MOST_CELLS = 256
QUERIES_PER_TILE = 256
SAMPLED_QUERIES = 200
SAMPLED_CANDIDATES = 8192


class Cells(NamedTuple):
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
        n_cells = max(1, min(MOST_CELLS, self.n_candidates // 64))
        centres = candidates[np.linspace(0, self.n_candidates - 1, n_cells).astype(np.int64)]
        with ThreadPoolExecutor() as pool:
            parts = pool.map(
                lambda rows: _nearest_centres(candidates[rows], centres), tiles_of(self.n_candidates, 8192)
            )
            cell, apart = np.hstack(list(parts))
        order = np.lexsort((apart, cell))
        begins = np.searchsorted(cell[order], np.arange(n_cells + 1))
        self.cells = Cells(np.ascontiguousarray(centres), begins, candidates[order], order, apart[order])
        self.size_of = np.zeros(self.n_candidates, np.int64)

    def tiles(self) -> list[Integers]:
        return tiles_of(len(self.queries), QUERIES_PER_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        partner, distance, _ = self.search(tile, k)
        return partner, distance

    def search(self, tile: Integers, k: int) -> tuple[Integers, Floats, int]:
        """Partners, distances, and how many distances were computed for them."""
        layout = key_layout(
            k,
            largest_numerator=BITS_PER_LANE * self.queries.shape[1],
            largest_denominator=1,
            n_candidates=self.n_candidates,
        )
        buffers = new_buffers(layout, np.ones((1, 1), np.int64), 1, BITS_PER_LANE)
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
    cells: Cells,
    buffers: Buffers,
    layout: KeyLayout,
    size_of: Integers,
    partner: Integers,
    distance: Floats,
) -> int:
    """Answer the queries one after the other with the same buffers; the number of distances computed."""
    evaluated = 0
    for query in range(len(queries)):
        clear(buffers)
        evaluated += _search_rings(queries[query], cells, buffers, layout)
        write_best(buffers, layout, size_of, partner[query : query + 1], distance[query : query + 1])
    return evaluated


@njit(nogil=True, cache=True)
def _search_rings(query: Words, cells: Cells, buffers: Buffers, layout: KeyLayout) -> int:
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
