"""Turn a party's columns into network inputs; fitted on training rows, stored as JSON, replayed at prediction."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.columns import DECIMAL_COMMA, ColumnKind, get_kind, infer_kind, parse_column
from fedsim.data.table_reader import to_polars
from fedsim.errors import FileError, InputError, SettingError
from fedsim.types import Floats, Integers

# Categories: a column each while they are few, numbers for an embedding table where they are many
#
# Categories seen in fewer than ``seldom`` training rows share the bucket ``other``, so that the bucket has been trained
# when a category nobody has seen arrives. The stored categories are the party's own; they stay out of every ``repr``.


@dataclass(frozen=True)
class CategoryLevels:
    """The categories the training rows taught, in order; ``missing`` says whether gaps were among them."""

    known: tuple[str, ...] = field(repr=False)
    missing: bool
    other: bool

    def codes(self, cells: pl.Series) -> Integers:
        """0 for whatever was not taught, 1, 2, ... for the known ones, the last for missing where that was taught."""
        order = pl.Series(range(1, len(self.known) + 1), dtype=pl.Int64)
        codes = cells.replace_strict(pl.Series(self.known, dtype=pl.String), order, default=0, return_dtype=pl.Int64)
        gap = len(self.known) + 1 if self.missing else 0
        return np.asarray(codes.set(cells.is_null(), gap).to_numpy(), dtype=np.int64)


@dataclass(frozen=True)
class OneHotColumn:
    """One column of zeros and ones per known category, and for ``missing`` and ``other`` where they were taught.

    Where ``other`` was not taught, a category first seen at prediction is zero everywhere.
    """

    column: str
    levels: CategoryLevels

    @property
    def names(self) -> tuple[str, ...]:
        known = [f"{self.column}={level}" for level in self.levels.known]
        gap = [f"{self.column} is missing"] if self.levels.missing else []
        rest = [f"{self.column} is other"] if self.levels.other else []
        return (*known, *gap, *rest)

    @property
    def spread(self) -> tuple[bool, ...]:
        """No column takes more than two values."""
        return (False,) * len(self.names)

    def apply(self, cells: pl.Series) -> Floats:
        """One row per record, one column per name."""
        codes = self.levels.codes(cells)
        width = len(self.levels.known) + self.levels.missing
        order = np.arange(1, width + 1)
        rest = [codes == 0] if self.levels.other else []
        return np.column_stack([codes[:, np.newaxis] == order, *rest]).astype(np.float64)


@dataclass(frozen=True)
class CodedColumn:
    """A number per category for an embedding table of ``cardinality`` rows; row 0 is ``other``."""

    column: str
    levels: CategoryLevels

    @property
    def cardinality(self) -> int:
        return 1 + len(self.levels.known) + self.levels.missing

    def apply(self, cells: pl.Series) -> Integers:
        """One code per record."""
        return self.levels.codes(cells)


def fit_category(cells: pl.Series, *, party: str, seldom: int, most_one_hot: int) -> OneHotColumn | CodedColumn:
    """The column's preparation from its training rows.

    >>> fit_category(pl.Series("town", ["a", "b", "a", "b"]), party="primary", seldom=2, most_one_hot=16).names
    ('town=a', 'town=b')
    """
    filled = cells.drop_nulls()
    counts = filled.value_counts(name="rows")
    _refuse_free_text(counts, cells.name, party=party, most_one_hot=most_one_hot)
    known = counts.filter(pl.col("rows") >= seldom)[cells.name].sort().to_list()
    levels = CategoryLevels(tuple(known), missing=cells.null_count() >= seldom, other=len(known) < len(counts))
    return OneHotColumn(cells.name, levels) if len(known) <= most_one_hot else CodedColumn(cells.name, levels)


def _refuse_free_text(counts: pl.DataFrame, column: str, *, party: str, most_one_hot: int) -> None:
    """A text that stands in one row alone teaches nothing about another row."""
    rows = counts["rows"]
    alone, total = int((rows == 1).sum()), int(rows.sum())
    if len(rows) > most_one_hot and 2 * alone > total:
        commas = counts[column].str.contains(DECIMAL_COMMA).all()
        way_out = "leave the column out, or declare it a number or a date if it is one"
        raise InputError(
            f"{party} table, column '{column}': in {alone:,} of {total:,} training rows it holds a text that no other "
            f"row has, so it is no category; {'write decimals with a point, not a comma' if commas else way_out}"
        )


# Numbers, standardised by the training rows and kept within bounds


MAX_DEVIATIONS = 10.0  # deviations from the mean that any value may be away, however narrow the training rows were
ROUNDING_ERROR = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class NumberColumn:
    """A number as deviations from the training mean; missing ones count as the mean.

    No value is further out than ten deviations or the furthest training row, and a column that was constant in the
    training rows (``deviation`` 0) is zero for ever: a new value in it cannot throw the prediction. ``missing`` adds a
    second column, one where the number is missing; only training rows with gaps can teach it. ``many`` says that the
    training rows hold more than two values, so that an embedding of the number can pay.
    """

    column: str
    mean: float = field(repr=False)
    deviation: float = field(repr=False)
    furthest: float = field(repr=False)
    missing: bool
    many: bool

    @property
    def spread(self) -> tuple[bool, ...]:
        """For every column: does it take many values?"""
        return (self.many, False) if self.missing else (self.many,)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column, f"{self.column} is missing") if self.missing else (self.column,)

    def apply(self, cells: pl.Series) -> Floats:
        """One row per record, one column per name."""
        values = cells.to_numpy()
        gaps = np.isnan(values)
        with np.errstate(over="ignore"):
            scores = (values - self.mean) / self.deviation if self.deviation else np.zeros(len(values))
        scores = np.where(gaps, 0.0, np.clip(scores, -self.furthest, self.furthest))
        return np.column_stack([scores, gaps]) if self.missing else scores[:, np.newaxis]


def fit_number(cells: pl.Series) -> NumberColumn:
    """The column's preparation from its training rows.

    >>> area = fit_number(pl.Series("area", [40.0, 60.0, None]))
    >>> area.mean, area.deviation, area.names
    (50.0, 10.0, ('area', 'area is missing'))
    """
    values = cells.drop_nulls().to_numpy()
    unit = _power_of_two_scale(values)
    scaled = values / unit  # squares of large numbers overflow
    mean, deviation = (float(scaled.mean()), float(scaled.std())) if len(values) else (0.0, 0.0)
    varies = deviation > ROUNDING_ERROR
    return NumberColumn(
        column=cells.name,
        mean=mean * unit,
        deviation=deviation * unit if varies else 0.0,
        furthest=max(MAX_DEVIATIONS, float(np.abs(scaled - mean).max()) / deviation) if varies else MAX_DEVIATIONS,
        missing=0 < len(values) < len(cells),
        many=varies and bool(((values != values.min()) & (values != values.max())).any()),
    )


def _power_of_two_scale(values: Floats) -> float:
    """A power of two that brings the largest value between one and two: dividing by it loses nothing."""
    largest = float(np.abs(values).max()) if len(values) else 0.0
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0


# Dates: days elapsed as a number, the season, the weekday and the time of day as points on a circle


MICROSECONDS_PER_DAY = 86_400e6  # microseconds
DAYS_PER_YEAR, DAYS_PER_WEEK = 365.2425, 7.0
EPOCH_WEEKDAY = 4.0  # 1970-01-01, counted from Sunday


@dataclass(frozen=True)
class DateColumn:
    """A moment as standardised days and cosine and sine of its place in the year, the week and, if told, the day."""

    column: str
    days: NumberColumn
    clock: bool

    @property
    def names(self) -> tuple[str, ...]:
        rounds = ("year", "week", "day") if self.clock else ("year", "week")
        return (*self.days.names, *(f"{self.column} {part} {wave}" for part in rounds for wave in ("cos", "sin")))

    @property
    def spread(self) -> tuple[bool, ...]:
        """Every circle takes many values."""
        return (*self.days.spread, *(True for _ in self.names[len(self.days.names) :]))

    def apply(self, cells: pl.Series) -> Floats:
        """One row per record, one column per name; a missing date has no place on any circle."""
        days = days_since_epoch(cells)
        moments = days.to_numpy()
        rounds = [moments / DAYS_PER_YEAR, (moments + EPOCH_WEEKDAY) / DAYS_PER_WEEK] + (
            [moments] if self.clock else []
        )
        waves = [wave(2.0 * np.pi * turns) for turns in rounds for wave in (np.cos, np.sin)]
        return np.column_stack([self.days.apply(days), np.nan_to_num(np.column_stack(waves))])


def fit_date(cells: pl.Series) -> DateColumn:
    """The column's preparation from its training rows.

    >>> from datetime import datetime
    >>> fit_date(pl.Series("sold", [datetime(2020, 1, 1), datetime(2020, 7, 1)])).names
    ('sold', 'sold year cos', 'sold year sin', 'sold week cos', 'sold week sin')
    """
    days = days_since_epoch(cells)
    clock = bool(((days % 1.0) != 0.0).any())
    return DateColumn(cells.name, fit_number(days), clock)


def days_since_epoch(cells: pl.Series) -> pl.Series:
    """Days since 1970, with fractions."""
    return cells.cast(pl.Int64).cast(pl.Float64) / MICROSECONDS_PER_DAY


# A party's features as its network takes them, learnt from its own training rows and replayed at prediction
#
# Written in numpy and polars, not with scikit-learn's transformers: their state is objects that only pickle restores,
# and pickle is banned; ours is a few numbers per column and goes into JSON as it stands.


ColumnEncoder = NumberColumn | OneHotColumn | CodedColumn | DateColumn
FEATURES_FORMAT = "fedsim features 1"
ENCODER_TAGS: dict[str, type[ColumnEncoder]] = {
    "number": NumberColumn,
    "one-hot": OneHotColumn,
    "codes": CodedColumn,
    "date": DateColumn,
}
ENCODER_KINDS: dict[type, ColumnKind] = {
    NumberColumn: ColumnKind.NUMBER,
    OneHotColumn: ColumnKind.CATEGORY,
    CodedColumn: ColumnKind.CATEGORY,
    DateColumn: ColumnKind.DATE,
}


@dataclass(frozen=True)
class FeatureRules:
    """What is not learnt: declared ``kinds`` by column, how many one-hot columns at most, how few rows are seldom."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    most_one_hot: int = 16
    seldom: int = 2

    def __post_init__(self) -> None:
        if self.most_one_hot < 0 or self.seldom < 1:
            raise SettingError(
                f"most_one_hot={self.most_one_hot}, seldom={self.seldom}; at least 0 and at least 1 are needed"
            )


@dataclass(frozen=True, eq=False)
class PreparedFeatures:
    """One party's records for its network: columns of numbers, and codes for embedding tables.

    ``numbers`` is float32, ``codes`` int64, both one row per record; column j of ``codes`` is below
    ``cardinalities[j]``. ``spread`` lists the columns of numbers that took more than two values in training.
    """

    numbers: NDArray[np.float32]
    codes: Integers
    cardinalities: tuple[int, ...]
    spread: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return (
            f"PreparedFeatures({len(self)} records x {self.numbers.shape[1]} numbers and {self.codes.shape[1]} codes)"
        )


@dataclass(frozen=True)
class FeaturePreprocessor:
    """How a party's columns become numbers and codes; made by :func:`fit_preparation`."""

    party: str
    encoders: tuple[ColumnEncoder, ...] = field(repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns, as seen in training."""
        return tuple(encoder.column for encoder in self.encoders)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every column of numbers, for reports at this party."""
        return tuple(name for encoder in self._numeric for name in encoder.names)

    @property
    def code_names(self) -> tuple[str, ...]:
        """A name for every column of codes."""
        return tuple(encoder.column for encoder in self._coded)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Rows of the embedding table of every column of codes."""
        return tuple(encoder.cardinality for encoder in self._coded)

    @property
    def spread(self) -> tuple[int, ...]:
        """Columns of numbers that took more than two values in training."""
        many = [flag for encoder in self._numeric for flag in encoder.spread]
        return tuple(place for place, flag in enumerate(many) if flag)

    def apply(self, table: Any) -> PreparedFeatures:
        """The records of a table with the same columns, in any order."""
        cells = self._cells(to_polars(table, party=self.party))
        rows = len(next(iter(cells.values()), ()))
        numbers = [encoder.apply(cells[encoder.column]) for encoder in self._numeric]
        codes = [encoder.apply(cells[encoder.column]) for encoder in self._coded]
        return PreparedFeatures(
            numbers=np.hstack([np.empty((rows, 0)), *numbers]).astype(np.float32),
            codes=np.column_stack([np.empty((rows, 0), dtype=np.int64), *codes]),
            cardinalities=self.cardinalities,
            spread=self.spread,
        )

    def to_json(self) -> str:
        """Everything :meth:`from_json` needs to prepare records in the same way."""
        columns = [{"kind": _encoder_tag(encoder), **asdict(encoder)} for encoder in self.encoders]
        return json.dumps({"format": FEATURES_FORMAT, "party": self.party, "columns": columns}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> FeaturePreprocessor:
        """A preparation written by :meth:`to_json`."""
        try:
            state = json.loads(text)
            if state["format"] != FEATURES_FORMAT:
                raise FileError("the preparation of features was written by another version of FedSim; train again")
            return cls(state["party"], tuple(_encoder_from_state(column) for column in state["columns"]))
        except (ValueError, LookupError, TypeError) as error:
            raise FileError(
                f"this is no preparation of features ({type(error).__name__}); take the file FedSim wrote"
            ) from None

    @property
    def _numeric(self) -> list[NumberColumn | OneHotColumn | DateColumn]:
        return [encoder for encoder in self.encoders if not isinstance(encoder, CodedColumn)]

    @property
    def _coded(self) -> list[CodedColumn]:
        return [encoder for encoder in self.encoders if isinstance(encoder, CodedColumn)]

    def _cells(self, frame: pl.DataFrame) -> dict[str, pl.Series]:
        for name in self.columns:
            if name not in frame.columns:
                raise InputError(f"the {self.party} table has no column '{name}', which training had; add it")
        for name in frame.columns:
            if name not in self.columns:
                raise InputError(f"the {self.party} table has a column '{name}' that training did not have; drop it")
        kinds = [(encoder.column, ENCODER_KINDS[type(encoder)]) for encoder in self.encoders]
        return {name: parse_column(frame[name], kind, party=self.party) for name, kind in kinds}


def fit_preprocessor(
    table: Any, *, party: str, rows: Integers | None = None, rules: FeatureRules | None = None, label: str | None = None
) -> FeaturePreprocessor:
    """Learn from the training ``rows`` of a table (all of them for ``None``); faults are looked for in every row.

    >>> frame = pl.DataFrame({"area": [40.0, 60.0], "town": ["a", "a"]})
    >>> fit_preprocessor(frame, party="primary").names
    ('area', 'town=a')
    """
    frame, rules = to_polars(table, party=party), rules or FeatureRules()
    if label is not None and label in frame.columns:
        raise InputError(f"column '{label}' of the {party} table is the label and a feature; drop it from the features")
    taken = slice(None) if rows is None else rows
    encoders = [_fit_column(column, taken, party, rules) for column in frame.iter_columns()]
    return FeaturePreprocessor(party, tuple(encoders))


def _fit_column(column: pl.Series, rows: Any, party: str, rules: FeatureRules) -> ColumnEncoder:
    word = rules.kinds.get(column.name)
    kind = infer_kind(column, party=party) if word is None else get_kind(word)
    cells = parse_column(column, kind, party=party)[rows]
    if kind == ColumnKind.NUMBER:
        return fit_number(cells)
    if kind == ColumnKind.DATE:
        return fit_date(cells)
    return fit_category(cells, party=party, seldom=rules.seldom, most_one_hot=rules.most_one_hot)


def _encoder_tag(encoder: ColumnEncoder) -> str:
    return next(word for word, kind in ENCODER_TAGS.items() if isinstance(encoder, kind))


def _encoder_from_state(state: dict[str, Any]) -> ColumnEncoder:
    kind = ENCODER_TAGS[state.pop("kind")]
    if "levels" in state:
        levels = state["levels"]
        state["levels"] = CategoryLevels(tuple(levels["known"]), missing=levels["missing"], other=levels["other"])
    if "days" in state:
        state["days"] = NumberColumn(**state["days"])
    return kind(**state)
