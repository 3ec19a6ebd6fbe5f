"""Exact K nearest filters by the triangle inequality, where the data's intrinsic dimension is low.

Some candidates serve as centres; every other belongs to its nearest centre and is sorted by its distance to it. A query
that knows its distance to a centre needs from that cell only the ring of candidates whose own distance to the centre
differs by at most its present K-th distance. On filters of places about 2 % of all pairs are left; on filters of names
nearly all, so a sample decides whether this pays (see ``share_evaluated``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fedsim.linkage.search.bits import BITS_PER_LANE, BitKernel, Words
from fedsim.linkage.search.lanes import popcount
from fedsim.linkage.search.run import LaneSearch, run
from fedsim.linkage.search.select import Buffers, KeyLayout, key_layout, new_buffers, offer_lanes, write_best
from fedsim.linkage.search.tiles import tiles_of
from fedsim.types import Floats, Integers

MOST_CELLS = 256
QUERIES_PER_TILE = 256
SAMPLE = 200


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
        nearest, to_centre = run(LaneSearch(BitKernel(candidates, centres, by_ones=False)), self.n_candidates, 1)
        cell, apart = nearest[:, 0], to_centre[:, 0].astype(np.int64)
        order = np.lexsort((apart, cell))
        begins = np.searchsorted(cell[order], np.arange(n_cells + 1))
        self.cells = Cells(np.ascontiguousarray(centres), begins, candidates[order], order, apart[order])
        self.size_of = np.zeros(self.n_candidates, np.int64)

    def tiles(self) -> list[Integers]:
        return tiles_of(len(self.queries), QUERIES_PER_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        partner, distance, _ = self._search(tile, k)
        return partner, distance

    def share_evaluated(self, k: int) -> float:
        """Which part of all pairs a spread sample of the queries had to compute."""
        sample = np.unique(np.linspace(0, len(self.queries) - 1, SAMPLE).astype(np.int64))
        evaluated = self._search(sample, k)[2]
        return evaluated / (len(sample) * self.n_candidates)

    def _search(self, tile: Integers, k: int) -> tuple[Integers, Floats, int]:
        layout = key_layout(
            k,
            largest_numerator=BITS_PER_LANE * self.queries.shape[1],
            largest_denominator=1,
            n_candidates=self.n_candidates,
        )
        partner, distance = np.empty((len(tile), k), np.int64), np.empty((len(tile), k))
        evaluated = 0
        for place, query in enumerate(tile):
            buffers = new_buffers(layout, np.ones((1, 1), np.int64), 1, BITS_PER_LANE)
            evaluated += _search_rings(self.queries[query], self.cells, buffers, layout)
            write_best(buffers, layout, self.size_of, partner[place : place + 1], distance[place : place + 1])
        return partner, distance, evaluated


@njit(nogil=True, cache=True)
def _hamming(left: Words, table: Words, row: int) -> int:
    total = 0
    for word in range(len(left)):
        total += popcount(left[word] ^ table[row, word])
    return total


@njit(nogil=True, cache=True)
def _search_rings(query: Words, cells: Cells, buffers: Buffers, layout: KeyLayout) -> int:
    """Fill the one lane's buffer, nearest cells first; the number of distances computed."""
    centres, begins, words, rows, to_centre = cells
    keys, counters, histogram, denominator, limit = buffers
    distance, evaluated = np.zeros(1, np.int64), len(centres)
    apart = np.empty(len(centres), np.int64)
    for cell in range(len(centres)):
        apart[cell] = _hamming(query, centres, cell)
    for cell in np.argsort(apart):
        begin, end = begins[cell], begins[cell + 1]
        inner = begin + np.searchsorted(to_centre[begin:end], apart[cell] - limit[0, 0])
        for place in range(inner, end):
            if to_centre[place] - apart[cell] > limit[0, 0]:
                break
            evaluated += 1
            distance[0] = _hamming(query, words, place)
            if distance[0] <= limit[0, 0]:
                offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, 0, rows[place])
    return evaluated
