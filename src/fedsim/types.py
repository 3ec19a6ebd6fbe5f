"""Frozen value types, and the derivation of random seeds, shared by several packages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bits = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]
Floats32 = NDArray[np.float32]
Integers32 = NDArray[np.int32]
AnyArray = NDArray[Any]

MAX_MAGNITUDE = 1e20  # a larger number in a table is a mistake or marks a missing value; powers of it overflow


class CellFormat(StrEnum):
    """How numbers or dates of a text column are written, where not like 1234.56 and 2020-12-31."""

    DECIMAL_COMMA = "decimal-comma"  # 1.234,56 €
    DECIMAL_POINT = "decimal-point"  # $1,234.56
    DAY_MONTH_YEAR = "day-month-year"  # 31/12/2020 or 31.12.2020
    MONTH_DAY_YEAR = "month-day-year"
    YEAR_MONTH_DAY = "year-month-day"


NUMBER_FORMATS = (CellFormat.DECIMAL_POINT, CellFormat.DECIMAL_COMMA)
CELL_FORMATS = {str(written): written for written in CellFormat}
DATE_FORMATS = (CellFormat.DAY_MONTH_YEAR, CellFormat.MONTH_DAY_YEAR, CellFormat.YEAR_MONTH_DAY)

ENCODED_FORMAT = "fedsim encoded table 1"
POSITION_DTYPE = np.dtype("<i4")  # one axis of an encoded position, the same on every machine

# The default number of partners per primary record in estimators, commands and new jobs.
DEFAULT_K = 20
TIE_WARNING_SHARE, SATURATION_WARNING_SHARE = 0.25, 0.05  # of the lists of a linkage


@dataclass(frozen=True)
class TrainingLength:
    """How long networks are trained: maximum epochs, records per step, and epochs without improvement."""

    epochs: int
    batch: int
    patience: int


MIN_STEPS, MIN_STEPS_PER_EPOCH = 600, 10
MIN_EPOCHS, MAX_EPOCHS = 40, 100
MIN_BATCH, MAX_BATCH = 32, 256


def training_length(n_train: int) -> TrainingLength:
    """Return the default training length for this many training records.

    The batch size is a power of two that allows at least ten steps per epoch, if there are enough records. Small tables
    need many epochs to learn at all; training on large ones stops soon after it stops improving.

    >>> [training_length(n) for n in (70, 14_000)]
    [TrainingLength(epochs=100, batch=32, patience=20), TrainingLength(epochs=40, batch=256, patience=8)]
    """
    size = max(MIN_BATCH, min(MAX_BATCH, n_train // MIN_STEPS_PER_EPOCH))
    batch = 1 << (size.bit_length() - 1)
    epochs = min(MAX_EPOCHS, max(MIN_EPOCHS, round(MIN_STEPS / -(-max(1, n_train) // batch))))
    return TrainingLength(epochs, batch, epochs // 5)


def derive_seed(seed: int, party: str, purpose: str, step: int = 0) -> int:
    """Return the first 63 bits of SHA-256 over the four arguments, written as a JSON list.

    >>> derive_seed(0, "primary", "dropout", 7)
    5529237731233410334
    """
    digest = hashlib.sha256(json.dumps([seed, party, purpose, step]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, eq=False)
class Features:
    """A party's columns, ready for a network.

    Parameters
    ----------
    numbers
        Standardised numbers, (n, d).
    codes
        Category codes, (n, e); column j holds codes from 0 to ``cardinalities[j] - 1``.
    cardinalities
        Number of categories of every column of codes.
    spread
        Columns of ``numbers`` that an encoding may spread over quantiles; by default those with more than two distinct
        values.
    names
        Column names for error messages, numbers first.
    periodic
        Columns of ``numbers`` that an encoding may turn into sines and cosines: places and other smooth identifiers.

    Examples
    --------
    >>> Features(np.array([[0.0, 1.5], [1.0, 0.5], [0.0, -2.0]]))
    Features(3 records x 2 numbers and 0 codes)
    """

    numbers: AnyArray  # (n, d)
    codes: Integers = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))  # (n, e)
    cardinalities: tuple[int, ...] = ()
    spread: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    periodic: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", np.ascontiguousarray(self.numbers, dtype=np.float32))
        if not self.codes.size and not self.cardinalities:
            object.__setattr__(self, "codes", np.zeros((len(self.numbers), 0), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return "Features({} records x {} numbers and {} codes)".format(len(self), *self.columns)

    @property
    def columns(self) -> tuple[int, int]:
        """The number of numeric columns and of code columns."""
        return self.numbers.shape[1], self.codes.shape[1]

    @property
    def many_valued(self) -> tuple[int, ...]:
        """``spread``, or the numeric columns with more than two values: a 0/1 column gains nothing from bins."""
        if self.spread is not None:
            return self.spread
        if self.numbers.ndim != 2 or not len(self):
            return ()
        low, high = self.numbers.min(axis=0), self.numbers.max(axis=0)
        return tuple(np.flatnonzero(((self.numbers != low) & (self.numbers != high)).any(axis=0)).tolist())

    def take(self, rows: AnyArray) -> Features:
        """Return the features of some records."""
        return replace(self, numbers=self.numbers[rows], codes=self.codes[rows])

    def check(self, party: str) -> None:
        """Raise InputError if no network can learn from these features; the message shows no value."""
        if self.numbers.ndim != 2 or self.codes.shape != (len(self), len(self.cardinalities)):
            raise InputError(
                f"the features of {party} have shapes {self.numbers.shape} and {self.codes.shape} and "
                f"{len(self.cardinalities)} cardinalities; both tables need one row per record, and every column of "
                "codes a cardinality",
                code="feature-shape",
            )
        if not sum(self.columns):
            raise InputError(f"{party} has no feature columns; give at least one", code="no-features")
        not_finite = ~np.isfinite(self.numbers).all(axis=0)
        if not_finite.any():
            column = self._column_name(int(not_finite.argmax()))
            message = f"feature column {column} of {party} has missing or infinite values; fill them first"
            raise InputError(message, code="feature-not-finite", column=column)
        for place, cardinality in enumerate(self.cardinalities):
            codes = self.codes[:, place]
            if len(codes) and (codes.min() < 0 or codes.max() >= cardinality):
                column = self._column_name(self.columns[0] + place)
                raise InputError(
                    f"feature column {column} of {party} has codes outside 0..{cardinality - 1}; codes start at zero",
                    code="code-out-of-range",
                    column=column,
                )

    def _column_name(self, place: int) -> str:
        return f"'{self.names[place]}'" if place < len(self.names) else str(place)


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Identifiers as the coordinator may see them: one packed bit filter per record.

    ``bits`` has one row per record and ``ceil(n_bits / 8)`` bytes (``numpy.packbits`` order, spare bits zero).
    ``fingerprint`` identifies the schema and key that produced the filters; tables link only if theirs are equal.
    """

    bits: Bits
    n_bits: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.bits)

    @property
    def spare_bits(self) -> int:
        """The mask of the unused bits in the last byte of a filter, which must be zero.

        >>> EncodedTable(np.zeros((1, 2), np.uint8), 13, "").spare_bits
        7
        """
        return (1 << (-self.n_bits % 8)) - 1

    @property
    def digest(self) -> str:
        """The SHA-256 of filters, size and fingerprint, on which the coordinator's pseudonyms depend."""
        digest = hashlib.sha256(f"{ENCODED_FORMAT}|{self.n_bits}|{self.fingerprint}|{len(self)}|".encode())
        digest.update(np.ascontiguousarray(self.bits).data)
        return digest.hexdigest()

    def take(self, rows: AnyArray | slice) -> EncodedTable:
        """Return the filters of some records."""
        return replace(self, bits=self.bits[rows])

    def __repr__(self) -> str:
        return f"EncodedTable({len(self)} records x {self.n_bits} bits, fingerprint {self.fingerprint[:12]})"


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of the negative distances of the training links (paper, equation 1)."""

    mean: float
    deviation: float


def with_fields(similarity: AnyArray) -> AnyArray:
    """Return (n, K, F); a matrix (n, K) is one field."""
    return similarity[:, :, np.newaxis] if similarity.ndim == 2 else similarity


@dataclass(frozen=True, eq=False)
class Links:
    """Every record's K partners in one secondary, and their similarities, as every network takes them.

    Parameters
    ----------
    partner
        Rows of the secondary, or pseudonyms of rows, (n, K); -1 where a record has no partner.
    similarity
        Similarities of each pair, one per compared field, (n, K, F); NaN where a field is missing. An array (n, K) is
        one field.
    permit
        What the holders of the rows require to answer for them, if anything.

    Examples
    --------
    >>> Links(np.array([[4, 2]]), np.array([[0.9, 0.1]]))
    Links(1 records x 2 partners)
    >>> Links(np.array([[4, 2]]), np.array([[[1.0, np.nan], [0.5, 0.25]]])).overall.tolist()
    [[1.0, 0.375]]
    """

    partner: AnyArray  # (n, K)
    similarity: AnyArray  # (n, K, F)
    permit: Bits = field(default_factory=lambda: np.zeros(0, dtype=np.uint8), repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "similarity", with_fields(self.similarity))

    @classmethod
    def without_records(cls, k: int, fields: int = 1) -> Links:
        """Return lists of K columns without rows, to build a network before loading its weights."""
        return cls(np.zeros((0, k), dtype=np.int64), np.zeros((0, k, fields)))

    def __len__(self) -> int:
        return len(self.partner)

    def __repr__(self) -> str:
        return f"Links({len(self)} records x {self.k} partners)"

    @property
    def k(self) -> int:
        """K, the number of partners per record."""
        return int(self.partner.shape[1])

    @property
    def overall(self) -> AnyArray:
        """The mean of each pair's present similarities, (n, K), by which partners are ordered."""
        if self.similarity.shape[2] == 1:
            return self.similarity[:, :, 0]
        present = ~np.isnan(self.similarity)
        total = np.where(present, self.similarity, 0.0).sum(axis=2)
        mean: AnyArray = total / np.where(present.any(axis=2), present.sum(axis=2), np.nan)
        return mean

    def take(self, rows: AnyArray | slice) -> Links:
        """Return the lists of some records."""
        return Links(self.partner[rows], self.similarity[rows])

    def reorder(self, order: Integers) -> Links:
        """Reorder each record's partners by its row of ``order``, (n, K), or fewer columns to drop some."""
        take = np.take_along_axis
        return Links(take(self.partner, order, axis=1), take(self.similarity, order[:, :, np.newaxis], axis=1))


SHOWN_RECORDS, SHOWN_PARTNERS = 5, 3  # of links in a notebook


@dataclass(frozen=True, eq=False)
class LinkageResult:
    """The K partners of every primary record, nearest first (ties: lower candidate row first).

    ``partner`` holds candidate row numbers, ``distance`` the values of the metric, and ``similarity`` the scaled,
    possibly noisy values that the networks see; all three have one row per primary record and K columns.
    ``next_distance`` is the distance of the first candidate left out (infinite if there is none). ``saturated`` is the
    share of records that have nothing in common with their K-th partner, for metrics where that is known.
    """

    partner: Integers
    distance: Floats
    similarity: Floats
    scale: Scale
    sigma: float
    metric: str
    n_candidates: int
    next_distance: Floats
    saturated: float | None = None
    plan: str = ""

    def __len__(self) -> int:
        return len(self.partner)

    @property
    def k(self) -> int:
        """Number of partners per record."""
        return int(self.partner.shape[1])

    def __repr__(self) -> str:
        return f"Links({len(self)} records x {self.k} partners of {self.n_candidates}, {self.metric})"

    def _repr_html_(self) -> str:
        from html import escape  # noqa: PLC0415 - notebooks only

        shown = {name: values[:SHOWN_RECORDS, :SHOWN_PARTNERS] for name, values in self._long().items()}
        rows = zip(*(values.ravel().tolist() for values in shown.values()), strict=True)
        cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
        head = "".join(f"<th>{name}</th>" for name in shown)
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
        more = "<p>Nearest partners of the first records; <code>to_pandas()</code> has all links.</p>"
        left = more if len(cells) < self.partner.size else ""
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>{left}"

    def to_polars(self, primary_ids: Any = None, secondary_ids: Any = None) -> Any:
        """Return the links as a polars frame in long form, one row per record and partner, nearest first.

        ``record`` and ``partner`` are row numbers, counted from zero.

        Parameters
        ----------
        primary_ids, secondary_ids
            Keys of the records, such as a column of each table, for the additional columns ``record_id`` and
            ``partner_id``: one key per record of that table.

        Examples
        --------
        >>> from fedsim import link
        >>> links = link([[0.0], [9.0]], [[1.0], [8.0]], metric="euclidean", k=1)
        >>> links.to_polars(secondary_ids=["a", "b"]).select("record", "partner", "partner_id", "distance").rows()
        [(0, 0, 'a', 1.0), (1, 1, 'b', 1.0)]
        """
        import polars as pl  # noqa: PLC0415 - types stay light

        keys = {"record": (primary_ids, len(self)), "partner": (secondary_ids, self.n_candidates)}
        columns: dict[str, Any] = {}
        for name, values in self._long().items():
            columns[name] = values.ravel()
            ids, count = keys.get(name, (None, 0))
            if ids is None:
                continue
            if len(ids) != count:
                message = f"{len(ids):,} ids for {count:,} records; give one per record of that table"
                raise InputError(message, code="id-count", limit=count)
            columns[f"{name}_id"] = pl.Series(ids)[columns[name]]
        return pl.DataFrame(columns)

    def to_pandas(self, primary_ids: Any = None, secondary_ids: Any = None) -> Any:
        """Return :meth:`to_polars` as a pandas frame; requires pandas."""
        from importlib import import_module  # noqa: PLC0415 - an optional package

        columns = self.to_polars(primary_ids, secondary_ids).to_dict(as_series=False)
        return import_module("pandas").DataFrame(columns)

    def _long(self) -> dict[str, AnyArray]:
        shape = self.partner.shape
        record, rank = np.broadcast_to(np.arange(shape[0])[:, None], shape), np.broadcast_to(np.arange(shape[1]), shape)
        values = {"partner": self.partner, "distance": self.distance, "similarity": self.similarity}
        return {"record": record, "rank": rank + 1, **values}


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of the primary's training, validation and test records; unlabelled records are only predicted."""

    train: Integers
    validation: Integers
    test: Integers
    unlabelled: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __repr__(self) -> str:
        return f"Split({len(self.train)} training, {len(self.validation)} validation, {len(self.test)} test records)"


# Why a prediction is what it is


@dataclass(frozen=True)
class PartnerEffect:
    """A partner record of an explained record.

    ``partner`` is the row number if all parties are in one process, otherwise a number that is meaningful only within
    one answer. ``effect`` is how much the prediction increases compared with an average partner record in its place.
    ``weight`` comes from the weight gate, and ``match`` is the match gate's probability that this is the record's
    match; both are None for methods and lists without these gates.
    """

    secondary: str
    partner: int
    similarity: float
    effect: float
    weight: float | None = None
    match: float | None = None


_PARTNER_PART, _COLUMN_PART = "effect of a partner record", "effect of a column"
_PRINTED_PARTS = {_PARTNER_PART: "effect of record {partner} of {name}", _COLUMN_PART: "effect of column {name}"}


@dataclass(frozen=True)
class Explanation:
    """The explanation of one prediction; ``str`` formats it.

    ``value`` is the predicted number, or the probability of the predicted class; all effects have the same unit.
    ``average`` is the prediction if every partner record were average: ``average`` and the effects of all partner
    records add up to ``value``. ``without`` maps each secondary to the prediction without it: with the secondary
    unavailable if ``away`` is true (the model was trained with party dropout), otherwise with only average records.
    ``columns`` maps the record's own columns, the most important first, to how much ``value`` increases compared with
    the median of that column, or its most frequent category, all else being equal.
    """

    prediction: Any
    value: float
    average: float
    partners: list[PartnerEffect]
    without: dict[str, float]
    columns: dict[str, float]
    lower: float | None = None
    upper: float | None = None
    away: bool = False

    def __repr__(self) -> str:
        interval = "" if self.lower is None or self.upper is None else f" ({self.lower:,.6g} to {self.upper:,.6g})"
        value = f"{self.value:,.6g}" if interval else f"{self.prediction}, probability {self.value:.2g}"
        return f"Explanation({value}{interval}, {len(self.partners)} partner records)"

    def plot(self, truth: Any = None) -> Any:
        """Return a chart of how the partner records lead to the prediction, for display in a notebook.

        Parameters
        ----------
        truth
            The label, if it is known.
        """
        from importlib import import_module  # noqa: PLC0415 - the charts are of a higher layer

        return import_module("fedsim.report.model_charts").plot_explanation(self, truth)

    def _repr_html_(self) -> str:
        return str(self.plot()._repr_html_())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the parts as rows of a table, in the order in which they are read."""
        empty = dict.fromkeys(("name", "partner", "similarity", "weight", "match"))
        ends = {"lower end of the interval": self.lower, "upper end of the interval": self.upper}
        yield {"part": "prediction", **empty, "value": self.value}
        yield from ({"part": part, **empty, "value": end} for part, end in ends.items() if end is not None)
        if self.without:  # a model without secondaries is compared with nothing
            yield {"part": "with average partner records", **empty, "value": self.average}
        for one in self.partners:
            facts = {"partner": one.partner, "similarity": one.similarity, "weight": one.weight, "match": one.match}
            yield {"part": _PARTNER_PART, "name": one.secondary, **facts, "value": one.effect}
        for secondary, value in self.without.items():
            part = "without" if self.away else "with average records of"
            yield {"part": part, **empty, "name": secondary, "value": value}
        for column, effect in self.columns.items():
            yield {"part": _COLUMN_PART, **empty, "name": column, "value": effect}

    def __str__(self) -> str:
        names = ("similarity", "weight", "match")
        lines = [] if isinstance(self.prediction, float) else [f"predicted: {self.prediction}"]
        for row in self.rows():
            facts = [f"{name} {row[name]:.4g}" for name in names if row[name] is not None]
            label = _PRINTED_PARTS.get(row["part"], "{part} {name}" if row["name"] else "{part}").format(**row)
            value = "" if row["value"] is None else f"{row['value']:,.6g}"
            lines.append(f"{value:>12}  {label}{': ' if facts else ''}{', '.join(facts)}")
        return "\n".join(lines)
