"""Exact K nearest by blocks of plain distances: slower, but right for every metric that can compute a block.

This is how a weighted sum of fields is searched, and what a new metric gets for free.

Letters: T queries of a tile, C candidates of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numba import njit

from fedsim.linkage.search.distinct import Records, count, part
from fedsim.linkage.search.tiles import tiles_of
from fedsim.types import Floats, Integers

QUERIES_PER_TILE = 32
CANDIDATES_PER_CHUNK = 32_768


class Blocks(Protocol):
    """Distances from some of the queries to all candidates of one chunk."""

    def block(self, tile: Integers) -> Floats: ...


BlocksOf = Callable[[Records, Records], Blocks]


class BlockSearch:
    """Search of all candidates, chunk by chunk."""

    def __init__(self, queries: Records, candidates: Records, blocks_of: BlocksOf) -> None:
        self.n_queries, n_candidates = count(queries), count(candidates)
        self.firsts = range(0, n_candidates, CANDIDATES_PER_CHUNK)
        self.chunks = [
            blocks_of(queries, part(candidates, slice(first, first + CANDIDATES_PER_CHUNK))) for first in self.firsts
        ]

    def tiles(self) -> list[Integers]:
        return tiles_of(self.n_queries, QUERIES_PER_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        partner, distance = np.zeros((len(tile), k), np.int64), np.full((len(tile), k), np.inf)
        for first, chunk in zip(self.firsts, self.chunks, strict=True):
            _merge(chunk.block(tile), first, partner, distance)
        return partner, distance


@njit(nogil=True, cache=True)
def insert(partner: Integers, distance: Floats, row: int, value: float) -> bool:
    """Insert into a list sorted by (distance, row) if it belongs there; rows must come in ascending order."""
    place = len(distance) - 1
    if value >= distance[place]:
        return False
    while place > 0 and distance[place - 1] > value:
        distance[place], partner[place] = distance[place - 1], partner[place - 1]
        place -= 1
    distance[place], partner[place] = value, row
    return True


@njit(nogil=True, cache=True)
def _merge(block: Floats, first: int, partner: Integers, distance: Floats) -> None:
    """Merge a block of distances into every query's list."""
    for query in range(block.shape[0]):
        for place in range(block.shape[1]):
            if block[query, place] < distance[query, -1]:
                insert(partner[query], distance[query], first + place, block[query, place])
