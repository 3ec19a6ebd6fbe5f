"""Turn a party's columns into network inputs: fitted on training rows, stored as JSON, reapplied at prediction."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.cells import DECIMAL_COMMA, FEATURE_TYPES, CellType, read_cells
from fedsim.data.column_names import coordinate_pairs, latitude_longitude_columns
from fedsim.data.table_reader import to_polars
from fedsim.errors import FileError, InputError, SettingError
from fedsim.privacy.geodesy import to_metres
from fedsim.storage.tensor_file import scratch_array
from fedsim.types import Features, Flags, Floats, Floats32, Integers
from fedsim.validation import validate_integer

# Categories: one-hot columns if there are few, codes for an embedding table if there are many
#
# Categories seen in fewer than ``seldom`` training rows share the bucket ``other``, so that the bucket has been trained
# when an unseen category arrives. The stored categories are the party's data; they stay out of every ``repr``.


@dataclass(frozen=True)
class CategoryLevels:
    """The categories of the training rows, in order; ``missing`` and ``other`` tell whether those were trained too."""

    known: tuple[str, ...] = field(repr=False)
    missing: bool
    other: bool

    def codes(self, cells: pl.Series) -> Integers:
        """Return 1, 2, ... for known categories, the next code for missing if that was trained, and 0 for the rest."""
        order = pl.Series(range(1, len(self.known) + 1), dtype=pl.Int64)
        codes = cells.replace_strict(pl.Series(self.known, dtype=pl.String), order, default=0, return_dtype=pl.Int64)
        gap = len(self.known) + 1 if self.missing else 0
        return np.asarray(codes.set(cells.is_null(), gap).to_numpy(), dtype=np.int64)


@dataclass(frozen=True)
class OneHotColumn:
    """A 0/1 column per known category, plus one each for ``missing`` and ``other`` if they were trained.

    If ``other`` was not trained, a category first seen at prediction is zero in every column.
    """

    column: str
    levels: CategoryLevels

    @property
    def names(self) -> tuple[str, ...]:
        rest = [word for word in ("missing", "other") if getattr(self.levels, word)]
        known = [f"{self.column}={level}" for level in self.levels.known]
        return (*known, *(f"{self.column} is {word}" for word in rest))

    @property
    def spread(self) -> tuple[bool, ...]:
        """For each output column, whether it takes more than two values."""
        return (False,) * len(self.names)

    def apply(self, cells: pl.Series) -> Floats:
        """Return one row per record, one column per name."""
        codes = self.levels.codes(cells)
        order = np.arange(1, len(self.levels.known) + self.levels.missing + 1)
        rest = [codes == 0] if self.levels.other else []
        return np.column_stack([codes[:, np.newaxis] == order, *rest]).astype(np.float64)


@dataclass(frozen=True)
class CodedColumn:
    """A code per category for an embedding table of ``cardinality`` rows; row 0 is ``other``."""

    column: str
    levels: CategoryLevels

    @property
    def cardinality(self) -> int:
        return 1 + len(self.levels.known) + self.levels.missing

    def apply(self, cells: pl.Series) -> Integers:
        """Return one code per record."""
        return self.levels.codes(cells)


def fit_category(
    cells: pl.Series, *, party: str, seldom: int, most_one_hot: int, codes: bool = True
) -> OneHotColumn | CodedColumn:
    """Fit a column of categories on its training rows; without ``codes`` only the most frequent have columns.

    >>> fit_category(pl.Series("town", ["a", "b", "a", "b"]), party="primary", seldom=2, most_one_hot=16).names
    ('town=a', 'town=b')
    """
    counts = cells.drop_nulls().value_counts(name="rows")
    single, total = int((counts["rows"] == 1).sum()), int(counts["rows"].sum())
    if len(counts) > most_one_hot and 2 * single > total:  # free text: a unique value says nothing about other rows
        commas = counts[cells.name].str.contains(DECIMAL_COMMA).all()
        fix = "write decimals with a point" if commas else "drop it, or declare it a number or a date if it is one"
        fault = f"is not a category, because {single:,} of its {total:,} training rows have a value of their own"
        message = f"{party}: column '{cells.name}' {fault}; {fix}"
        raise InputError(message, code="free-text", column=cells.name, party=party, decimal_commas=bool(commas))
    frequent = counts.filter(pl.col("rows") >= seldom).sort("rows", cells.name, descending=[True, False])
    known = frequent[cells.name].head(len(frequent) if codes else most_one_hot).sort().to_list()
    levels = CategoryLevels(tuple(known), missing=cells.null_count() >= seldom, other=len(known) < len(counts))
    return OneHotColumn(cells.name, levels) if len(known) <= most_one_hot else CodedColumn(cells.name, levels)


# Numbers, standardised on the training rows and clipped

MAX_DEVIATIONS = 10.0  # clip values at this many standard deviations, or at the furthest training row
ROUNDING_ERROR = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class NumberColumn:
    """A number in standard deviations from the training mean; missing numbers are replaced by the mean.

    Values are clipped, and a column that is constant in the training rows (``deviation`` 0) is always zero, so an
    unusual new value cannot distort the prediction. ``missing`` adds an indicator column if training rows have missing
    cells. ``many`` means that the training rows have more than two distinct values, so an embedding is worth its
    weights; ``periodic`` means that a periodic embedding suits the column, as it does a coordinate.
    """

    column: str
    mean: float = field(repr=False)
    deviation: float = field(repr=False)
    furthest: float = field(repr=False)
    missing: bool
    many: bool
    periodic: bool = False

    @property
    def spread(self) -> tuple[bool, ...]:
        """For each output column, whether it takes more than two values."""
        return (self.many, False) if self.missing else (self.many,)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column, f"{self.column} is missing") if self.missing else (self.column,)

    def apply(self, cells: pl.Series) -> Floats:
        """Return one row per record, one column per name."""
        values = cells.to_numpy()
        gaps = np.isnan(values)
        with np.errstate(over="ignore"):
            scores = (values - self.mean) / self.deviation if self.deviation else np.zeros(len(values))
        scores = np.where(gaps, 0.0, np.clip(scores, -self.furthest, self.furthest))
        return np.column_stack([scores, gaps]) if self.missing else scores[:, np.newaxis]


def fit_number(cells: pl.Series, *, periodic: bool = False) -> NumberColumn:
    """Fit a column of numbers on its training rows.

    >>> area = fit_number(pl.Series("area", [40.0, 60.0, None]))
    >>> area.mean, area.deviation, area.names
    (50.0, 10.0, ('area', 'area is missing'))
    """
    values = cells.drop_nulls().to_numpy()
    largest = float(np.abs(values).max(initial=0.0))
    # Squares of large numbers overflow; dividing by a power of two loses nothing.
    unit = math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0
    scaled = values / unit
    mean, deviation = (float(scaled.mean()), float(scaled.std())) if len(values) else (0.0, 0.0)
    varies = deviation > ROUNDING_ERROR
    many = varies and bool(((values != values.min()) & (values != values.max())).any())
    return NumberColumn(
        column=cells.name,
        mean=mean * unit,
        deviation=deviation * unit if varies else 0.0,
        furthest=max(MAX_DEVIATIONS, float(np.abs(scaled - mean).max()) / deviation) if varies else MAX_DEVIATIONS,
        missing=0 < len(values) < len(cells),
        many=many,
        periodic=periodic and many,
    )


# Dates: elapsed days as a number; season, weekday and time of day as points on a circle

MICROSECONDS_PER_DAY = 86_400e6
DAYS_PER_YEAR, DAYS_PER_WEEK = 365.2425, 7.0
EPOCH_WEEKDAY = 4.0  # 1970-01-01, counted from Sunday


@dataclass(frozen=True)
class DateColumn:
    """A date as standardised days, plus cosine and sine of the time of year, of week and, if present, of day."""

    column: str
    days: NumberColumn
    clock: bool

    @property
    def names(self) -> tuple[str, ...]:
        rounds = ("year", "week", "day") if self.clock else ("year", "week")
        return (*self.days.names, *(f"{self.column} {part} {wave}" for part in rounds for wave in ("cos", "sin")))

    @property
    def spread(self) -> tuple[bool, ...]:
        """For each output column, whether it takes more than two values."""
        return (*self.days.spread, *(True for _ in self.names[len(self.days.names) :]))

    def apply(self, cells: pl.Series) -> Floats:
        """Return one row per record, one column per name; a missing date is zero on every circle."""
        days = days_since_epoch(cells)
        moments = days.to_numpy()
        rounds = [moments / DAYS_PER_YEAR, (moments + EPOCH_WEEKDAY) / DAYS_PER_WEEK, moments][: 2 + self.clock]
        waves = [wave(2.0 * np.pi * turns) for turns in rounds for wave in (np.cos, np.sin)]
        return np.column_stack([self.days.apply(days), np.nan_to_num(np.column_stack(waves))])


def fit_date(cells: pl.Series) -> DateColumn:
    """Fit a column of dates on its training rows.

    >>> from datetime import datetime
    >>> fit_date(pl.Series("sold", [datetime(2020, 1, 1), datetime(2020, 7, 1)])).names
    ('sold', 'sold year cos', 'sold year sin', 'sold week cos', 'sold week sin')
    """
    days = days_since_epoch(cells)
    return DateColumn(cells.name, fit_number(days), clock=bool(((days % 1.0) != 0.0).any()))


def days_since_epoch(cells: pl.Series) -> pl.Series:
    """Return fractional days since 1970-01-01."""
    return cells.cast(pl.Int64).cast(pl.Float64) / MICROSECONDS_PER_DAY


# Two places of a record: how far apart they are and in which direction, which networks and trees learn badly from four
# coordinates

DISPLACEMENT = "displacement"
MAX_PLACES = 4  # displacements are computed for at most this many places per record
DEGREES = np.array([90.0, 180.0])


@dataclass(frozen=True)
class Displacement:
    """The displacement between two places of a record in metres: total distance, eastward and northward.

    Records with a missing place or an impossible coordinate are set to the mean.
    """

    start: tuple[str, str]
    end: tuple[str, str]
    parts: tuple[NumberColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.column for part in self.parts)

    @property
    def spread(self) -> tuple[bool, ...]:
        """For each output column, whether it takes more than two values."""
        return tuple(part.many for part in self.parts)

    def apply(self, frame: pl.DataFrame, party: str) -> Floats:
        """Return one row per record, one column per name."""
        metres = _displacement(frame, (*self.start, *self.end), party)
        pairs = zip(self.parts, metres.T, strict=True)
        return np.column_stack([part.apply(pl.Series(part.column, cells)) for part, cells in pairs])


def fit_displacements(
    frame: pl.DataFrame, columns: Sequence[str], *, party: str, rows: Integers | None = None
) -> tuple[Displacement, ...]:
    """Fit the displacements between the places of a record on the training rows; a single place has none.

    >>> trips = {"from_lat": [1.30, 1.31], "from_lon": [103.8, 103.8], "to_lat": [1.3, 1.3], "to_lon": [103.9, 103.8]}
    >>> fit_displacements(pl.DataFrame(trips), list(trips), party="primary")[0].names[0]
    'from_lat, from_lon to to_lat, to_lon'
    """
    places = [(latitude, longitude) for latitude, longitude, _ in coordinate_pairs(columns)][:MAX_PLACES]
    found = []
    for start, end in combinations(places, 2):
        metres = _displacement(frame, (*start, *end), party)[slice(None) if rows is None else rows]
        way = f"{', '.join(start)} to {', '.join(end)}"
        cells = zip((way, f"{way}, east", f"{way}, north"), metres.T, strict=True)
        parts = [fit_number(pl.Series(name, values, nan_to_null=True)) for name, values in cells]
        if any(part.deviation for part in parts):
            # The coordinate columns already mark where a place is missing.
            found.append(Displacement(start, end, tuple(replace(part, missing=False) for part in parts)))
    return tuple(found)


def _displacement(frame: pl.DataFrame, columns: Sequence[str], party: str) -> Floats:
    """Return total, eastward and northward metres, (n, 3); NaN where a place is missing or impossible."""
    cells = [_read_feature(frame[column], CellType.NUMBER, party).to_numpy() for column in columns]
    places = np.stack(cells, axis=1).reshape(-1, 2, 2)  # records, start and end, latitude and longitude
    known = (np.abs(places) <= DEGREES).all(axis=(1, 2))
    metres = np.full((len(places), 3), np.nan)
    metres[known, 1:] = to_metres(places[known, 1], places[known, 0])
    metres[:, 0] = np.hypot(metres[:, 1], metres[:, 2])
    return metres


# All columns of a party
#
# Written with NumPy and polars instead of scikit-learn's transformers, whose state can only be restored with pickle.
# Pickle is banned; our state is a few numbers per column in a JSON file.

ROWS_AT_ONCE = 1 << 16
ColumnEncoder = NumberColumn | OneHotColumn | CodedColumn | DateColumn
FEATURES_FORMAT = "fedsim features 1"
TRIPS_FORMAT = "fedsim features 2"  # has displacements
ENCODERS: dict[str, tuple[type[ColumnEncoder], CellType]] = {
    "number": (NumberColumn, CellType.NUMBER),
    "one-hot": (OneHotColumn, CellType.CATEGORY),
    "codes": (CodedColumn, CellType.CATEGORY),
    "date": (DateColumn, CellType.DATE),
}


@dataclass(frozen=True)
class FeatureRules:
    """Rules that are not learnt: declared ``kinds`` by column, the limit on one-hot columns, the limit for rare rows,
    and whether a column of more categories becomes ``codes``, which have no average, or keeps the most frequent.

    Numeric ``identifiers`` get a periodic embedding, as latitude and longitude always do.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    identifiers: tuple[str, ...] = ()
    most_one_hot: int = 16
    seldom: int = 2
    codes: bool = True

    def __post_init__(self) -> None:
        validate_integer(self.most_one_hot, "most_one_hot", least=0)
        validate_integer(self.seldom, "seldom", least=1)


@dataclass(frozen=True)
class FeaturePreprocessor:
    """The fitted conversion of a party's columns to numbers and codes; created by :func:`fit_preprocessor`."""

    party: str
    encoders: tuple[ColumnEncoder, ...] = field(repr=False)
    displacements: tuple[Displacement, ...] = field(default=(), repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the table's columns, as seen in training."""
        return tuple(encoder.column for encoder in self.encoders)

    @property
    def names(self) -> tuple[str, ...]:
        """Return a name for every column of numbers, for reports at this party."""
        return tuple(name for encoder in (*self._numeric, *self.displacements) for name in encoder.names)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """The number of embedding rows for each column of codes."""
        return tuple(encoder.cardinality for encoder in self._coded)

    @property
    def spread(self) -> tuple[int, ...]:
        """The numeric columns that took more than two values in training."""
        many = [flag for encoder in (*self._numeric, *self.displacements) for flag in encoder.spread]
        return tuple(place for place, flag in enumerate(many) if flag)

    @property
    def periodic(self) -> tuple[int, ...]:
        """The numeric columns that get a periodic embedding."""
        chosen = [encoder.column for encoder in self._numeric if isinstance(encoder, NumberColumn) and encoder.periodic]
        return tuple(self.names.index(column) for column in chosen)

    @property
    def gaps(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return which numbers of a record are missing where others, which mark that, are 1."""
        found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        marks, first = {}, 0
        for encoder in self._numeric:
            number = encoder.days if isinstance(encoder, DateColumn) else encoder
            if isinstance(number, NumberColumn) and number.missing:
                marks[encoder.column] = first + 1
                values = (first, *range(first + 2, first + len(encoder.names)))
                found.append((values, (first + 1,)))
            first += len(encoder.names)
        for way in self.displacements:
            known = tuple(marks[column] for column in (*way.start, *way.end) if column in marks)
            if known:
                found.append((tuple(range(first, first + len(way.names))), known))
            first += len(way.names)
        return found

    def marks_gaps(self, frame: pl.DataFrame) -> Flags:
        """Return which records miss no number but those whose absence a column marks, (n,).

        >>> area = fit_preprocessor(pl.DataFrame({"area": [40.0, 60.0]}), party="secondary")
        >>> area.marks_gaps(pl.DataFrame({"area": [50.0, None]})).tolist()
        [True, False]
        """
        marked = np.ones(len(frame), np.bool_)
        for encoder in self._numeric:
            number = encoder.days if isinstance(encoder, DateColumn) else encoder
            if isinstance(number, NumberColumn) and not number.missing:
                cells = _read_feature(frame[encoder.column], _cell_type(encoder), self.party)
                marked &= cells.is_not_null().to_numpy()
        return marked

    @property
    def _numeric(self) -> list[NumberColumn | OneHotColumn | DateColumn]:
        return [encoder for encoder in self.encoders if not isinstance(encoder, CodedColumn)]

    @property
    def _coded(self) -> list[CodedColumn]:
        return [encoder for encoder in self.encoders if isinstance(encoder, CodedColumn)]

    @property
    def places(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return, for every column of the table, the positions of its outputs among the numbers and among the codes.

        Latitude and longitude share one entry, because half a place is meaningless; places with a displacement do too.
        """
        found: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        first = 0
        for encoder in self._numeric:
            found[encoder.column] = tuple(range(first, first + len(encoder.names))), ()
            first += len(encoder.names)
        found |= {encoder.column: ((), (place,)) for place, encoder in enumerate(self._coded)}
        for latitude, longitude, _ in coordinate_pairs(self.columns):
            if latitude in found and longitude in found:
                (first_places, _), (second_places, _) = found.pop(latitude), found.pop(longitude)
                found[f"{latitude} and {longitude}"] = (*first_places, *second_places), ()
        ends = sorted({" and ".join(end) for way in self.displacements for end in (way.start, way.end)})
        if ends:
            coordinates = [place for end in ends for place in found.pop(end)[0]]
            found[", ".join(ends)] = (*coordinates, *range(first, len(self.names))), ()
        return found

    def typical_record(self, table: Any, rows: Integers) -> Features:
        """Return a record with the median of each number and date over these rows and the most frequent categories."""
        frame = to_polars(table, party=self.party)
        cells = {}
        for encoder in self.encoders:
            wanted = _cell_type(encoder)
            known = _read_feature(frame[encoder.column], wanted, self.party)[rows].drop_nulls()
            if wanted is CellType.CATEGORY:
                counts = known.value_counts(name="rows").sort("rows", known.name, descending=[True, False])
                middle = counts[known.name].first()
            else:
                middle = known.sort()[len(known) // 2] if len(known) else None
            cells[encoder.column] = pl.Series([middle], dtype=known.dtype)  # not a slice, which would keep all
        return self.apply(pl.DataFrame(cells))

    def describe(self) -> dict[str, str]:
        """Return how each column of the table is encoded: number, place, date, one-hot or codes.

        A place is a number for which a network may use a periodic embedding. The displacement between two places has
        its own entry, ``displacement``.
        """
        tags = {encoder: tag for tag, (encoder, _) in ENCODERS.items()}
        periodic = {self.names[place] for place in self.periodic}
        found = {e.column: "place" if e.column in periodic else tags[type(e)] for e in self.encoders}
        return found | {way.names[0]: DISPLACEMENT for way in self.displacements}

    def apply(self, table: Any, folder: Path | None = None) -> Features:
        """Prepare the records of a table with the same columns, in any order; large arrays are stored in ``folder``."""
        frame = to_polars(table, party=self.party)
        for name in self.columns:
            if name not in frame.columns:
                message = f"the {self.party} table has no column '{name}', which training had; add it"
                raise InputError(message, code="missing-column", column=name)
        for name in frame.columns:
            if name not in self.columns:
                message = f"the {self.party} table has a column '{name}' that training did not have; drop it"
                raise InputError(message, code="unknown-column", column=name)
        n_rows = frame.height if self.encoders else 0
        numbers = scratch_array((n_rows, len(self.names)), np.float32, folder)
        codes = scratch_array((n_rows, len(self._coded)), np.int64, folder)
        # One column and some rows at a time, to limit memory use.
        blocks = [slice(start, start + ROWS_AT_ONCE) for start in range(0, n_rows, ROWS_AT_ONCE)]
        place = 0
        for encoder in self._numeric:
            cells = _read_feature(frame[encoder.column], _cell_type(encoder), self.party)
            for rows in blocks:
                numbers[rows, place : place + len(encoder.names)] = encoder.apply(cells[rows])
            place += len(encoder.names)
        for way in self.displacements:
            for rows in blocks:
                numbers[rows, place : place + len(way.names)] = way.apply(frame[rows], self.party)
            place += len(way.names)
        for place, column in enumerate(self._coded):
            codes[:, place] = column.apply(_read_feature(frame[column.column], CellType.CATEGORY, self.party))
        return Features(numbers, codes, self.cardinalities, self.spread, periodic=self.periodic)

    def without_records(self) -> Features:
        """Return the columns without rows, to build a network before loading its weights."""
        numbers, codes = np.zeros((0, len(self.names))), np.zeros((0, len(self.cardinalities)), dtype=np.int64)
        return Features(numbers, codes, self.cardinalities, self.spread, periodic=self.periodic)

    def to_json(self) -> str:
        """Return everything that :meth:`from_json` needs to prepare records in the same way."""
        tags = {encoder: tag for tag, (encoder, _) in ENCODERS.items()}
        columns = [{"kind": tags[type(encoder)], **asdict(encoder)} for encoder in self.encoders]
        state: dict[str, Any] = {"format": FEATURES_FORMAT, "party": self.party, "columns": columns}
        if self.displacements:  # versions that do not support them must refuse the file
            state |= {"format": TRIPS_FORMAT, "displacements": [asdict(way) for way in self.displacements]}
        return json.dumps(state, indent=1)

    @classmethod
    def from_json(cls, text: str) -> FeaturePreprocessor:
        """Return the preprocessor that :meth:`to_json` wrote."""
        try:
            state = json.loads(text)
            if state["format"] not in (FEATURES_FORMAT, TRIPS_FORMAT):
                message = "the features were prepared by another version of FedSim; train again"
                raise FileError(message, code="other-version")
            encoders = []
            for column in state["columns"]:
                encoder, _ = ENCODERS[column.pop("kind")]
                if "levels" in column:
                    column["levels"] = CategoryLevels(**{**column["levels"], "known": tuple(column["levels"]["known"])})
                if "days" in column:
                    column["days"] = NumberColumn(**column["days"])
                encoders.append(encoder(**column))
            ways = []
            for way in state.get("displacements", ()):
                parts = tuple(NumberColumn(**part) for part in way["parts"])
                ways.append(Displacement(tuple(way["start"]), tuple(way["end"]), parts))
            return cls(state["party"], tuple(encoders), tuple(ways))
        except (ValueError, LookupError, TypeError) as error:
            message = f"not a feature file of FedSim ({type(error).__name__}); use the file that training wrote"
            raise FileError(message, code="damaged-file") from None


def fit_preprocessor(
    table: Any, *, party: str, rows: Integers | None = None, rules: FeatureRules | None = None, label: str | None = None
) -> FeaturePreprocessor:
    """Fit the conversion of columns to network inputs on some rows of a table; all rows are checked for faults.

    Parameters
    ----------
    table
        The features, as any supported table type.
    party
        The party's name, for error messages.
    rows
        The training rows; all of them by default.
    rules
        Declared column kinds, and limits.
    label
        The label's name, which must not be among the features.

    Examples
    --------
    >>> frame = pl.DataFrame({"area": [40.0, 60.0], "town": ["a", "a"]})
    >>> fit_preprocessor(frame, party="primary").names
    ('area', 'town=a')
    """
    frame, rules = to_polars(table, party=party), rules or FeatureRules()
    if label is not None and label in frame.columns:
        message = f"column '{label}' of the {party} table is both label and feature; drop it from the features"
        raise InputError(message, code="label-in-features", column=label)
    periodic = {*latitude_longitude_columns(frame.columns), *rules.identifiers}
    encoders: list[ColumnEncoder] = []
    for column in frame.iter_columns():
        wanted = _feature_type(column, rules.kinds.get(column.name), party)
        cells = _read_feature(column, wanted, party)[slice(None) if rows is None else rows]
        if wanted is CellType.NUMBER:
            encoders.append(fit_number(cells, periodic=column.name in periodic))
        elif wanted is CellType.DATE:
            encoders.append(fit_date(cells))
        else:
            limits = {"seldom": rules.seldom, "most_one_hot": rules.most_one_hot}
            encoders.append(fit_category(cells, party=party, codes=rules.codes, **limits))
    numbers = [encoder.column for encoder in encoders if isinstance(encoder, NumberColumn)]
    return FeaturePreprocessor(party, tuple(encoders), fit_displacements(frame, numbers, party=party, rows=rows))


def _feature_type(column: pl.Series, declared: str | None, party: str) -> CellType:
    """Return the declared type, or the type of the column: text is a category, true and false are one and zero."""
    if declared is not None:
        if declared not in FEATURE_TYPES:
            message = f"kind '{declared}' of column '{column.name}' is unknown; choose {', '.join(FEATURE_TYPES)}"
            raise SettingError(message, code="unknown-kind", column=column.name)
        return CellType(declared)
    if column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null):
        return CellType.NUMBER
    if column.dtype in (pl.Date, pl.Datetime):
        return CellType.DATE
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return CellType.CATEGORY
    message = f"{party}: column '{column.name}' holds {column.dtype}; use numbers, text, booleans or dates, or drop it"
    raise InputError(message, code="wrong-type", column=column.name)


def _cell_type(encoder: ColumnEncoder) -> CellType:
    return dict(ENCODERS.values())[type(encoder)]


def _read_feature(column: pl.Series, wanted: CellType, party: str) -> pl.Series:
    numeric = column.cast(pl.UInt8) if wanted is CellType.NUMBER and column.dtype == pl.Boolean else column
    return read_cells(numeric, wanted).require(party, allow_missing=True)


# Names as input columns for trees


GRAM_LENGTH = 3
HASH_COLUMNS = 64


def text_columns(frame: pl.DataFrame) -> list[str]:
    """Return the columns that hold text."""
    return [name for name, dtype in frame.schema.items() if dtype == pl.String]


def name_trigrams(frame: pl.DataFrame, columns: Sequence[str], folder: Path | None = None) -> Floats32:
    """Count the trigrams of each cell, hashed into 64 numbers per column; a missing cell has none.

    For many records, the counts are stored in a file in the folder.

    >>> name_trigrams(pl.DataFrame({"name": ["abc", None]}), ["name"]).sum(axis=1).tolist()
    [3.0, 0.0]
    """
    counts = scratch_array((len(frame), len(columns), HASH_COLUMNS), np.float32, folder)
    counts[:] = 0.0
    for place, column in enumerate(columns):
        for row, text in enumerate(frame[column].cast(pl.String).to_list()):
            padded = f" {text.casefold()} " if text else ""
            for first in range(len(padded) - GRAM_LENGTH + 1):
                gram = padded[first : first + GRAM_LENGTH].encode()
                counts[row, place, zlib.crc32(gram) % HASH_COLUMNS] += 1
    return counts.reshape(len(frame), -1)


def mean_trigrams(names: Floats32, columns: Sequence[str]) -> dict[str, list[float]]:
    """Return the mean of the counts from :func:`name_trigrams`, by column.

    >>> found = mean_trigrams(name_trigrams(pl.DataFrame({"name": ["abc", None]}), ["name"]), ["name"])
    >>> sum(found["name"])
    1.5
    """
    means = names.mean(axis=0, dtype=np.float64).reshape(len(columns), HASH_COLUMNS)
    return dict(zip(columns, means.tolist(), strict=True))
