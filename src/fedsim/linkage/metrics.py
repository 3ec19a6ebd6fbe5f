"""The distance metrics, their search backends, and the registry that maps names to metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError, SettingError
from fedsim.linkage import identifiers
from fedsim.linkage.search import points
from fedsim.linkage.search.filters import (
    BitKernel,
    CellSearch,
    RankKernel,
    RankRuns,
    Words,
    count_ones,
    share_evaluated,
    to_words,
)
from fedsim.linkage.search.points import FlatSearch
from fedsim.linkage.search.runner import (
    QUERIES_PER_BLOCK_TILE,
    BlockSearch,
    DistanceBlocks,
    LaneSearch,
    Records,
    Search,
    count_records,
    row_tiles,
)
from fedsim.linkage.search.text import TextKernel
from fedsim.privacy.geodesy import on_unit_sphere
from fedsim.registry import METRICS
from fedsim.types import Floats, Integers

# What a metric is, and what it can offer to the planner
#
# A metric prepares records (checks them, brings them into the search's form), computes blocks of plain distances, and
# lists its exact searches, best first. A metric without a search of its own offers ``by_blocks`` alone.


@dataclass(frozen=True)
class Backend:
    """One way to search, why it is offered, how to start it, and a test whether it pays where that is not known."""

    name: str
    reason: str
    start: Callable[[], Search]
    pays: Callable[[], bool] = lambda: True


GPU = "gpu"  # the one backend name the planner treats apart


class Metric(Protocol):
    """A distance between identifiers; ``whole`` says that all its values are whole numbers."""

    @property
    def name(self) -> str: ...

    @property
    def whole(self) -> bool: ...

    def prepare(self, records: Any, table: str) -> Records: ...

    def blocks(self, left: Records, right: Records) -> DistanceBlocks: ...

    def backends(self, queries: Records, candidates: Records, k: int) -> Sequence[Backend]: ...


@runtime_checkable
class SaturatingMetric(Protocol):
    """A metric that goes flat: it can say which pairs have nothing in common, in all or in one of their fields."""

    def disjoint(self, left: Records, right: Records) -> NDArray[np.bool_]: ...


def blocks_backend(metric: Metric, queries: Records, candidates: Records) -> Backend:
    """The search that needs nothing but blocks of distances."""
    return Backend("blocks", "plain distances of every pair", lambda: BlockSearch(queries, candidates, metric.blocks))


def distance_matrix(metric: Metric, left: Records, right: Records) -> Floats:
    """All distances between two small sets of prepared records."""
    blocks, n_left = metric.blocks(left, right), count_records(left)
    return np.vstack([blocks.block(tile) for tile in row_tiles(n_left, QUERIES_PER_BLOCK_TILE)])


@dataclass(frozen=True)
class FormulaBlocks:
    """Blocks of a formula over two arrays of records."""

    formula: Callable[[Any, Any], Floats]
    left: Any
    right: Any

    def block(self, tile: Integers) -> Floats:
        return self.formula(self.left[tile], self.right)


# Distances between encoded identifiers: bit filters, and FEDERAL numeric filters in rank form


MAX_SHARE_FOR_CELLS = 0.05  # a pair in a ring costs about twenty times a pair in the flat scan
MIN_QUERIES_FOR_CELLS = 4096  # fewer do not repay building the cells


@dataclass(frozen=True)
class Hamming:
    """Number of differing bits of two filters."""

    name: str = "hamming"
    whole: bool = True

    def prepare(self, records: Any, table: str) -> Words:
        return to_words(identifiers.filters(records, table))

    def blocks(self, left: Words, right: Words) -> DistanceBlocks:
        return FormulaBlocks(_hamming_distances, left, right)

    def disjoint(self, left: Words, right: Words) -> NDArray[np.bool_]:
        return _disjoint_filters(left, right)

    def backends(self, queries: Words, candidates: Words, k: int) -> Sequence[Backend]:
        def gpu() -> Search:
            from fedsim.linkage.search.gpu import hamming_search  # noqa: PLC0415 - torch takes seconds to import

            return hamming_search(queries, candidates)

        return [
            Backend(
                "cells",
                f"rings around centres: a sample needed less than {MAX_SHARE_FOR_CELLS:.0%} of the pairs",
                lambda: CellSearch(queries, candidates),
                pays=lambda: (
                    len(queries) >= MIN_QUERIES_FOR_CELLS
                    and share_evaluated(queries, candidates, k) < MAX_SHARE_FOR_CELLS
                ),
            ),
            Backend(
                "flat",
                f"popcount of every pair of {64 * candidates.shape[1]}-bit filters",
                lambda: LaneSearch(BitKernel(queries, candidates, by_ones=False)),
            ),
            blocks_backend(self, queries, candidates),
            Backend(GPU, "matrix product of the bits on the GPU", gpu),
        ]


@dataclass(frozen=True)
class Dice:
    """One minus twice the common ones over the ones of both filters; two empty filters are equal."""

    name: str = "dice"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Words:
        return to_words(identifiers.filters(records, table))

    def blocks(self, left: Words, right: Words) -> DistanceBlocks:
        return FormulaBlocks(_dice_distances, left, right)

    def disjoint(self, left: Words, right: Words) -> NDArray[np.bool_]:
        return _disjoint_filters(left, right)

    def backends(self, queries: Words, candidates: Words, k: int) -> Sequence[Backend]:
        flat = Backend(
            "flat", "popcount of every pair", lambda: LaneSearch(BitKernel(queries, candidates, by_ones=True))
        )
        return [flat, blocks_backend(self, queries, candidates)]


def _hamming_distances(left: Words, right: Words) -> Floats:
    total = np.zeros((len(left), len(right)), np.int64)
    for word in range(left.shape[1]):
        total += np.bitwise_count(left[:, word, None] ^ right[None, :, word])
    return total.astype(np.float64)


def _disjoint_filters(left: Words, right: Words) -> NDArray[np.bool_]:
    return np.asarray(~(left & right).any(axis=1))


def _dice_distances(left: Words, right: Words) -> Floats:
    ones = count_ones(left)[:, None] + count_ones(right)[None, :]
    return np.asarray(_hamming_distances(left, right) / np.maximum(ones, 1))


@dataclass(frozen=True)
class RankHamming:
    """Hamming distance of FEDERAL numeric filters in rank form: columns low, high of every field in turn."""

    name: str = "rank-hamming"
    whole: bool = True

    def prepare(self, records: Any, table: str) -> RankRuns:
        runs = identifiers.numbers(records, table)
        sound = (
            runs.shape[1] % 2 == 0
            and (runs == np.floor(runs)).all()
            and (runs[:, 0::2] <= runs[:, 1::2]).all()
            and (runs >= 0).all()
        )
        if not sound or runs.max() > 2**30 / runs.shape[1]:
            raise InputError(
                f"the {table} table holds no runs; give low and high pivot ranks per field, 0 <= low <= high"
            )
        return np.ascontiguousarray(runs.astype(np.int32))

    def blocks(self, left: RankRuns, right: RankRuns) -> DistanceBlocks:
        return FormulaBlocks(_rank_hamming_distances, left, right)

    def disjoint(self, left: RankRuns, right: RankRuns) -> NDArray[np.bool_]:
        low, high = np.maximum(left[:, 0::2], right[:, 0::2]), np.minimum(left[:, 1::2], right[:, 1::2])
        return np.asarray((high <= low).any(axis=1))

    def backends(self, queries: RankRuns, candidates: RankRuns, k: int) -> Sequence[Backend]:
        flat = Backend(
            "flat", "two integers per field of every pair", lambda: LaneSearch(RankKernel(queries, candidates))
        )
        return [flat, blocks_backend(self, queries, candidates)]


def _rank_hamming_distances(left: RankRuns, right: RankRuns) -> Floats:
    total = np.zeros((len(left), len(right)), np.int64)
    for side in range(0, left.shape[1], 2):
        low = np.maximum(left[:, side, None], right[None, :, side])
        high = np.minimum(left[:, side + 1, None], right[None, :, side + 1])
        ones = (left[:, side + 1] - left[:, side])[:, None] + (right[:, side + 1] - right[:, side])[None, :]
        total += ones - 2 * np.maximum(high - low, 0)
    return total.astype(np.float64)


# Distances between points: columns of numbers, places on Earth, dates


MAX_TREE_DIMENSIONS = 16


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

    def blocks(self, left: Floats, right: Floats) -> DistanceBlocks:
        return FormulaBlocks(_euclidean_distances, left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        dimensions = candidates.shape[1]

        def tree() -> Search:
            return points.TreeSearch(queries, candidates, exact=points.euclidean, place=_identity, rounding=0.0)

        def gpu() -> Search:
            from fedsim.linkage.search.gpu import euclidean_search  # noqa: PLC0415 - torch takes seconds to import

            return euclidean_search(queries, candidates)

        found = [
            Backend("tree", f"k-d tree, best up to {MAX_TREE_DIMENSIONS} dimensions (here {dimensions})", tree),
            Backend(
                "flat",
                f"matrix product with float64 re-ranking, best above {MAX_TREE_DIMENSIONS} dimensions "
                f"(here {dimensions})",
                lambda: FlatSearch(queries, candidates),
            ),
        ]
        ordered = found if dimensions <= MAX_TREE_DIMENSIONS else found[::-1]
        return [
            *ordered,
            blocks_backend(self, queries, candidates),
            Backend(GPU, "float32 on the GPU, float64 re-ranking", gpu, pays=lambda: dimensions > MAX_TREE_DIMENSIONS),
        ]


def _identity(values: Floats) -> Floats:
    return values


def _euclidean_distances(left: Floats, right: Floats) -> Floats:
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

    def blocks(self, left: Floats, right: Floats) -> DistanceBlocks:
        return FormulaBlocks(_great_circle_distances, left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        def tree() -> Search:
            return points.TreeSearch(
                queries, candidates, exact=points.great_circle, place=on_unit_sphere, rounding=4e-15
            )

        return [Backend("tree", "k-d tree on the unit sphere", tree), blocks_backend(self, queries, candidates)]


def _great_circle_distances(left: Floats, right: Floats) -> Floats:
    everyone = np.broadcast_to(np.arange(len(right)), (len(left), len(right)))
    return np.asarray(points.great_circle(left, right, everyone))


@dataclass(frozen=True)
class Days:
    """Difference of two dates in days."""

    name: str = "days"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Floats:
        return identifiers.days(records, table)

    def blocks(self, left: Floats, right: Floats) -> DistanceBlocks:
        return Euclidean().blocks(left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        return Euclidean().backends(queries, candidates, k)


# Distances between texts


@dataclass(frozen=True)
class Levenshtein:
    """Insertions, deletions and substitutions between two texts; normalised: divided by the longer length (paper)."""

    normalised: bool = False

    @property
    def name(self) -> str:
        return "levenshtein-normalised" if self.normalised else "levenshtein"

    @property
    def whole(self) -> bool:
        return not self.normalised

    def prepare(self, records: Any, table: str) -> list[str]:
        return identifiers.strings(records, table)

    def blocks(self, left: list[str], right: list[str]) -> DistanceBlocks:
        return TextKernel(left, right, normalised=self.normalised)

    def backends(self, queries: list[str], candidates: list[str], k: int) -> Sequence[Backend]:
        def lanes() -> Search:
            return LaneSearch(TextKernel(queries, candidates, normalised=self.normalised))

        return [
            Backend("lanes", "bit-parallel edit distance of many queries at once", lanes),
            blocks_backend(self, queries, candidates),
        ]


# Words become metrics here and nowhere else


# The instances that fedsim.registry names.
EUCLIDEAN, GREAT_CIRCLE, DAYS = Euclidean(), GreatCircle(), Days()
LEVENSHTEIN, LEVENSHTEIN_NORMALISED = Levenshtein(), Levenshtein(normalised=True)
HAMMING, DICE, RANK_HAMMING = Hamming(), Dice(), RankHamming()


def get_metric(metric: str | Metric) -> Metric:
    """Return the metric of a name; a metric object is returned as it is.

    >>> get_metric("levenshtein-normalised")
    Levenshtein(normalised=True)
    """
    if isinstance(metric, str):
        named: Metric = METRICS[metric]
        return named
    if isinstance(metric, type) or not hasattr(metric, "prepare"):
        raise SettingError(
            f"a {type(metric).__name__} is not a metric; choose from {', '.join(METRICS)}", code="not-a-metric"
        )
    return metric


# A distance over several columns of different kinds


@dataclass(frozen=True)
class WeightedField:
    """One column of a weighted sum (or several between commas, for places), its metric and its weight.

    >>> WeightedField("lat,lon", "great-circle", weight=0.001).columns
    ['lat', 'lon']
    """

    column: str
    metric: Metric | str
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.measure)
        known = isinstance(self.weight, int | float | np.number) and not isinstance(self.weight, bool)
        if not (known and np.isfinite(self.weight) and self.weight > 0):
            raise SettingError(f"field '{self.column}': a weight is a positive number")

    @property
    def measure(self) -> Metric:
        """The metric itself; ``metric`` may have come as a word."""
        return get_metric(self.metric)

    @property
    def columns(self) -> list[str]:
        return [name.strip() for name in self.column.split(",")]

    def prepare(self, columns: dict[str, Any], table: str) -> Records:
        """This field's columns in its metric's form."""
        absent = [name for name in self.columns if name not in columns]
        if absent:
            raise InputError(f"the {table} table has no column '{absent[0]}', which a field of the weighted sum names")
        return self.measure.prepare({name: columns[name] for name in self.columns}, table)


@dataclass(frozen=True)
class WeightedSum:
    """Sum of several fields' distances, each times its weight: a person's name, birth date and street together."""

    fields: tuple[WeightedField, ...]
    name: str = "weighted-sum"
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.fields:
            raise SettingError("a weighted sum of no fields; give at least one")

    def prepare(self, records: Any, table: str) -> tuple[Records, ...]:
        columns = identifiers.identifier_columns(records, table)
        return tuple(field.prepare(columns, table) for field in self.fields)

    def blocks(self, left: Records, right: Records) -> DistanceBlocks:
        parts = zip(self.fields, left, right, strict=True)
        return _WeightedBlocks([(field.weight, field.measure.blocks(here, there)) for field, here, there in parts])

    def backends(self, queries: Records, candidates: Records, k: int) -> Sequence[Backend]:
        return [blocks_backend(self, queries, candidates)]


@dataclass(frozen=True)
class _WeightedBlocks:
    parts: list[tuple[float, DistanceBlocks]]

    def block(self, tile: Integers) -> Floats:
        with np.errstate(over="ignore"):  # an infinite sum is refused after the search
            total: Floats = sum(weight * blocks.block(tile) for weight, blocks in self.parts)  # type: ignore[assignment]
        return total
