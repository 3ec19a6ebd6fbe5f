"""Find columns by name and convert their cells to numbers, text or dates; errors name the first bad row."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import polars as pl

from fedsim.cells import parse_iso_date, parse_iso_datetime
from fedsim.errors import InputError, SettingError

# Columns as numbers, names or dates; the first cell that is not one is named by its row
#
# Rows are data rows: the first one under the header is row 1.


DECIMAL_COMMA = r"^[+-]?[0-9]+,[0-9]+$"
TEXT_DTYPES = (pl.String, pl.Categorical, pl.Enum, pl.Null)


def parse_required_numbers(cells: pl.Series, *, table: str) -> pl.Series:
    """The column as finite float64."""
    where = f"{table}: column {cells.name!r}"
    written = _require_filled(cells, where)
    if not (written.dtype.is_numeric() or written.dtype == pl.String):
        raise InputError(f"{where} holds {written.dtype}; numbers are needed")
    values = written.cast(pl.Float64, strict=False)
    raise_first_bad_row(values.is_null(), where, f"is not a number; {number_advice(written, values)}")
    raise_first_bad_row(~values.is_finite(), where, "is not finite; fill it or drop the row")
    return values


def parse_required_texts(cells: pl.Series, *, table: str) -> pl.Series:
    """The column as text, none of it blank; numbers and dates are refused, for two parties rarely print them alike."""
    where = f"{table}: column {cells.name!r}"
    if cells.dtype not in TEXT_DTYPES:
        raise InputError(
            f"{where} holds {cells.dtype}, but text is needed; convert the column to text, alike at both parties"
        )
    written = cells.cast(pl.String)
    _require_filled(written, where)
    return written


def parse_required_dates(cells: pl.Series, *, table: str) -> pl.Series:
    """The column as calendar dates, ISO 8601 (``1984-07-31``) where it is text; a moment has the date of its zone."""
    where = f"{table}: column {cells.name!r}"
    written = _require_filled(cells, where)
    if written.dtype in (pl.Date, pl.Datetime):
        return written.dt.date()
    if written.dtype not in TEXT_DTYPES:
        raise InputError(f"{where} holds {written.dtype}; dates like 1984-07-31 are needed")
    days = pl.Series(cells.name, [parse_iso_date(cell) for cell in written], dtype=pl.Date)
    raise_first_bad_row(days.is_null(), where, "is not a date like 1984-07-31; write year-month-day")
    return days


def strip_blanks(cells: pl.Series) -> pl.Series:
    """Text without blanks around it, null where only blanks stand; other columns as they are."""
    if cells.dtype not in TEXT_DTYPES:
        return cells
    bare = cells.cast(pl.String).str.strip_chars()
    return bare.set(bare == "", None)


def _require_filled(cells: pl.Series, where: str) -> pl.Series:
    """The cells without blanks around text, none of them missing."""
    written = strip_blanks(cells)
    raise_first_bad_row(written.is_null(), where, "is missing; fill it or drop the row")
    return written


def raise_first_bad_row(bad: pl.Series, where: str, rule: str) -> None:
    """Name the first bad row, and say how many there are."""
    rows = bad.arg_true()
    if len(rows):
        more = f" ({len(rows):,} such rows)" if len(rows) > 1 else ""
        raise InputError(f"{where}, row {int(rows[0]) + 1} {rule}{more}")


def number_advice(written: pl.Series, values: pl.Series) -> str:
    """What to do about text that is not a number."""
    first = written.filter(values.is_null()).head(1)
    if first.dtype == pl.String and first.str.contains(DECIMAL_COMMA).any():
        return "write decimals with a point, not a comma"
    return "correct it or drop the row"


# What a column means - number, category or date - and its cells in the one form the preparation works on
#
# A kind follows from the column's type unless it is declared; text is a category until it is declared a number or a
# date. Every fault names table, column and row (data rows count from 1), never the value.


class ColumnKind(StrEnum):
    """What the values of a column are."""

    NUMBER = "number"
    CATEGORY = "category"
    DATE = "date"


def get_kind(word: str) -> ColumnKind:
    """The kind for a word.

    >>> get_kind("date")
    <ColumnKind.DATE: 'date'>
    """
    try:
        return ColumnKind(word)
    except ValueError:
        raise SettingError(f"kind '{word}' is unknown; the kinds are {', '.join(ColumnKind)}") from None


def infer_kind(cells: pl.Series, *, party: str) -> ColumnKind:
    """The kind that the column's type says; true/false counts as the numbers one and zero."""
    if cells.dtype.is_numeric() or cells.dtype in (pl.Boolean, pl.Null):
        return ColumnKind.NUMBER
    if cells.dtype in (pl.Date, pl.Datetime):
        return ColumnKind.DATE
    if cells.dtype in (pl.String, pl.Categorical, pl.Enum):
        return ColumnKind.CATEGORY
    raise InputError(
        f"{party} table, column '{cells.name}' holds {cells.dtype}; give numbers, text, true/false or dates, or drop "
        "the column"
    )


def parse_column(cells: pl.Series, kind: ColumnKind, *, party: str) -> pl.Series:
    """The column as Float64, String or Datetime; missing cells are null."""
    readers = {ColumnKind.NUMBER: parse_numbers, ColumnKind.CATEGORY: parse_texts, ColumnKind.DATE: parse_dates}
    return readers[kind](cells, party=party)


def parse_numbers(cells: pl.Series, *, party: str) -> pl.Series:
    """Finite Float64, null where nothing stands (NaN, an empty text)."""
    where = f"{party} table, column '{cells.name}'"
    written = strip_blanks(cells)
    if not (written.dtype.is_numeric() or written.dtype in (pl.Boolean, pl.String, pl.Null)):
        raise InputError(f"{where} holds {cells.dtype}, but it is a column of numbers; convert it")
    values = written.cast(pl.Float64, strict=False)
    bad = values.is_null() & written.is_not_null()
    raise_first_bad_row(bad, where, f"is not a number; {number_advice(written.filter(bad), values.filter(bad))}")
    values = values.fill_nan(None)
    raise_first_bad_row(
        values.is_infinite().fill_null(value=False), where, "is not finite; correct it or leave it empty"
    )
    return values


def parse_texts(cells: pl.Series, *, party: str) -> pl.Series:
    """Text; whole numbers lose their decimals, because pandas turns 7 into 7.0 as soon as another row is empty."""
    if cells.dtype.is_float():
        values = cells.fill_nan(None)
        whole = values.is_finite() & (values == values.floor()) & (values.abs() < 2**53)
        plain = values.cast(pl.Int64, strict=False).cast(pl.String)
        return plain.zip_with(whole.fill_null(value=False), values.cast(pl.String))
    if cells.dtype.is_nested() or cells.dtype in (pl.Binary, pl.Object):
        raise InputError(f"{party} table, column '{cells.name}' holds {cells.dtype}, but it is a category; convert it")
    return strip_blanks(cells.cast(pl.String))


def parse_dates(cells: pl.Series, *, party: str) -> pl.Series:
    """Moments without a time zone (the clock on the wall), from dates, datetimes or ISO 8601 text (1984-07-31)."""
    where = f"{party} table, column '{cells.name}'"
    if cells.dtype == pl.Datetime:
        return cells.dt.replace_time_zone(None).cast(pl.Datetime("us"))
    if cells.dtype in (pl.Date, pl.Null):
        return cells.cast(pl.Datetime("us"))
    written = strip_blanks(cells)
    if written.dtype != pl.String:
        raise InputError(f"{where} holds {cells.dtype}, but it is a column of dates; write them as 1984-07-31")
    moments = pl.Series(cells.name, [cell and parse_iso_datetime(cell) for cell in written], dtype=pl.Datetime("us"))
    raise_first_bad_row(
        moments.is_null() & written.is_not_null(), where, "is not a date like 1984-07-31; write year-month-day"
    )
    return moments


# Cells of a text file as numbers, wherever a whole column allows it


def infer_numbers(table: pl.DataFrame, missing: Sequence[str] = ()) -> pl.DataFrame:
    """Text columns that hold nothing but numbers become numbers; the words in ``missing`` and blanks become null.

    >>> infer_numbers(pl.DataFrame({"area": ["40", "NA"], "town": ["a", "1"]}), ["NA"]).dtypes
    [Float64, String]
    """
    columns = []
    for column in table.iter_columns():
        text = column if column.dtype != pl.String else column.replace([*missing, ""], None)
        numbers = text.cast(pl.Float64, strict=False) if text.dtype == pl.String else text
        columns.append(numbers if numbers.null_count() == text.null_count() else text)
    return pl.DataFrame(columns)
