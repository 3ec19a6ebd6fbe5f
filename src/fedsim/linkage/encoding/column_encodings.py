"""Encodings of a column: keyed bit filters (FEDERAL; paper, appendix) and positions in a secret coordinate system."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.privacy.geodesy import EARTH_RADIUS, on_unit_sphere
from fedsim.privacy.keyed_prng import shake_uniforms, shake_words
from fedsim.types import POSITION_DTYPE, AnyArray, Bits, Flags, Floats, Integers
from fedsim.validation import convert_scalars, validate_filter_bits, validate_flag, validate_integer, validate_number

if TYPE_CHECKING:
    import polars as pl

# A filter of the paper's size has millions of bits, and one byte per bit for a whole table would take eight times the
# memory of the result. Rows are therefore built and rearranged in tiles of four million bits at one byte each, which
# fit the second-level cache of most machines and hide the cost of the loop.
TILE_BYTES = 1 << 22
# Lone surrogates: valid text cannot contain them, so no text can look like a padded one.
_START_PADDING, _END_PADDING = "\ud800", "\udfff"
MAX_Q = 8
MAX_HASHES = 1024


class ColumnValues(Protocol):
    """A list, an array, or a column of any data frame."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, eq=False)
class IdentifierColumn:
    """The values of one column, and the names used in its errors; ``repr`` never shows the values.

    >>> IdentifierColumn([1.5, 2], "age", "primary")
    IdentifierColumn(name='age', table='primary')
    """

    values: ColumnValues = field(repr=False)
    name: str = "value"
    table: str = "table"
    rows: Integers | None = field(default=None, repr=False)  # of the table, if these are not all of them

    def __len__(self) -> int:
        return len(self.values)

    def present(self) -> Flags:
        """Return which values are not missing."""
        from fedsim.cells import to_series  # noqa: PLC0415 - polars is heavy, and config files only name encodings

        cells = to_series(self.values, self.name)
        if cells.dtype.is_float():
            cells = cells.fill_nan(None)
        return cells.is_not_null().to_numpy()

    def take(self, rows: Integers) -> IdentifierColumn:
        """Return some of the values, with errors that still name their rows in the table."""
        from fedsim.cells import to_series  # noqa: PLC0415 - polars is heavy, and config files only name encodings

        return IdentifierColumn(to_series(self.values, self.name)[rows], self.name, self.table, rows)

    def refuse(self, faulty: Flags, problem: str, code: str) -> None:
        """Raise an error about the first row marked ``faulty``, if any, that states how many there are."""
        if faulty.any():
            places = np.flatnonzero(faulty)
            rows = [int(row) + 1 for row in (places if self.rows is None else self.rows[places])]
            row, count = rows[0], len(rows)
            more = f" ({count:,} such rows)" if count > 1 else ""
            message = f"{self.table}: column {self.name!r}, row {row} {problem}{more}"
            raise InputError(message, code=code, table=self.table, column=self.name, row=row, rows=rows, count=count)

    def numbers(self) -> Floats:
        """Return the values as floats."""
        return self._read("number").to_numpy()

    def texts(self) -> list[str]:
        """Return the values as strings."""
        return self._read("text").to_list()

    def days(self) -> Floats:
        """Return dates, without their times, as days since 1970-01-01."""
        return self._read("date").dt.date().to_physical().to_numpy().astype(np.float64)

    def labels(self) -> list[str]:
        """Return values that are only compared for equality as text: 1990, 1990.0 and "1990" are one label."""
        return self._read("key").to_list()

    def _read(self, wanted: str) -> pl.Series:
        from fedsim.cells import CellType, read_cells  # noqa: PLC0415 - polars is heavy, and config files only name encodings

        return read_cells(self.values, CellType(wanted), name=self.name, parse=False).require(self.table)


def pack_rows(n_rows: int, n_bits: int, tile: Callable[[slice], AnyArray]) -> Bits:
    """Pack the rows of ``tile(rows)``, which returns zeros and ones of shape (rows, ``n_bits``)."""
    packed = np.empty((n_rows, n_bits // 8), dtype=np.uint8)
    step = max(1, TILE_BYTES // n_bits)
    for start in range(0, n_rows, step):
        rows = slice(start, min(start + step, n_rows))
        packed[rows] = np.packbits(tile(rows), axis=1)
    return packed


@dataclass(frozen=True)
class NumericFilter:
    """FEDERAL filters for numbers (paper, appendix "Additional Background").

    Secret pivots r_1 .. r_N are drawn at random from a public range; bit i of the filter of x is one if r_i is within
    the threshold of x. The Hamming distance grows with the difference of two numbers up to 2 x ``threshold``. The
    pivots extend one threshold beyond the range on both sides, so the number of ones reveals nothing about a value. In
    pivot order the ones are consecutive: two integers yield the same Hamming distances as N bits, and such filters hide
    neither order nor distance.

    Parameters
    ----------
    low, high
        The range of the values.
    threshold
        Half the difference up to which distances grow.
    bits
        Size of a filter, a multiple of 8. On Beijing flats 512 bits per field find 65 to 72 percent of the nearest 50
        partners, 1,024 bits 76 to 79, 65,536 bits 87; doubling gains three to five points.

    Examples
    --------
    >>> NumericFilter(0, 100, threshold=5).encode(IdentifierColumn([36.5]), bytes(32)).shape
    (1, 128)
    """

    KIND: ClassVar[str] = "numeric"
    CELLS: ClassVar[str] = "number"

    low: float
    high: float
    threshold: float
    bits: int = 1024

    def __post_init__(self) -> None:
        convert_scalars(self)
        validate_number(self.low, "low")
        validate_number(self.high, "high", above=self.low)
        validate_number(self.threshold, "threshold", above=0)
        validate_filter_bits(self.bits)

    def pivots(self, subkey: bytes) -> Floats:
        """Return the secret pivots, in the order of the bits."""
        start, width = self.low - self.threshold, self.high - self.low + 2 * self.threshold
        return start + width * shake_uniforms(subkey, self.bits)

    def ranks(self, column: IdentifierColumn, subkey: bytes) -> Integers:
        """Return, for every value, the run [first, last) of sorted pivots that are ones: the filter as two integers.

        Ranks reveal the order of the values; keep them where the values are.
        """
        return self._ranks(column, np.sort(self.pivots(subkey)))

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits:
        """Return one packed filter per value."""
        pivots = self.pivots(subkey)
        order = np.argsort(pivots, kind="stable")
        ranks = self._ranks(column, pivots[order]).astype(np.int32)
        rank_of_bit = np.empty(self.bits, dtype=np.int32)
        rank_of_bit[order] = np.arange(self.bits, dtype=np.int32)
        first, last = ranks[:, :1], ranks[:, 1:]
        return pack_rows(len(ranks), self.bits, lambda rows: (rank_of_bit >= first[rows]) & (rank_of_bit < last[rows]))

    def _ranks(self, column: IdentifierColumn, ordered: Floats) -> Integers:
        numbers = column.numbers()
        column.refuse(
            (numbers < self.low) | (numbers > self.high),
            f"is outside the agreed range {self.low:g} to {self.high:g}; agree on a wider one or drop the record",
            "outside-range",
        )
        first = np.searchsorted(ordered, numbers - self.threshold, side="left")
        last = np.searchsorted(ordered, numbers + self.threshold, side="right")
        return np.stack([first, last], axis=1).astype(np.int64)


@dataclass(frozen=True)
class StringFilter:
    """FEDERAL filters for text: keyed random hashing of q-grams (paper, appendix "Additional Background").

    Every position of a q-gram is drawn from a keyed stream. Double hashing, ``(h1 + i * h2) mod bits``, is cheaper, but
    leaves only ``bits`` squared possible patterns per q-gram, which attackers can separate and decode (Kroll and
    Steinmetzer 2015).

    Parameters
    ----------
    q
        Letters per q-gram.
    hashes, bits
        Each q-gram sets this many of the bits. 20 of 1,024 fill a third of the filter of a game title (22 letters):
        fewer hashes find fewer of the nearest titles, more fill up the filters of longer ones.
    padded
        Whether both ends are marked, so that the first and last letters count as much as others.
    normalised
        Whether texts are normalised first; see :func:`normalise_text`.

    Examples
    --------
    >>> StringFilter(bits=512).encode(IdentifierColumn(["Ada"]), bytes(32)).shape
    (1, 64)
    """

    KIND: ClassVar[str] = "string"
    CELLS: ClassVar[str] = "text"

    q: int = 2
    hashes: int = 20
    bits: int = 1024
    padded: bool = True
    normalised: bool = True

    def __post_init__(self) -> None:
        convert_scalars(self)
        validate_integer(self.q, "q", least=1, most=MAX_Q)
        validate_integer(self.hashes, "hashes", least=1, most=MAX_HASHES)
        validate_filter_bits(self.bits)
        validate_flag(self.padded, "padded")
        validate_flag(self.normalised, "normalised")

    def grams(self, text: str) -> set[str]:
        """Return the distinct q-grams of a text; a shorter text is its own q-gram.

        >>> sorted(StringFilter(q=2, padded=False).grams("anna"))
        ['an', 'na', 'nn']
        """
        if self.padded:
            text = _START_PADDING * (self.q - 1) + text + _END_PADDING * (self.q - 1)
        return {text[start : start + self.q] for start in range(max(1, len(text) - self.q + 1))}

    def normal_form(self, text: str) -> str:
        """Return a normal form that is equal for all texts with equal filters."""
        return normalise_text(text) if self.normalised else text

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits:
        """Return one packed filter per text."""
        return self._encode(self._prepared(column, column.texts()), [""] * len(column), subkey)

    def encode_salted(self, column: IdentifierColumn, salt: IdentifierColumn, subkey: bytes) -> Bits:
        """Return one packed filter per text; records with different salts get unrelated filters."""
        return self._encode(self._prepared(column, column.texts()), self._prepared(salt, salt.labels()), subkey)

    def _prepared(self, column: IdentifierColumn, texts: list[str]) -> list[str]:
        prepared = [self.normal_form(text) for text in texts]
        empty = np.array([not text for text in prepared], dtype=np.bool_)
        column.refuse(empty, "is empty; fill it in or drop the record", "empty-text")
        return prepared

    def _encode(self, texts: Sequence[str], salts: Sequence[str], subkey: bytes) -> Bits:
        def tile(rows: slice) -> Flags:
            number: dict[str, int] = {}
            occurrences: list[int] = []
            ends: list[int] = []
            for text, salt in zip(texts[rows], salts[rows], strict=True):
                # The length distinguishes salt "a" with gram "bc" from salt "ab" with gram "c".
                prefix = f"{len(salt)}:{salt}"
                occurrences += [number.setdefault(prefix + gram, len(number)) for gram in self.grams(text)]
                ends.append(len(occurrences))
            # The remainder favours low positions by less than bits / 2**64.
            drawn = shake_words(subkey, (token.encode("utf-8", "surrogatepass") for token in number), self.hashes)
            positions = (drawn % np.uint64(self.bits)).astype(np.int64)
            row = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
            ones = np.zeros(len(ends) * self.bits, dtype=np.bool_)
            ones[(row * self.bits)[:, np.newaxis] + positions[occurrences]] = True
            return ones.reshape(len(ends), self.bits)

        return pack_rows(len(texts), self.bits, tile)


def normalise_text(text: str) -> str:
    """Return text with uniform compatibility forms, letter case and white space (NFKC, case folding).

    Parameters
    ----------
    text
        The text of a cell.

    Examples
    --------
    >>> normalise_text("  Straße\\u00a0 No. ② ")
    'strasse no. 2'
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class DateFilter:
    """FEDERAL filters for dates, counted as days since 1970.

    Only the time between two dates counts: a swapped day and month, or a mistyped decade, can make them far apart.

    Parameters
    ----------
    low, high
        The range of the dates.
    threshold
        Half the difference in days up to which distances grow.
    bits
        Size of a filter, a multiple of 8.

    Examples
    --------
    >>> DateFilter(date(1900, 1, 1), date(2030, 1, 1), threshold=365).bits
    1024
    """

    KIND: ClassVar[str] = "date"
    CELLS: ClassVar[str] = "date"

    low: date
    high: date
    threshold: float
    bits: int = 1024

    def __post_init__(self) -> None:
        convert_scalars(self)
        for name, day in (("low", self.low), ("high", self.high)):
            if type(day) is not date:
                message = f"{name}={day!r} is not a date; use datetime.date(2001, 12, 31)"
                raise SettingError(message, code="bad-date", name=name)
        if self.low >= self.high:
            raise SettingError(f"low={self.low} must be before high={self.high}", code="bad-range", name="high")
        self._numeric()

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits:
        """Return one packed filter per date."""
        return self._numeric().encode(self._days(column), subkey)

    def _numeric(self) -> NumericFilter:
        low, high = (float(day.toordinal() - _EPOCH) for day in (self.low, self.high))
        return NumericFilter(low, high, self.threshold, self.bits)

    def _days(self, column: IdentifierColumn) -> IdentifierColumn:
        days, numeric = column.days(), self._numeric()
        column.refuse(
            (days < numeric.low) | (days > numeric.high),
            f"is outside the agreed range {self.low} to {self.high}; agree on a wider one or drop the record",
            "outside-range",
        )
        return IdentifierColumn(days, column.name, column.table)


# Places, numbers and dates as positions in a secret coordinate system, at any resolution in 12 or 4 bytes
#
# A filter needs more bits for a finer resolution; a position is one integer per axis whatever the resolution. The
# coordinator compares positions by straight-line distance, so it sees an unlabelled map: which records are near each
# other and how far apart, but not where on Earth, on which axis or in which direction. Numeric filters reveal the same
# order and distances. If the map itself must not leak, blur places before they are encoded.

POSITION_BYTES = POSITION_DTYPE.itemsize
MAX_POSITION = 2**30  # before the secret shift, which is at most as large, so the sum fits four bytes
MIN_METRES = EARTH_RADIUS / MAX_POSITION


def pack_positions(positions: Floats) -> Bits:
    """Return rounded positions, (records, axes), as four bytes per axis."""
    whole = np.ascontiguousarray(np.rint(positions), dtype=POSITION_DTYPE)
    return whole.view(np.uint8).reshape(len(positions), POSITION_BYTES * positions.shape[1])


@dataclass(frozen=True)
class PlacePosition:
    """Latitude and longitude as a point on the globe after a secret rotation.

    The straight-line distance between points orders places exactly as the distance on the ground does, everywhere on
    Earth. The schema field names the latitude column as ``column`` and the longitude column as ``longitude``.

    Parameters
    ----------
    metres
        Resolution: the unit of the distances.

    Examples
    --------
    >>> here, there = (IdentifierColumn([degrees]) for degrees in (1.3, 103.8))
    >>> PlacePosition().encode_place(here, there, bytes(32)).shape
    (1, 12)
    """

    KIND: ClassVar[str] = "place"
    CELLS: ClassVar[str] = "number"
    bits: ClassVar[int] = 3 * 8 * POSITION_BYTES

    metres: float = 1.0

    def __post_init__(self) -> None:
        convert_scalars(self)
        validate_number(self.metres, "metres", least=MIN_METRES)

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits:
        """Raise an error: a place needs both latitude and longitude."""
        message = f"field {column.name!r} is a place; set longitude to the name of its longitude column"
        raise SettingError(message, code="missing-longitude", column=column.name)

    def encode_place(self, latitude: IdentifierColumn, longitude: IdentifierColumn, subkey: bytes) -> Bits:
        """Return three packed coordinates per record."""
        on_globe = _on_globe(latitude, longitude)
        return pack_positions(on_globe @ _secret_rotation(subkey) * (EARTH_RADIUS / self.metres))

    def points(self, latitude: IdentifierColumn, longitude: IdentifierColumn) -> Floats:
        """Return the points before rotation, unrounded, in units from the centre of the Earth, (n, 3)."""
        return _on_globe(latitude, longitude) * (EARTH_RADIUS / self.metres)


def _on_globe(latitude: IdentifierColumn, longitude: IdentifierColumn) -> Floats:
    degrees = []
    for column, limit in ((latitude, 90), (longitude, 180)):
        values = column.numbers()
        rule = f"is outside -{limit} to {limit} degrees; correct it, or swap latitude and longitude"
        column.refuse(np.abs(values) > limit, rule, "outside-range")
        degrees.append(values)
    return on_unit_sphere(np.radians(np.column_stack(degrees)))


def _secret_rotation(subkey: bytes) -> Floats:
    """Return a uniformly random rotation of space, from a random unit quaternion (Shoemake 1992)."""
    share, one, other = shake_uniforms(subkey, 3)
    a, b = np.sqrt(1 - share), np.sqrt(share)
    x, y = a * np.sin(2 * np.pi * one), a * np.cos(2 * np.pi * one)
    z, w = b * np.sin(2 * np.pi * other), b * np.cos(2 * np.pi * other)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


@dataclass(frozen=True)
class NumberPosition:
    """A number as a position on an axis with a secret origin and direction.

    Parameters
    ----------
    unit
        Resolution; numbers this far apart have distance 1. Units of several fields weigh them against each other.

    Examples
    --------
    >>> NumberPosition(unit=0.5).encode(IdentifierColumn([36.5, 37.0]), bytes(32)).shape
    (2, 4)
    """

    KIND: ClassVar[str] = "number"
    CELLS: ClassVar[str] = "number"
    bits: ClassVar[int] = 8 * POSITION_BYTES

    unit: float

    def __post_init__(self) -> None:
        convert_scalars(self)
        validate_number(self.unit, "unit", above=0)

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits:
        """Return one packed coordinate per number."""
        return _shifted(self.points(column), column, self.unit, subkey)

    def points(self, column: IdentifierColumn) -> Floats:
        """Return the numbers in units, not rounded, (n, 1)."""
        return column.numbers()[:, None] / self.unit


def _shifted(points: Floats, column: IdentifierColumn, unit: float, subkey: bytes) -> Bits:
    """Return packed positions on an axis with a secret origin and direction."""
    rule = f"is more than {MAX_POSITION:,} units of {unit:g} from zero; agree on a larger unit"
    column.refuse(np.abs(points[:, 0]) > MAX_POSITION, rule, "outside-range")
    shift, direction = shake_uniforms(subkey, 2)
    origin = np.rint((2 * shift - 1) * (MAX_POSITION - 1))
    return pack_positions(origin + (1 if direction < 0.5 else -1) * np.rint(points))


@dataclass(frozen=True)
class DatePosition:
    """A date as a position on an axis with a secret origin and direction.

    Parameters
    ----------
    days
        Resolution; dates this far apart have distance 1.

    Examples
    --------
    >>> DatePosition().bits
    32
    """

    KIND: ClassVar[str] = "day"
    CELLS: ClassVar[str] = "date"
    bits: ClassVar[int] = 8 * POSITION_BYTES

    days: float = 1.0

    def __post_init__(self) -> None:
        NumberPosition(self.days)

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits:
        """Return one packed coordinate per date."""
        return _shifted(self.points(column), column, self.days, subkey)

    def points(self, column: IdentifierColumn) -> Floats:
        """Return the dates in units since 1970, not rounded, (n, 1)."""
        return column.days()[:, None] / self.days
