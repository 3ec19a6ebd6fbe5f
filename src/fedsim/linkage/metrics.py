"""Distance metrics and the searches that each of them offers.

A metric prepares records (checks them and converts them to the form that the search needs), computes blocks of plain
distances, and lists its exact searches, fastest first. A new metric does not need its own search: ``blocks_backend``
works for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage import identifiers
from fedsim.linkage.words import WordRules
from fedsim.privacy.geodesy import on_unit_sphere
from fedsim.registry import METRICS, LazyModule
from fedsim.types import POSITION_DTYPE, Bits, Flags, Floats, Integers, Words
from fedsim.validation import validate_integer, validate_number

if TYPE_CHECKING:
    from fedsim.linkage.search import bit_filters, grams, points, runner, simd, text
    from fedsim.linkage.search.grams import GramSearch, GramTexts
    from fedsim.linkage.search.runner import DistanceBlocks, Records, Search
else:  # numba takes a second to import, and parties that do not link need none of its searches
    bit_filters, points = LazyModule("fedsim.linkage.search.bit_filters"), LazyModule("fedsim.linkage.search.points")
    runner, text = LazyModule("fedsim.linkage.search.runner"), LazyModule("fedsim.linkage.search.text")
    grams, simd = LazyModule("fedsim.linkage.search.grams"), LazyModule("fedsim.linkage.search.simd")

MAX_TREE_DIMENSIONS = 16


@dataclass(frozen=True)
class Backend:
    """One way to search: why it is offered, and how to start it.

    An ``exhaustive`` search takes time proportional to the number of candidates; others look at few of them.
    """

    name: str
    reason: str
    start: Callable[[], Search]
    exhaustive: bool = True


class Metric(Protocol):
    """A distance between identifiers.

    A metric may declare in ``CELLS`` which cells it reads: number (the default), text, date or key. With
    ``weighs_by_table`` it declares that a distance also depends on the other candidates.

    Attributes
    ----------
    name
        The name in job files and on the command line.
    whole
        Whether all distances are integers.
    """

    @property
    def name(self) -> str: ...

    @property
    def whole(self) -> bool: ...

    def prepare(self, records: Any, table: str) -> Records:
        """Check records and convert them to the form that the search needs; errors name ``table``."""
        ...

    def blocks(self, left: Records, right: Records) -> DistanceBlocks:
        """Return an object that computes the distances from some left records to all right ones."""
        ...

    def backends(self, queries: Records, candidates: Records, k: int) -> Sequence[Backend]:
        """List the exact searches of this metric, fastest first."""
        ...


@runtime_checkable
class SaturatingMetric(Protocol):
    """A metric that saturates: it knows which pairs have nothing in common, in all or in one of their fields."""

    def disjoint(self, left: Records, right: Records) -> Flags: ...


@runtime_checkable
class PairwiseMetric(Protocol):
    """A metric of encoded records that can compare single fields of given pairs."""

    def pair_distances(self, left: Bits, right: Bits) -> Floats:
        """Return the distance between corresponding left and right rows; NaN where one of them is missing."""
        ...


@runtime_checkable
class SteppedMetric(Protocol):
    """A metric whose distances between two given records are multiples of a step, so they can be guessed exactly.

    ``steps`` returns the step of every pair (i, ``partner[i, j]``).
    """

    def steps(self, queries: Records, candidates: Records, partner: Integers) -> Floats: ...


def blocks_backend(metric: Metric, queries: Records, candidates: Records) -> Backend:
    """Return the search that needs only blocks of distances."""
    return Backend(
        "blocks", "plain distances of every pair", lambda: runner.BlockSearch(queries, candidates, metric.blocks)
    )


def distance_matrix(metric: Metric, left: Records, right: Records) -> Floats:
    """Return all distances between two small sets of prepared records.

    Parameters
    ----------
    metric
        The metric that prepared the records.
    left
        The records of the rows.
    right
        The records of the columns.

    Examples
    --------
    >>> metric = get_metric("euclidean")
    >>> distance_matrix(metric, metric.prepare([[0.0], [3.0]], "a"), metric.prepare([[1.0]], "b")).tolist()
    [[1.0], [2.0]]
    """
    blocks, n_left = metric.blocks(left, right), runner.count_records(left)
    return np.vstack([blocks.block(tile) for tile in runner.row_tiles(n_left, runner.QUERIES_PER_BLOCK_TILE)])


@dataclass(frozen=True)
class FormulaBlocks:
    """Blocks of a formula over two arrays of records."""

    formula: Callable[[Any, Any], Floats]
    left: Any
    right: Any

    def block(self, tile: Integers) -> Floats:
        return self.formula(self.left[tile], self.right)


# Encoded identifiers: bit filters and positions


@dataclass(frozen=True)
class Hamming:
    """Number of bits in which two filters differ."""

    name: str = "hamming"
    whole: bool = True

    def prepare(self, records: Any, table: str) -> Words:
        return runner.to_words(identifiers.filters(records, table))

    def blocks(self, left: Words, right: Words) -> DistanceBlocks:
        return FormulaBlocks(_hamming_distances, left, right)

    def disjoint(self, left: Words, right: Words) -> Flags:
        return np.asarray(~(left & right).any(axis=1))

    def pair_distances(self, left: Bits, right: Bits) -> Floats:
        distance: Floats = np.bitwise_count(left ^ right).sum(axis=1, dtype=np.float64)
        distance[~(left.any(axis=1) & right.any(axis=1))] = np.nan  # a missing value has an empty filter
        return distance

    def backends(self, queries: Words, candidates: Words, k: int) -> Sequence[Backend]:
        flat = f"popcount of every pair of {64 * candidates.shape[1]}-bit filters"
        return [
            Backend("flat", flat, lambda: simd.LaneSearch(bit_filters.BitKernel(queries, candidates, by_ones=False))),
            blocks_backend(self, queries, candidates),
        ]


@dataclass(frozen=True)
class Dice:
    """One minus twice the common ones divided by the ones of both filters; two empty filters are equal."""

    name: str = "dice"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Words:
        return Hamming().prepare(records, table)

    def blocks(self, left: Words, right: Words) -> DistanceBlocks:
        def formula(one: Words, other: Words) -> Floats:
            ones = bit_filters.count_ones(one)[:, None] + bit_filters.count_ones(other)[None, :]
            return np.asarray(_hamming_distances(one, other) / np.maximum(ones, 1))

        return FormulaBlocks(formula, left, right)

    def disjoint(self, left: Words, right: Words) -> Flags:
        return Hamming().disjoint(left, right)

    def pair_distances(self, left: Bits, right: Bits) -> Floats:
        ones = np.bitwise_count(left).sum(axis=1) + np.bitwise_count(right).sum(axis=1)
        return np.asarray(Hamming().pair_distances(left, right) / np.maximum(ones, 1))

    def steps(self, queries: Words, candidates: Words, partner: Integers) -> Floats:
        # One additional common one changes the distance between filters with a and b ones by 2 / (a + b).
        ones = bit_filters.count_ones(queries)[:, np.newaxis] + bit_filters.count_ones(candidates)[partner]  # (n, K)
        return np.asarray(2.0 / np.maximum(ones, 2))

    def backends(self, queries: Words, candidates: Words, k: int) -> Sequence[Backend]:
        def flat() -> Search:
            return simd.LaneSearch(bit_filters.BitKernel(queries, candidates, by_ones=True))

        return [
            Backend("flat", "popcount of every pair", flat),
            blocks_backend(self, queries, candidates),
        ]


def _hamming_distances(left: Words, right: Words) -> Floats:
    total = np.zeros((len(left), len(right)), np.int64)
    for word in range(left.shape[1]):
        total += np.bitwise_count(left[:, word, None] ^ right[None, :, word])
    return total.astype(np.float64)


@dataclass(frozen=True)
class Position:
    """Straight-line distance between encoded positions, in their units."""

    name: str = "position"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Floats:
        packed = identifiers.filters(records, table)
        if packed.shape[1] % POSITION_DTYPE.itemsize:
            message = f"the {table} table does not contain positions; encode places, numbers or dates as positions"
            raise InputError(message, code="not-positions", table=table)
        return np.ascontiguousarray(packed).view(POSITION_DTYPE).astype(np.float64)

    def pair_distances(self, left: Bits, right: Bits) -> Floats:
        return np.asarray(np.linalg.norm(self.prepare(left, "primary") - self.prepare(right, "secondary"), axis=1))

    def blocks(self, left: Floats, right: Floats) -> DistanceBlocks:
        return Euclidean().blocks(left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        return Euclidean().backends(queries, candidates, k)


# Points: columns of numbers, places on Earth, dates


@dataclass(frozen=True)
class Euclidean:
    """Straight-line distance over any number of numeric columns, in their own units."""

    name: str = "euclidean"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Floats:
        values = identifiers.numbers(records, table)
        if np.abs(values).max() > 1e150:
            message = f"the {table} table holds numbers beyond 1e150, whose squares overflow; scale the columns"
            raise InputError(message, code="number-too-large", table=table)
        return values

    def blocks(self, left: Floats, right: Floats) -> DistanceBlocks:
        def formula(one: Floats, other: Floats) -> Floats:
            axes = range(one.shape[1])
            return np.sqrt(sum(np.square(one[:, axis, None] - other[None, :, axis]) for axis in axes))

        return FormulaBlocks(formula, left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        dimensions = candidates.shape[1]

        def tree() -> Search:
            return points.TreeSearch(queries, candidates, points.euclidean, place=lambda values: values, rounding=0.0)

        reason = f"best up to {MAX_TREE_DIMENSIONS} dimensions (here {dimensions})"
        searches = [
            Backend("tree", f"k-d tree, {reason}", tree, exhaustive=False),
            blocks_backend(self, queries, candidates),
        ]
        return searches if dimensions <= MAX_TREE_DIMENSIONS else searches[::-1]


@dataclass(frozen=True)
class GreatCircle:
    """Distance on the surface of the Earth in metres, from latitude and longitude in degrees (haversine)."""

    name: str = "great-circle"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Floats:
        degrees = identifiers.coordinates(records, table).copy()
        degrees[degrees[:, 1] == -180, 1] = 180.0  # the same meridian
        degrees[np.abs(degrees[:, 0]) == 90, 1] = 0.0  # a pole has every longitude
        return np.radians(degrees)

    def blocks(self, left: Floats, right: Floats) -> DistanceBlocks:
        def formula(one: Floats, other: Floats) -> Floats:
            everyone = np.broadcast_to(np.arange(len(other)), (len(one), len(other)))
            return np.asarray(points.great_circle(one, other, everyone))

        return FormulaBlocks(formula, left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        def tree() -> Search:
            return points.TreeSearch(queries, candidates, points.great_circle, place=on_unit_sphere, rounding=4e-15)

        return [
            Backend("tree", "k-d tree on the unit sphere", tree, exhaustive=False),
            blocks_backend(self, queries, candidates),
        ]


@dataclass(frozen=True)
class Days:
    """Difference between two dates in days."""

    CELLS: ClassVar[str] = "date"

    name: str = "days"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Floats:
        return identifiers.days(records, table)

    def blocks(self, left: Floats, right: Floats) -> DistanceBlocks:
        return Euclidean().blocks(left, right)

    def backends(self, queries: Floats, candidates: Floats, k: int) -> Sequence[Backend]:
        return Euclidean().backends(queries, candidates, k)


@dataclass(frozen=True)
class Levenshtein:
    """Number of insertions, deletions and substitutions; normalised: divided by the longer length, as in the paper."""

    CELLS: ClassVar[str] = "text"

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
        return text.TextKernel(left, right, normalised=self.normalised)

    def backends(self, queries: list[str], candidates: list[str], k: int) -> Sequence[Backend]:
        def lanes() -> Search:
            return simd.LaneSearch(text.TextKernel(queries, candidates, normalised=self.normalised))

        reason = "bit-parallel edit distance of many queries at once"
        return [Backend("lanes", reason, lanes), blocks_backend(self, queries, candidates)]


@dataclass(frozen=True)
class QGramDice:
    """One minus the weighted Dice coefficient of the q-grams of all words, for names and titles.

    Every word is marked at both ends and cut into q-grams. The weight of a q-gram reflects how rare its word is (see
    :class:`fedsim.linkage.words.WordWeights`): from 100 for a word in one record down to 1 for a word in all records.
    The distance is ``1 - 2 * common / (ours + theirs)``, where ``common`` sums the lower of the two weights of each
    q-gram. Words are counted only in the secondary table (the candidates), so a query finds the same partners whatever
    other queries there are. Two texts without any word are equal.

    Parameters
    ----------
    q
        Characters per q-gram, 2 or 3.
    rules
        How a text is split into words.

    Examples
    --------
    >>> from fedsim.linkage import topk
    >>> register = ["North Foods Ltd", "Belgor Marine Ltd", "Belgor Foods Ltd"]
    >>> topk(["foods belgr ltd."], register, metric=QGramDice(), k=1)[0].tolist()
    [[2]]
    """

    CELLS: ClassVar[str] = "text"
    weighs_by_table: ClassVar[bool] = True  # so the candidates cannot be searched in independent parts

    q: int = 2
    rules: WordRules = field(default_factory=WordRules)
    name: str = "qgram-dice"
    whole: bool = False

    def __post_init__(self) -> None:
        validate_integer(self.q, "q", least=2, most=3)

    def prepare(self, records: Any, table: str) -> GramTexts:
        return grams.GramTexts(identifiers.strings(records, table), self.rules)

    def blocks(self, left: GramTexts, right: GramTexts) -> GramSearch:
        return grams.GramSearch(left, right, self.q)

    def backends(self, queries: GramTexts, candidates: GramTexts, k: int) -> Sequence[Backend]:
        index = Backend("index", "inverted index of q-grams", lambda: self.blocks(queries, candidates))
        return [index, blocks_backend(self, queries, candidates)]


# The instances that fedsim.registry refers to.
EUCLIDEAN, GREAT_CIRCLE, DAYS = Euclidean(), GreatCircle(), Days()
LEVENSHTEIN, LEVENSHTEIN_NORMALISED, QGRAM_DICE = Levenshtein(), Levenshtein(normalised=True), QGramDice()
HAMMING, DICE, POSITION = Hamming(), Dice(), Position()


def get_metric(metric: str | Metric) -> Metric:
    """Return the metric with a name; a metric object is returned unchanged.

    Parameters
    ----------
    metric
        A name in :data:`fedsim.registry.METRICS`, or a metric.

    Examples
    --------
    >>> get_metric("levenshtein-normalised")
    Levenshtein(normalised=True)
    """
    if isinstance(metric, str):
        named: Metric = METRICS[metric]
        return named
    if isinstance(metric, type) or not hasattr(metric, "prepare"):
        message = f"a {type(metric).__name__} is not a metric; choose from {', '.join(METRICS)}"
        raise SettingError(message, code="not-a-metric")
    return metric


@dataclass(frozen=True)
class WeightedField:
    """One part of a weighted sum.

    Parameters
    ----------
    column
        The column, or several columns separated by commas, such as latitude and longitude.
    metric
        A metric or its name.
    weight
        The factor by which the distance is multiplied.

    Examples
    --------
    >>> WeightedField("lat,lon", "great-circle", weight=0.001).columns
    ['lat', 'lon']
    """

    column: str
    metric: Metric | str
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.measure)
        validate_number(self.weight, f"weight of field '{self.column}'", above=0)

    @property
    def measure(self) -> Metric:
        """The metric object; ``metric`` may be a name."""
        return get_metric(self.metric)

    @property
    def columns(self) -> list[str]:
        return [name.strip() for name in self.column.split(",")]


@dataclass(frozen=True)
class WeightedSum:
    """A metric over several columns of different types: the weighted sum of their distances.

    Parameters
    ----------
    fields
        The parts of the sum.

    Examples
    --------
    >>> metric = WeightedSum((WeightedField("name", "levenshtein"), WeightedField("born", "days", weight=0.01)))
    >>> left = {"name": np.array(["ann"]), "born": np.array(["1990-01-01"], "M8[D]")}
    >>> right = {"name": np.array(["anne"]), "born": np.array(["1990-01-11"], "M8[D]")}
    >>> distance_matrix(metric, metric.prepare(left, "a"), metric.prepare(right, "b")).tolist()
    [[1.1]]
    """

    fields: tuple[WeightedField, ...]
    name: str = "weighted-sum"
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.fields:
            raise SettingError("a weighted sum needs at least one field", code="no-fields")

    @property
    def weighs_by_table(self) -> bool:
        return any(getattr(field.measure, "weighs_by_table", False) for field in self.fields)

    def prepare(self, records: Any, table: str) -> tuple[Records, ...]:
        columns = identifiers.identifier_columns(records, table)
        for name in (name for part in self.fields for name in part.columns):
            if name not in columns:
                raise InputError(f"the {table} table lacks column '{name}' of the weighted sum", code="missing-column")
        parts = [(part.measure, {name: columns[name] for name in part.columns}) for part in self.fields]
        return tuple(measure.prepare(named, table) for measure, named in parts)

    def blocks(self, left: Records, right: Records) -> DistanceBlocks:
        parts = zip(self.fields, left, right, strict=True)
        return _WeightedBlocks([(field.weight, field.measure.blocks(here, there)) for field, here, there in parts])

    def backends(self, queries: Records, candidates: Records, k: int) -> Sequence[Backend]:
        return [blocks_backend(self, queries, candidates)]


def combine_metrics(parts: Mapping[tuple[str, ...], str]) -> Metric:
    """Return one metric for columns compared by one or more metrics; equal metrics are added with equal weights.

    Parameters
    ----------
    parts
        The name of the metric of each column or group of columns.

    Examples
    --------
    >>> combine_metrics({("lat", "lon"): "great-circle"}).name, combine_metrics({("a",): "days", ("b",): "days"}).name
    ('great-circle', 'weighted-sum')
    """
    kinds = set(parts.values())
    if len(parts) == 1:
        return get_metric(kinds.pop())
    if len(kinds) > 1:
        message = f"identifiers of several kinds ({', '.join(sorted(kinds))}) have no common unit"
        way_out = "give a WeightedSum with a weight for each; on the command line, name every column with --field"
        raise SettingError(f"{message}; {way_out}", code="metric-needed")
    return WeightedSum(tuple(WeightedField(",".join(columns), metric) for columns, metric in parts.items()))


@dataclass(frozen=True)
class _WeightedBlocks:
    parts: list[tuple[float, DistanceBlocks]]

    def block(self, tile: Integers) -> Floats:
        with np.errstate(over="ignore"):  # an infinite sum is refused after the search
            total: Floats = sum(weight * blocks.block(tile) for weight, blocks in self.parts)  # type: ignore[assignment]
        return total
