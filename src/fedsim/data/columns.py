"""Columns as numbers, names or dates; the first cell that is not one is named by its row.

Rows are data rows: the first one under the header is row 1.
"""

from __future__ import annotations

import polars as pl

from fedsim.dates import iso_date
from fedsim.errors import InputError

DECIMAL_COMMA = r"^[+-]?[0-9]+,[0-9]+$"
TEXT = (pl.String, pl.Categorical, pl.Enum, pl.Null)


def number(cells: pl.Series, *, table: str) -> pl.Series:
    """The column as finite float64."""
    where = f"{table}: column {cells.name!r}"
    written = _filled(cells, where)
    if not (written.dtype.is_numeric() or written.dtype == pl.String):
        raise InputError(f"{where} holds {written.dtype}; numbers are needed")
    values = written.cast(pl.Float64, strict=False)
    refuse(values.is_null(), where, f"is not a number; {advice(written, values)}")
    refuse(~values.is_finite(), where, "is not finite; fill it or drop the row")
    return values


def text(cells: pl.Series, *, table: str) -> pl.Series:
    """The column as text, none of it blank; numbers and dates are refused, for two parties rarely print them alike."""
    where = f"{table}: column {cells.name!r}"
    if cells.dtype not in TEXT:
        raise InputError(
            f"{where} holds {cells.dtype}, but text is needed; convert the column to text, alike at both parties"
        )
    written = cells.cast(pl.String)
    _filled(written, where)
    return written


def date(cells: pl.Series, *, table: str) -> pl.Series:
    """The column as calendar dates, ISO 8601 (``1984-07-31``) where it is text; a moment has the date of its zone."""
    where = f"{table}: column {cells.name!r}"
    written = _filled(cells, where)
    if written.dtype in (pl.Date, pl.Datetime):
        return written.dt.date()
    if written.dtype not in TEXT:
        raise InputError(f"{where} holds {written.dtype}; dates like 1984-07-31 are needed")
    days = pl.Series(cells.name, [iso_date(cell) for cell in written], dtype=pl.Date)
    refuse(days.is_null(), where, "is not a date like 1984-07-31; write year-month-day")
    return days


def stripped(cells: pl.Series) -> pl.Series:
    """Text without blanks around it, null where only blanks stand; other columns as they are."""
    if cells.dtype not in TEXT:
        return cells
    bare = cells.cast(pl.String).str.strip_chars()
    return bare.set(bare == "", None)


def _filled(cells: pl.Series, where: str) -> pl.Series:
    """The cells without blanks around text, none of them missing."""
    written = stripped(cells)
    refuse(written.is_null(), where, "is missing; fill it or drop the row")
    return written


def refuse(bad: pl.Series, where: str, rule: str) -> None:
    """Name the first bad row, and say how many there are."""
    rows = bad.arg_true()
    if len(rows):
        more = f" ({len(rows):,} such rows)" if len(rows) > 1 else ""
        raise InputError(f"{where}, row {int(rows[0]) + 1} {rule}{more}")


def advice(written: pl.Series, values: pl.Series) -> str:
    """What to do about text that is not a number."""
    first = written.filter(values.is_null()).head(1)
    if first.dtype == pl.String and first.str.contains(DECIMAL_COMMA).any():
        return "write decimals with a point, not a comma"
    return "correct it or drop the row"
