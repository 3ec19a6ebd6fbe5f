"""Exact K nearest points by a k-d tree.

Letters: T queries of a tile, U distinct points, d dimensions.
"""

from collections.abc import Callable
from copy import copy
from typing import Self

import numpy as np
from numba import njit
from scipy.spatial import cKDTree

from fedsim.linkage.search.runner import distinct_records, split_rows
from fedsim.privacy.geodesy import EARTH_RADIUS
from fedsim.types import Floats, Integers

# SciPy's tree is fast, but the order of ties and the choice among them at the boundary are arbitrary.
# Here equal points become one node, one neighbour more than needed is fetched, distances are recomputed with the
# metric's formula and sorted by (distance, row). If the extra neighbour is not clearly beyond the K-th, the complete
# ball up to the K-th distance is fetched. The result is therefore exact for grids and duplicates, too.

QUERIES_PER_TILE = 2048
TIE_TOLERANCE = 1e-9  # relative; far above the rounding of either distance, far below any real gap

ExactDistance = Callable[[Floats, Floats, Integers], Floats]


@njit(nogil=True, cache=True)
def euclidean(queries: Floats, points: Floats, found: Integers) -> Floats:
    """Return the distances from every query to its own list of points, summed over the dimensions in order."""
    distances = np.empty(found.shape)
    for query in range(found.shape[0]):
        for place in range(found.shape[1]):
            total = 0.0
            for axis in range(queries.shape[1]):
                step = queries[query, axis] - points[found[query, place], axis]
                total += step * step
            distances[query, place] = np.sqrt(total)
    return distances


@njit(nogil=True, cache=True)
def great_circle(queries: Floats, points: Floats, found: Integers) -> Floats:
    """Return haversine distances in metres; queries and points are (latitude, longitude) in radians."""
    distances = np.empty(found.shape)
    for query in range(found.shape[0]):
        latitude, longitude = queries[query, 0], queries[query, 1]
        for place in range(found.shape[1]):
            other = found[query, place]
            up = np.sin((points[other, 0] - latitude) / 2)
            across = np.sin((points[other, 1] - longitude) / 2)
            square = up * up + np.cos(latitude) * np.cos(points[other, 0]) * across * across
            distances[query, place] = 2 * EARTH_RADIUS * np.arcsin(min(1.0, np.sqrt(square)))
    return distances


class TreeSearch:
    """Search by k-d tree in ``place(points)``, where distances grow with the metric's distances up to ``rounding``."""

    def __init__(
        self,
        queries: Floats,
        candidates: Floats,
        exact: ExactDistance,
        *,
        place: Callable[[Floats], Floats],
        rounding: float,
    ) -> None:
        self.exact, self.place, self.rounding = exact, place, rounding
        first, node_of = distinct_records(candidates)
        self.points = np.ascontiguousarray(candidates[first])  # (U, d)
        # The rows at node u are rows[begins[u] : begins[u + 1]], ascending.
        self.rows = np.argsort(node_of, kind="stable")
        self.begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(node_of, minlength=len(first)))])
        self.queries, self.places = queries, place(queries)
        self.tree = cKDTree(place(self.points))

    def with_queries(self, queries: Floats) -> Self:
        """Return the same tree for other queries."""
        other = copy(self)
        other.queries, other.places = queries, self.place(queries)
        return other

    def tiles(self) -> list[Integers]:
        """Group neighbouring queries: a tile then visits the same branches of the tree, which is twice as fast."""
        return split_rows(np.lexsort(self.places.T[:2]), QUERIES_PER_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        wanted = min(k + 1, self.tree.n)
        reach, found = self.tree.query(self.places[tile], k=np.arange(1, wanted + 1))
        exact = self.exact(self.queries[tile], self.points, found)
        partner, distance = np.empty((len(tile), k), np.int64), np.empty((len(tile), k))
        farthest = _rank(exact, found, self.begins, self.rows, partner, distance)
        if wanted < self.tree.n:
            needed = reach[np.arange(len(tile)), farthest] * (1 + TIE_TOLERANCE) + self.rounding
            for place in np.flatnonzero(reach[:, -1] <= needed):
                query, one = tile[place], slice(place, place + 1)
                # all nodes up to the K-th distance and a little beyond
                ball = self.tree.query_ball_point(self.places[query], needed[place] * (1 + TIE_TOLERANCE))
                near = np.array(ball, np.int64)[None, :]
                exact = self.exact(self.queries[query : query + 1], self.points, near)
                order = np.argsort(exact[0], kind="stable")
                _rank(exact[:, order], near[:, order], self.begins, self.rows, partner[one], distance[one])
        return partner, distance


@njit(nogil=True, cache=True)
def _rank(
    exact: Floats, found: Integers, begins: Integers, rows: Integers, partner: Integers, distance: Floats
) -> Integers:
    """Write the K best rows of every query by (distance, row); return the farthest node that each query needed."""
    k = partner.shape[1]
    farthest = np.zeros(len(exact), np.int64)
    for query in range(len(exact)):
        if _in_order(exact, found, begins, query, k):
            for rank in range(k):
                partner[query, rank] = rows[begins[found[query, rank]]]
                distance[query, rank] = exact[query, rank]
            farthest[query] = k - 1
            continue
        order = _insertion_order(exact[query])
        filled, place = 0, 0
        while filled < k:
            end = place
            while end < len(order) and exact[query, order[end]] == exact[query, order[place]]:
                farthest[query] = max(farthest[query], order[end])
                end += 1
            tied = _rows_at(found[query], order[place:end], begins, rows)
            taken = min(len(tied), k - filled)
            partner[query, filled : filled + taken] = tied[:taken]
            distance[query, filled : filled + taken] = exact[query, order[place]]
            filled, place = filled + taken, end
    return farthest


@njit(nogil=True, cache=True)
def _in_order(exact: Floats, found: Integers, begins: Integers, query: int, k: int) -> bool:
    """Return true in the common case: one record at each of the first K nodes, and no ties up to the next node."""
    for place in range(k):
        alone = begins[found[query, place] + 1] - begins[found[query, place]] == 1
        nearer = place + 1 >= exact.shape[1] or exact[query, place] < exact[query, place + 1]
        if not (alone and nearer):
            return False
    return True


@njit(nogil=True, cache=True)
def _insertion_order(values: Floats) -> Integers:
    """Return the stable ascending order of values that are almost sorted."""
    order = np.arange(len(values))
    for place in range(1, len(values)):
        moving, hole = order[place], place
        while hole > 0 and values[order[hole - 1]] > values[moving]:
            order[hole] = order[hole - 1]
            hole -= 1
        order[hole] = moving
    return order


@njit(nogil=True, cache=True)
def _rows_at(found: Integers, places: Integers, begins: Integers, rows: Integers) -> Integers:
    """Return the rows of all records at these nodes, ascending."""
    if len(places) == 1:
        node = found[places[0]]
        return rows[begins[node] : begins[node + 1]]
    total = 0
    for place in places:
        total += begins[found[place] + 1] - begins[found[place]]
    tied, filled = np.empty(total, np.int64), 0
    for place in places:
        here = rows[begins[found[place]] : begins[found[place] + 1]]
        tied[filled : filled + len(here)] = here
        filled += len(here)
    tied.sort()
    return tied
