"""Exact K nearest points in many dimensions: a float32 matrix product sifts, float64 decides.

Coordinates are centred and scaled to one before they become float32 (raw GPS in float32 is wrong in the sixth digit).
``|x|^2 + |y|^2 - 2xy`` then misses the true square by at most ``error`` times ``(|x| + |y|)^2``; every candidate that
this error could hide is computed again from the original float64 coordinates.

Letters: T queries of a tile, C candidates of a block, d dimensions.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedsim.linkage.search.blocks import insert
from fedsim.linkage.search.tiles import tiles_of
from fedsim.types import Floats, Integers

QUERIES_PER_TILE = 128
CANDIDATES_PER_BLOCK = 4096

Float32 = NDArray[np.float32]


class FlatSearch:
    """Search of all candidates by blocks of a matrix product."""

    def __init__(self, queries: Floats, candidates: Floats) -> None:
        self.queries, self.candidates = queries, np.ascontiguousarray(candidates)
        centre = candidates.mean(axis=0)
        reach = max(np.abs(candidates - centre).max(), np.abs(queries - centre).max(), np.finfo(np.float64).tiny)
        self.scale = float(2.0 ** np.ceil(np.log2(reach)))
        self.near_queries = ((queries - centre) / self.scale).astype(np.float32)
        self.near_candidates = ((candidates - centre) / self.scale).astype(np.float32)
        self.query_squares = np.square(self.near_queries).sum(axis=1)
        self.candidate_squares = np.square(self.near_candidates).sum(axis=1)
        # (d + 8) roundings of 2**-24 each, doubled for safety, plus what float32 cannot represent at all
        self.error = (queries.shape[1] + 8) * 2.0**-23
        self.floor = 1e-30

    def tiles(self) -> list[Integers]:
        return tiles_of(len(self.queries), QUERIES_PER_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        partner, distance = np.zeros((len(tile), k), np.int64), np.full((len(tile), k), np.inf)
        queries, squares = self.near_queries[tile], self.query_squares[tile]
        for first in range(0, len(self.candidates), CANDIDATES_PER_BLOCK):
            block = slice(first, first + CANDIDATES_PER_BLOCK)
            rough = queries @ self.near_candidates[block].T  # (T, C)
            rough *= -2
            rough += self.candidate_squares[block]
            farthest = np.sqrt(self.candidate_squares[block].max(initial=0))
            margin = (self.error * np.square(np.sqrt(squares) + farthest) + self.floor - squares).astype(np.float64)
            _sift(rough, margin, self.scale, self.queries[tile], self.candidates, first, partner, distance)
        return partner, distance


@njit(nogil=True, cache=True)
def _sift(  # noqa: PLR0913, PLR0917 - numba passes arrays cheaply, tuples of them not
    rough: Float32,
    margin: Floats,
    scale: float,
    queries: Floats,
    candidates: Floats,
    first: int,
    partner: Integers,
    distance: Floats,
) -> None:
    """Compute again, and keep if near enough, every candidate whose rough square may be below the K-th."""
    k = partner.shape[1]
    for query in range(rough.shape[0]):
        worst = distance[query, k - 1] / scale
        limit = np.float32(worst * worst * (1 + 1e-6) + margin[query])
        for place in range(rough.shape[1]):
            if rough[query, place] <= limit:
                total = 0.0
                for axis in range(queries.shape[1]):
                    step = queries[query, axis] - candidates[first + place, axis]
                    total += step * step
                if insert(partner[query], distance[query], first + place, np.sqrt(total)):
                    worst = distance[query, k - 1] / scale
                    limit = np.float32(worst * worst * (1 + 1e-6) + margin[query])
