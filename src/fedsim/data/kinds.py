"""What a column means - number, category or date - and its cells in the one form the preparation works on.

A kind follows from the column's type unless it is declared; text is a category until it is declared a number or a date.
Every fault names table, column and row (data rows count from 1), never the value.
"""

from __future__ import annotations

from enum import StrEnum

import polars as pl

from fedsim.data.columns import advice, refuse, stripped
from fedsim.dates import iso_moment
from fedsim.errors import InputError, SettingError


class Kind(StrEnum):
    """What the values of a column are."""

    NUMBER = "number"
    CATEGORY = "category"
    DATE = "date"


def kind_named(word: str) -> Kind:
    """The kind for a word.

    >>> kind_named("date")
    <Kind.DATE: 'date'>
    """
    try:
        return Kind(word)
    except ValueError:
        raise SettingError(f"kind '{word}' is unknown; the kinds are {', '.join(Kind)}") from None


def kind_of(cells: pl.Series, *, party: str) -> Kind:
    """The kind that the column's type says; true/false counts as the numbers one and zero."""
    if cells.dtype.is_numeric() or cells.dtype in (pl.Boolean, pl.Null):
        return Kind.NUMBER
    if cells.dtype in (pl.Date, pl.Datetime):
        return Kind.DATE
    if cells.dtype in (pl.String, pl.Categorical, pl.Enum):
        return Kind.CATEGORY
    raise InputError(
        f"{party} table, column '{cells.name}' holds {cells.dtype}; give numbers, text, true/false or dates, or drop "
        "the column"
    )


def read(cells: pl.Series, kind: Kind, *, party: str) -> pl.Series:
    """The column as Float64, String or Datetime; missing cells are null."""
    readers = {Kind.NUMBER: numbers, Kind.CATEGORY: texts, Kind.DATE: dates}
    return readers[kind](cells, party=party)


def numbers(cells: pl.Series, *, party: str) -> pl.Series:
    """Finite Float64, null where nothing stands (NaN, an empty text)."""
    where = f"{party} table, column '{cells.name}'"
    written = stripped(cells)
    if not (written.dtype.is_numeric() or written.dtype in (pl.Boolean, pl.String, pl.Null)):
        raise InputError(f"{where} holds {cells.dtype}, but it is a column of numbers; convert it")
    values = written.cast(pl.Float64, strict=False)
    bad = values.is_null() & written.is_not_null()
    refuse(bad, where, f"is not a number; {advice(written.filter(bad), values.filter(bad))}")
    values = values.fill_nan(None)
    refuse(values.is_infinite().fill_null(value=False), where, "is not finite; correct it or leave it empty")
    return values


def texts(cells: pl.Series, *, party: str) -> pl.Series:
    """Text; whole numbers lose their decimals, because pandas turns 7 into 7.0 as soon as another row is empty."""
    if cells.dtype.is_float():
        values = cells.fill_nan(None)
        whole = values.is_finite() & (values == values.floor()) & (values.abs() < 2**53)
        plain = values.cast(pl.Int64, strict=False).cast(pl.String)
        return plain.zip_with(whole.fill_null(value=False), values.cast(pl.String))
    if cells.dtype.is_nested() or cells.dtype in (pl.Binary, pl.Object):
        raise InputError(f"{party} table, column '{cells.name}' holds {cells.dtype}, but it is a category; convert it")
    return stripped(cells.cast(pl.String))


def dates(cells: pl.Series, *, party: str) -> pl.Series:
    """Moments without a time zone (the clock on the wall), from dates, datetimes or ISO 8601 text (1984-07-31)."""
    where = f"{party} table, column '{cells.name}'"
    if cells.dtype == pl.Datetime:
        return cells.dt.replace_time_zone(None).cast(pl.Datetime("us"))
    if cells.dtype in (pl.Date, pl.Null):
        return cells.cast(pl.Datetime("us"))
    written = stripped(cells)
    if written.dtype != pl.String:
        raise InputError(f"{where} holds {cells.dtype}, but it is a column of dates; write them as 1984-07-31")
    moments = pl.Series(cells.name, [cell and iso_moment(cell) for cell in written], dtype=pl.Datetime("us"))
    refuse(moments.is_null() & written.is_not_null(), where, "is not a date like 1984-07-31; write year-month-day")
    return moments
