"""Distances between points: columns of numbers, places on Earth, dates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.errors import InputError
from fedsim.linkage import identifiers
from fedsim.linkage.metric import GPU, Backend, PlainBlocks, by_blocks
from fedsim.linkage.search import points
from fedsim.linkage.search.blocks import Blocks
from fedsim.linkage.search.flat import FlatSearch
from fedsim.linkage.search.run import Search
from fedsim.types import Floats

MOST_TREE_DIMENSIONS = 16


@dataclass(frozen=True)
class Euclidean:
    """Straight-line distance over any number of numeric columns, in their own units."""

    name: str = "euclidean"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Floats:
        values = identifiers.numbers(records, table)
        if np.abs(values).max() > 1e150:
            raise InputError(f"the {table} table holds numbers beyond 1e150, whose squares overflow; scale the columns")
        return values

    def blocks(self, left: Floats, right: Floats) -> Blocks:
        return PlainBlocks(_straight_lines, left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        dimensions = candidates.shape[1]

        def tree() -> Search:
            return points.TreeSearch(queries, candidates, exact=points.euclidean, place=_as_is, blur=0.0)

        def gpu() -> Search:
            from fedsim.linkage.search.gpu import euclidean_search  # noqa: PLC0415 - torch takes seconds to import

            return euclidean_search(queries, candidates)

        found = [
            Backend("tree", f"k-d tree, best up to {MOST_TREE_DIMENSIONS} dimensions (here {dimensions})", tree),
            Backend(
                "flat",
                f"matrix product with float64 re-ranking, best above {MOST_TREE_DIMENSIONS} dimensions "
                f"(here {dimensions})",
                lambda: FlatSearch(queries, candidates),
            ),
        ]
        ordered = found if dimensions <= MOST_TREE_DIMENSIONS else found[::-1]
        return [
            *ordered,
            by_blocks(self, queries, candidates),
            Backend(GPU, "float32 on the GPU, float64 re-ranking", gpu, pays=lambda: dimensions > MOST_TREE_DIMENSIONS),
        ]


def _as_is(values: Floats) -> Floats:
    return values


def _straight_lines(left: Floats, right: Floats) -> Floats:
    total = np.zeros((len(left), len(right)))
    for axis in range(left.shape[1]):
        total += np.square(left[:, axis, None] - right[None, :, axis])
    return np.sqrt(total)


@dataclass(frozen=True)
class GreatCircle:
    """Distance over the Earth's surface in metres, from latitude and longitude in degrees (haversine)."""

    name: str = "great-circle"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Floats:
        degrees = identifiers.coordinates(records, table).copy()
        degrees[degrees[:, 1] == -180, 1] = 180.0  # one meridian, two names
        degrees[np.abs(degrees[:, 0]) == 90, 1] = 0.0  # a pole has every longitude
        return np.radians(degrees)

    def blocks(self, left: Floats, right: Floats) -> Blocks:
        return PlainBlocks(_great_circles, left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        def tree() -> Search:
            place, rounding = points.on_sphere, 4e-15
            return points.TreeSearch(queries, candidates, exact=points.great_circle, place=place, blur=rounding)

        return [Backend("tree", "k-d tree on the unit sphere", tree), by_blocks(self, queries, candidates)]


def _great_circles(left: Floats, right: Floats) -> Floats:
    everyone = np.broadcast_to(np.arange(len(right)), (len(left), len(right)))
    return np.asarray(points.great_circle(left, right, everyone))


@dataclass(frozen=True)
class Days:
    """Difference of two dates in days."""

    name: str = "days"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Floats:
        return identifiers.days(records, table)

    def blocks(self, left: Floats, right: Floats) -> Blocks:
        return Euclidean().blocks(left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        return Euclidean().backends(queries, candidates, k)
