"""Read the cells of a column as numbers, text, dates, categories or keys, and list the invalid cells.

All parts of FedSim read table cells through this module: a party's runtime raises the first fault, and `fedsim check`
lists all of them. A fault names rows, never their contents.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from numbers import Integral, Real
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from fedsim.errors import InputError
from fedsim.types import MAX_MAGNITUDE, NUMBER_FORMATS, CellFormat, Floats, Integers

DECIMAL_COMMA = r"^[+-]?[0-9]+,[0-9]+$"
TEXT_DTYPES = (pl.String, pl.Categorical, pl.Enum, pl.Null)
MAX_EXACT_INTEGER = 2**53  # above this, float64 cannot represent every whole number
_MAX_KEY = 10**1000  # Python refuses to print numbers of thousands of digits
_DATETIME = pl.Datetime("us")
# [0-9], because \d matches the digits of every script.
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}.*)?")
# The dates that polars reads as parse_iso_datetime does, and their formats; polars knows a year 0 and leap seconds.
_PLAIN_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{6})?)?)?$"
_PLAIN_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S%.6f")
# The missing values of pandas, matched by name because pandas may not be installed.
_MISSING_TYPES = {"NAType", "NaTType"}


class CellType(StrEnum):
    """What the cells of a column are read as."""

    NUMBER = "number"  # Float64
    TEXT = "text"  # String
    DATE = "date"  # Datetime without a time zone, in local time
    CATEGORY = "category"  # String; whole numbers without decimals
    KEY = "key"  # String that is only compared for equality: 1990, 1990.0 and "1990" are one key


FEATURE_TYPES = (CellType.NUMBER, CellType.CATEGORY, CellType.DATE)  # what a feature can be declared as


class FaultKind(StrEnum):
    """What is wrong with a cell; the value is also the error code."""

    MISSING = "missing-cell"
    NOT_A_NUMBER = "not-a-number"
    DECIMAL_COMMA = "decimal-comma"
    NOT_FINITE = "not-finite"
    TOO_LARGE = "number-too-large"
    INEXACT = "inexact-number"
    NOT_TEXT = "not-text"
    NOT_UNICODE = "not-unicode"
    NOT_A_DATE = "not-a-date"
    NOT_A_KEY = "not-a-key"
    WRONG_TYPE = "wrong-type"  # of the whole column


# For one cell, for several, and the way out.
_FAULT_TEXTS = {
    FaultKind.MISSING: ("is missing", "are missing", "fill it in or drop the record"),
    FaultKind.NOT_A_NUMBER: ("is not a number", "are not numbers", "correct it or drop the record"),
    FaultKind.DECIMAL_COMMA: ("is not a number", "are not numbers", "write decimals with a point, not a comma"),
    FaultKind.NOT_FINITE: ("is not finite", "are not finite", "correct it or drop the record"),
    FaultKind.TOO_LARGE: (
        f"is beyond {MAX_MAGNITUDE:g}",
        f"are beyond {MAX_MAGNITUDE:g}",
        "correct it, or leave it empty if it marks a missing value",
    ),
    FaultKind.INEXACT: ("is 2**53 or more", "are 2**53 or more", "such numbers lose digits: compare them as text"),
    FaultKind.NOT_TEXT: ("is not text", "are not text", "convert the column to text, in the same way at every party"),
    FaultKind.NOT_UNICODE: ("is not valid Unicode", "are not valid Unicode", "use the correct encoding of the table"),
    FaultKind.NOT_A_DATE: ("is not a date like 1984-07-31", "are not dates like 1984-07-31", "write year-month-day"),
    FaultKind.NOT_A_KEY: (
        "is neither text, whole number nor date",
        "are neither text, whole number nor date",
        "convert the column to one of them",
    ),
    FaultKind.WRONG_TYPE: ("", "", "convert the column"),
}
_NEEDED = {
    CellType.NUMBER: "numbers are",
    CellType.TEXT: "text is",
    CellType.DATE: "dates like 1984-07-31 are",
    CellType.CATEGORY: "numbers, text, true/false or dates are",
    CellType.KEY: "text, whole numbers or dates are",
}


@dataclass(frozen=True, eq=False)
class CellFault:
    """The cells of a column that share a fault; ``rows`` are counted from 0, ``held`` is the type of a wrong column."""

    kind: FaultKind
    rows: Integers
    wanted: CellType
    held: str = ""

    @property
    def way_out(self) -> str:
        """How the owner of the table can fix it."""
        return _FAULT_TEXTS[self.kind][2]

    def describe(self, column: str, n_rows: int) -> str:
        """Describe how many cells are affected and where the first one is, as `fedsim check` prints it."""
        if self.kind is FaultKind.WRONG_TYPE:
            return f"column '{column}' holds {self.held}; {_NEEDED[self.wanted]} needed"
        count, first = f"{len(self.rows):,} of {n_rows:,}", f"first in row {int(self.rows[0]) + 1:,}"
        return f"column '{column}': {count} {_FAULT_TEXTS[self.kind][1]}, {first}"

    def error(self, table: str, column: str) -> InputError:
        """Return the error for the first such cell; rows are counted from 1, without the header."""
        if self.kind is FaultKind.WRONG_TYPE:
            message = f"{table}: {self.describe(column, len(self.rows))}; {self.way_out}"
            return InputError(message, code=self.kind.value, table=table, column=column, held=self.held)
        row, count = int(self.rows[0]) + 1, len(self.rows)
        message = f"{table}: column '{column}', row {row} {_FAULT_TEXTS[self.kind][0]}; {self.way_out}"
        more = f" ({count:,} such rows)" if count > 1 else ""
        places = {"row": row, "rows": (self.rows + 1).tolist(), "count": count}
        return InputError(message + more, code=self.kind.value, table=table, column=column, **places)


@dataclass(frozen=True, eq=False)
class Cells:
    """The values of a column, null where a cell is missing or invalid, and its faults in row order."""

    values: pl.Series = field(repr=False)
    faults: tuple[CellFault, ...] = ()

    def require(self, table: str, *, allow_missing: bool = False) -> pl.Series:
        """Return the values, or raise the first fault as an error that names ``table``."""
        for fault in self.faults:
            if not (allow_missing and fault.kind is FaultKind.MISSING):
                raise fault.error(table, self.values.name)
        return self.values


def read_cells(column: Any, wanted: CellType, *, name: str = "", parse: bool = True, exact: bool = False) -> Cells:
    """Read a column from any library, or a list, as values of one type.

    Parameters
    ----------
    column
        A polars, pandas or Arrow column, a NumPy array or a list.
    wanted
        The type of the values.
    name
        The name of the column, if the object has none.
    parse
        Whether cells may be text as in a CSV file; if so, ``" 12.5"`` is a number and a blank cell is missing.
    exact
        Whether whole numbers that float64 cannot hold are a fault.

    Examples
    --------
    >>> cells = read_cells(["12.5", "", "1,5"], CellType.NUMBER, name="area")
    >>> cells.values.to_list(), [(fault.kind.value, fault.rows.tolist()) for fault in cells.faults]
    ([12.5, None, None], [('missing-cell', [1]), ('decimal-comma', [2])])
    """
    series = to_series(column, name)
    if series.dtype == pl.Object or wanted is CellType.KEY:
        return _read_objects(series, wanted, parse=parse, exact=exact)
    if wanted is CellType.NUMBER:
        return _read_numbers(series, parse=parse, exact=exact)
    if wanted is CellType.TEXT:
        return _read_texts(series, parse=parse)
    return _read_dates(series, parse=parse) if wanted is CellType.DATE else _read_categories(series)


def read_number_columns(frame: pl.DataFrame, columns: Sequence[str], table: str) -> Floats:
    """Return the given columns of a table as float64, shape (records, columns); every cell must be a number."""
    return np.column_stack([read_cells(frame[name], CellType.NUMBER).require(table).to_numpy() for name in columns])


def _read_numbers(cells: pl.Series, *, parse: bool, exact: bool) -> Cells:
    text = strip_blanks(cells) if parse else cells
    if not (text.dtype.is_numeric() or text.dtype == pl.Null or (parse and text.dtype == pl.String)):
        return _wrong_type(cells, CellType.NUMBER)
    values = text.cast(pl.Float64, strict=False)
    faulty = values.is_null() & text.is_not_null()
    commas = faulty & (text.str.contains(DECIMAL_COMMA) if text.dtype == pl.String else False)
    values = values.fill_nan(None)
    infinite = values.is_infinite()
    too_large = (values.abs() >= MAX_MAGNITUDE) & ~infinite
    faults = {
        FaultKind.MISSING: values.is_null() & ~faulty,
        FaultKind.DECIMAL_COMMA: commas,
        FaultKind.NOT_A_NUMBER: faulty & ~commas,
        FaultKind.NOT_FINITE: infinite,
        FaultKind.TOO_LARGE: too_large,
    }
    if exact and text.dtype.is_integer():
        faults[FaultKind.INEXACT] = values.abs() >= MAX_EXACT_INTEGER
    return _cells(values.set(infinite | too_large, None), CellType.NUMBER, faults)


def _read_texts(cells: pl.Series, *, parse: bool) -> Cells:
    if cells.dtype not in TEXT_DTYPES:  # numbers and dates too: two parties rarely format them alike
        return _wrong_type(cells, CellType.TEXT)
    text = cells.cast(pl.String)
    missing = (strip_blanks(text) if parse else text).is_null()
    return _cells(text.set(missing, None), CellType.TEXT, {FaultKind.MISSING: missing})


def _read_dates(cells: pl.Series, *, parse: bool) -> Cells:
    if cells.dtype == pl.Datetime:
        moments = cells.dt.replace_time_zone(None).cast(_DATETIME)
        return _cells(moments, CellType.DATE, {FaultKind.MISSING: moments.is_null()})
    if cells.dtype in (pl.Date, pl.Null):
        return _cells(cells.cast(_DATETIME), CellType.DATE, {FaultKind.MISSING: cells.is_null()})
    if cells.dtype.is_numeric() and bool(cells.drop_nulls().is_between(1, 9999).all()):  # years
        cells = _read_categories(cells).values.str.zfill(4)  # 2013.0 becomes 2013
    if cells.dtype not in TEXT_DTYPES:
        return _wrong_type(cells, CellType.DATE)
    text = strip_blanks(cells) if parse else cells.cast(pl.String)
    moments = _parse_dates(text)
    missing = text.is_null()
    faults = {FaultKind.MISSING: missing, FaultKind.NOT_A_DATE: moments.is_null() & ~missing}
    return _cells(moments, CellType.DATE, faults)


def _parse_dates(text: pl.Series) -> pl.Series:
    """Return dates and times as :func:`_parse_day_or_year` reads them; plain ones all at once, others once per text.

    >>> _parse_dates(pl.Series(["1984-07-31", "2013", "1984-02-30"])).dt.date().to_list()
    [datetime.date(1984, 7, 31), datetime.date(2013, 7, 2), None]
    """
    plain = text.set(~text.str.contains(_PLAIN_DATE) | text.str.starts_with("0000"), None).str.replace("T", " ")
    moments = pl.Series(text.name, [None], _DATETIME).new_from_index(0, len(text))
    for form in _PLAIN_FORMATS:
        if moments.null_count() == plain.null_count():
            break
        moments = moments.zip_with(moments.is_not_null(), plain.str.to_datetime(form, time_unit="us", strict=False))
    others = text.filter(moments.is_null() & text.is_not_null()).unique()
    if others.is_empty():
        return moments
    parsed = pl.Series([_parse_day_or_year(cell) for cell in others], dtype=_DATETIME)
    return moments.zip_with(moments.is_not_null(), text.replace_strict(others, parsed, default=None))


def _parse_day_or_year(text: str) -> datetime | None:
    """Return the date and time, or mid-year if the text is only a year: one table may have days, another only years.

    >>> _parse_day_or_year("2013")
    datetime.datetime(2013, 7, 2, 0, 0)
    """
    if len(text) == 4 and text.isdecimal() and int(text):
        return datetime(int(text), 7, 2)
    return parse_iso_datetime(text)


def _read_categories(cells: pl.Series) -> Cells:
    if cells.dtype.is_nested() or cells.dtype == pl.Binary:
        return _wrong_type(cells, CellType.CATEGORY)
    if cells.dtype.is_float():
        # Drop the decimals of whole numbers, because pandas turns 7 into 7.0 as soon as any row is empty.
        values = cells.fill_nan(None)
        whole = values.is_finite() & (values == values.floor()) & (values.abs() < MAX_EXACT_INTEGER)
        integers = values.cast(pl.Int64, strict=False).cast(pl.String)
        text = integers.zip_with(whole.fill_null(value=False), values.cast(pl.String))
    else:
        text = strip_blanks(cells.cast(pl.String))
    return _cells(text, CellType.CATEGORY, {FaultKind.MISSING: text.is_null()})


def _read_objects(cells: pl.Series, wanted: CellType, *, parse: bool, exact: bool) -> Cells:
    """Read Python objects of several types one by one."""
    converters: dict[CellType, tuple[Callable[[Any], Any], Any]] = {
        CellType.NUMBER: (lambda cell: _to_number(cell, exact=exact), pl.Float64),
        CellType.TEXT: (_to_text, pl.String),
        CellType.DATE: (lambda cell: _to_datetime(cell, parse=parse), _DATETIME),
        CellType.KEY: (_to_key, pl.String),
    }
    if wanted not in converters:
        return _wrong_type(cells, wanted)
    convert, dtype = converters[wanted]
    values: list[Any] = []
    rows: dict[FaultKind, list[int]] = {}
    for row, cell in enumerate(cells.to_list()):
        value = FaultKind.MISSING if is_missing(cell) else convert(cell)
        if isinstance(value, FaultKind):
            rows.setdefault(value, []).append(row)
        values.append(None if isinstance(value, FaultKind) else value)
    faults = [CellFault(kind, np.array(bad, dtype=np.int64), wanted) for kind, bad in rows.items()]
    return Cells(pl.Series(cells.name, values, dtype), tuple(faults))


def _to_number(cell: object, *, exact: bool) -> float | FaultKind:
    if not isinstance(cell, Real | Decimal) or isinstance(cell, bool):
        return FaultKind.NOT_A_NUMBER
    if exact and isinstance(cell, Integral) and abs(int(cell)) >= MAX_EXACT_INTEGER:
        return FaultKind.INEXACT
    try:
        number = float(cell)
    except (OverflowError, ValueError):
        return FaultKind.NOT_FINITE
    if not math.isfinite(number):
        return FaultKind.NOT_FINITE
    return number if abs(number) < MAX_MAGNITUDE else FaultKind.TOO_LARGE


def _to_text(cell: object) -> str | FaultKind:
    if not isinstance(cell, str):
        return FaultKind.NOT_TEXT
    return str(cell) if _is_unicode(cell) else FaultKind.NOT_UNICODE


def _to_datetime(cell: object, *, parse: bool) -> datetime | FaultKind:
    if isinstance(cell, str):
        return parse_iso_datetime(cell.strip() if parse else cell) or FaultKind.NOT_A_DATE
    if isinstance(cell, datetime):
        return datetime(*cell.timetuple()[:6], cell.microsecond)
    return datetime(cell.year, cell.month, cell.day) if isinstance(cell, date) else FaultKind.NOT_A_DATE


def _to_key(cell: object) -> str | FaultKind:
    if isinstance(cell, date):
        return date(cell.year, cell.month, cell.day).isoformat()
    if isinstance(cell, str):
        return _to_text(cell)
    whole = isinstance(cell, Integral) and not isinstance(cell, bool)
    if whole or (isinstance(cell, float | np.floating) and float(cell).is_integer()):
        number = int(cell)  # type: ignore[call-overload]
        return str(number) if abs(number) <= _MAX_KEY else FaultKind.NOT_A_KEY
    return FaultKind.NOT_A_KEY


def _cells(values: pl.Series, wanted: CellType, faulty: dict[FaultKind, pl.Series]) -> Cells:
    rows = {kind: mask.fill_null(value=False).arg_true().to_numpy().astype(np.int64) for kind, mask in faulty.items()}
    faults = sorted((CellFault(kind, bad, wanted) for kind, bad in rows.items() if len(bad)), key=lambda it: it.rows[0])
    return Cells(values, tuple(faults))


def _wrong_type(cells: pl.Series, wanted: CellType) -> Cells:
    names: dict[Any, str] = {pl.String: "text", pl.Object: "values of several types"}
    held = names.get(cells.dtype, str(cells.dtype))
    fault = CellFault(FaultKind.WRONG_TYPE, np.arange(len(cells)), wanted, held)
    dtype: Any = {CellType.NUMBER: pl.Float64, CellType.DATE: _DATETIME}.get(wanted, pl.String)
    return Cells(pl.Series(cells.name, [None] * len(cells), dtype), (fault,))


# Numbers and dates as spreadsheets write them

_CURRENCY = r"(?:[A-Z]{0,3}\p{Sc}|AUD|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|INR|JPY|NOK|NZD|PLN|SEK|SGD|USD)?"
_CLOCK = r"(?:[T ]+([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?)?"
_DATE_ORDERS: dict[str, tuple[str, ...]] = {
    CellFormat.DAY_MONTH_YEAR: ("day", "month", "year"),
    CellFormat.MONTH_DAY_YEAR: ("month", "day", "year"),
    CellFormat.YEAR_MONTH_DAY: ("year", "month", "day"),
}


def rewrite_cells(cells: pl.Series, written: str) -> pl.Series:
    """Return a text column with numbers like 1234.56, or dates like 2020-12-31; cells of another form stay as they are.

    Parameters
    ----------
    cells
        The column; one that is not text is returned unchanged.
    written
        How its numbers or dates are written, one of :class:`~fedsim.types.CellFormat`.

    Examples
    --------
    >>> rewrite_cells(pl.Series(["1.234,56 €", "7", "NA"]), CellFormat.DECIMAL_COMMA).to_list()
    ['1234.56', '7', 'NA']
    """
    if cells.dtype != pl.String:
        return cells
    text = cells.str.strip_chars()
    found = _rewrite_numbers(text, written) if written in NUMBER_FORMATS else _rewrite_dates(text, written)
    return found.zip_with(found.is_not_null(), cells).rename(cells.name)


def _rewrite_numbers(text: pl.Series, written: str) -> pl.Series:
    """Return numbers in the usual form, with null for other cells."""
    decimal, thousands = (",", r"[.'’\s]") if written == CellFormat.DECIMAL_COMMA else (r"\.", r"[,'’\s]")
    whole = rf"[0-9]{{1,3}}(?:{thousands}[0-9]{{2,3}})*{thousands}[0-9]{{3}}|[0-9]+"  # twos are usual in India
    number = rf"([+-]?)\s*{_CURRENCY}\s*({whole})(?:{decimal}([0-9]+))?([eE][+-]?[0-9]+)?"
    form = rf"^(?:{_CURRENCY}\s*{number}|{number}\s*{_CURRENCY})$"
    parts = text.str.replace("−", "-", literal=True).str.extract_groups(form).struct.unnest()
    sign, units, fraction, power = (pl.coalesce(str(place), str(place + 4)) for place in range(1, 5))
    digits = units.str.replace_all(thousands, "")
    rest = pl.when(fraction.is_null()).then(pl.lit("")).otherwise(pl.lit(".") + fraction)
    return parts.select(sign.fill_null("") + digits + rest + power.fill_null("")).to_series()


def _rewrite_dates(text: pl.Series, written: str) -> pl.Series:
    """Return dates in the usual form, with null for other cells and for days that do not exist."""
    order = _DATE_ORDERS[written]
    form = r"[./-]\s?".join(r"([0-9]{4})" if part == "year" else r"([0-9]{1,2})" for part in order)
    parts = text.str.extract_groups(rf"^{form}{_CLOCK}$").struct.unnest()
    year, month, day = (pl.col(str(1 + order.index(part))) for part in ("year", "month", "day"))
    hour, minute, second = (pl.col(str(place)) for place in (4, 5, 6))
    days = year + "-" + month.str.zfill(2) + "-" + day.str.zfill(2)
    seconds = pl.when(second.is_null()).then(pl.lit("")).otherwise(pl.lit(":") + second)
    clock = pl.when(hour.is_null()).then(pl.lit("")).otherwise(pl.lit(" ") + hour.str.zfill(2) + ":" + minute + seconds)
    exists = days.str.to_date("%Y-%m-%d", strict=False).is_not_null()
    return parts.select(pl.when(exists).then(days + clock)).to_series()


# Columns of any library as polars series


def to_series(column: Any, name: str = "") -> pl.Series:
    """Return a column as a polars series; a column of Python objects of several types has the dtype Object.

    The conversion does not use pyarrow, which pandas users may not have installed.
    """
    found = nw.from_native(column, pass_through=True, eager_only=True, allow_series=True)
    if isinstance(found, nw.Series):
        name = name or str(found.name or "")
        if found.implementation.is_polars():
            return pl.Series(name, found.to_native())
        local = isinstance(found.dtype, nw.Datetime) and not found.dtype.time_zone
        if local or found.dtype.is_float() or (found.dtype.is_integer() and found.null_count() == 0):
            return _from_array(found.to_numpy(), name)
        missing = found.is_null().to_list()
        cells = [None if gap else cell for cell, gap in zip(found.to_list(), missing, strict=True)]
        return _from_objects(cells, name)
    if hasattr(column, "__arrow_c_array__"):  # a single Arrow chunk, which narwhals does not know
        return pl.Series(name, pl.from_arrow(column))
    return _from_array(column, name) if isinstance(column, np.ndarray) else _from_objects(list(column), name)


def _from_array(array: Any, name: str) -> pl.Series:
    if array.ndim != 1:
        message = f"column {name!r} has {array.ndim} dimensions; give one value per record"
        raise InputError(message, code="column-shape", column=name)
    if array.dtype.kind in "fM":
        array = array.astype(np.float64 if array.dtype.kind == "f" else "datetime64[us]")
    if isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in "fMiub":
        return _from_objects(array.tolist(), name)  # None where masked
    return pl.Series(name, array, nan_to_null=array.dtype.kind == "f")


def _from_objects(cells: list[Any], name: str) -> pl.Series:
    filled = [cell for cell in cells if not is_missing(cell)]
    if not filled:
        return pl.Series(name, [None] * len(cells), pl.Null)
    if all(isinstance(cell, str) and _is_unicode(cell) for cell in filled):
        return pl.Series(name, [None if is_missing(cell) else str(cell) for cell in cells], pl.String)
    return pl.Series(name, cells, pl.Object)


# Single cells


def strip_blanks(cells: pl.Series) -> pl.Series:
    """Strip surrounding whitespace from text, with null for blank cells; other columns are returned unchanged."""
    if cells.dtype not in TEXT_DTYPES:
        return cells
    bare = cells.cast(pl.String).str.strip_chars()
    return bare.set(bare == "", None)


def parse_iso_datetime(text: str) -> datetime | None:
    """Parse ``1984-07-31`` or ``1984-07-31T09:30`` as local time, ignoring any UTC offset.

    >>> [parse_iso_datetime(text) for text in ("1984-07-31 09:30:00+08:00", "84-07-31", "1984-02-30")]
    [datetime.datetime(1984, 7, 31, 9, 30), None, None]
    """
    if not _ISO_DATE.fullmatch(text):
        return None
    # If Python cannot parse what follows the minutes, ignore it.
    for part in (text, text[:16]):
        try:
            return datetime.fromisoformat(part).replace(tzinfo=None)
        except ValueError:
            continue
    return None


def is_missing(cell: object) -> bool:
    """Return whether a cell holds None, NaN or a missing value of pandas.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return cell is None or (isinstance(cell, float) and math.isnan(cell)) or type(cell).__name__ in _MISSING_TYPES


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
