"""A party's features as its network takes them, learnt from its own training rows and replayed at prediction.

Written in numpy and polars, not with scikit-learn's transformers: their state is objects that only pickle restores, and
pickle is banned; ours is a few numbers per column and goes into JSON as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.feature_categories import CodedColumn, Levels, OneHotColumn, fit_category
from fedsim.data.feature_dates import DateColumn, fit_date
from fedsim.data.feature_numbers import NumberColumn, fit_number
from fedsim.data.frames import frame_of
from fedsim.data.kinds import Kind, kind_named, kind_of, read
from fedsim.errors import FileError, InputError, SettingError
from fedsim.types import Integers

Encoder = NumberColumn | OneHotColumn | CodedColumn | DateColumn
FORMAT = "fedsim features 1"
TAGS: dict[str, type[Encoder]] = {
    "number": NumberColumn,
    "one-hot": OneHotColumn,
    "codes": CodedColumn,
    "date": DateColumn,
}
KINDS: dict[type, Kind] = {
    NumberColumn: Kind.NUMBER,
    OneHotColumn: Kind.CATEGORY,
    CodedColumn: Kind.CATEGORY,
    DateColumn: Kind.DATE,
}


@dataclass(frozen=True)
class Rules:
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
class Prepared:
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
        return f"Prepared({len(self)} records x {self.numbers.shape[1]} numbers and {self.codes.shape[1]} codes)"


@dataclass(frozen=True)
class Preparation:
    """How a party's columns become numbers and codes; made by :func:`fit_preparation`."""

    party: str
    encoders: tuple[Encoder, ...] = field(repr=False)

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

    def apply(self, table: Any) -> Prepared:
        """The records of a table with the same columns, in any order."""
        cells = self._cells(frame_of(table, party=self.party))
        rows = len(next(iter(cells.values()), ()))
        numbers = [encoder.apply(cells[encoder.column]) for encoder in self._numeric]
        codes = [encoder.apply(cells[encoder.column]) for encoder in self._coded]
        return Prepared(
            numbers=np.hstack([np.empty((rows, 0)), *numbers]).astype(np.float32),
            codes=np.column_stack([np.empty((rows, 0), dtype=np.int64), *codes]),
            cardinalities=self.cardinalities,
            spread=self.spread,
        )

    def to_json(self) -> str:
        """Everything :meth:`from_json` needs to prepare records in the same way."""
        columns = [{"kind": _tag(encoder), **asdict(encoder)} for encoder in self.encoders]
        return json.dumps({"format": FORMAT, "party": self.party, "columns": columns}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Preparation:
        """A preparation written by :meth:`to_json`."""
        try:
            state = json.loads(text)
            if state["format"] != FORMAT:
                raise FileError("the preparation of features was written by another version of FedSim; train again")
            return cls(state["party"], tuple(_encoder(column) for column in state["columns"]))
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
        kinds = [(encoder.column, KINDS[type(encoder)]) for encoder in self.encoders]
        return {name: read(frame[name], kind, party=self.party) for name, kind in kinds}


def fit_preparation(
    table: Any, *, party: str, rows: Integers | None = None, rules: Rules | None = None, label: str | None = None
) -> Preparation:
    """Learn from the training ``rows`` of a table (all of them for ``None``); faults are looked for in every row.

    >>> frame = pl.DataFrame({"area": [40.0, 60.0], "town": ["a", "a"]})
    >>> fit_preparation(frame, party="primary").names
    ('area', 'town=a')
    """
    frame, rules = frame_of(table, party=party), rules or Rules()
    if label is not None and label in frame.columns:
        raise InputError(f"column '{label}' of the {party} table is the label and a feature; drop it from the features")
    taken = slice(None) if rows is None else rows
    encoders = [_fit(column, taken, party, rules) for column in frame.iter_columns()]
    return Preparation(party, tuple(encoders))


def _fit(column: pl.Series, rows: Any, party: str, rules: Rules) -> Encoder:
    word = rules.kinds.get(column.name)
    kind = kind_of(column, party=party) if word is None else kind_named(word)
    cells = read(column, kind, party=party)[rows]
    if kind == Kind.NUMBER:
        return fit_number(cells)
    if kind == Kind.DATE:
        return fit_date(cells)
    return fit_category(cells, party=party, seldom=rules.seldom, most_one_hot=rules.most_one_hot)


def _tag(encoder: Encoder) -> str:
    return next(word for word, kind in TAGS.items() if isinstance(encoder, kind))


def _encoder(state: dict[str, Any]) -> Encoder:
    kind = TAGS[state.pop("kind")]
    if "levels" in state:
        levels = state["levels"]
        state["levels"] = Levels(tuple(levels["known"]), missing=levels["missing"], other=levels["other"])
    if "days" in state:
        state["days"] = NumberColumn(**state["days"])
    return kind(**state)
