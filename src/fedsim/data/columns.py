"""Columns as numbers, names or dates; the first cell that is not one is named by its row.

Rows are data rows: the first one under the header is row 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from fedsim.errors import InputError
from fedsim.types import Floats

DECIMAL_COMMA = r"^[+-]?[0-9]+,[0-9]+$"


def numbers(frame: pl.DataFrame, columns: Sequence[str], *, table: str) -> Floats:
    """One row per record, one finite float64 per column.

    >>> numbers(pl.DataFrame({"lat": ["1.3", " 1.4"], "lon": [103, 104]}), ["lat", "lon"], table="flats.csv")
    array([[  1.3, 103. ],
           [  1.4, 104. ]])
    """
    return np.column_stack([number(frame[name], table=table).to_numpy() for name in columns])


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
    """The column as text, none of it blank."""
    where = f"{table}: column {cells.name!r}"
    if cells.dtype.is_float() or cells.dtype.is_nested() or cells.dtype == pl.Binary:
        raise InputError(f"{where} holds {cells.dtype}; text is needed")
    written = cells.cast(pl.String)
    _filled(written, where)
    return written


def date(cells: pl.Series, *, table: str) -> pl.Series:
    """The column as calendar dates, read as ISO 8601 (``1984-07-31``) where it is text."""
    where = f"{table}: column {cells.name!r}"
    written = _filled(cells, where)
    if written.dtype in (pl.Date, pl.Datetime):
        return written.cast(pl.Date)
    if written.dtype != pl.String:
        raise InputError(f"{where} holds {written.dtype}; dates like 1984-07-31 are needed")
    days = written.str.to_date("%Y-%m-%d", strict=False)
    refuse(days.is_null(), where, "is not a date like 1984-07-31; write year-month-day")
    return days


def _filled(cells: pl.Series, where: str) -> pl.Series:
    """The cells without blanks around text, none of them missing."""
    written = cells.str.strip_chars() if cells.dtype == pl.String else cells
    missing = written.is_null() | (written == "") if written.dtype == pl.String else written.is_null()
    refuse(missing, where, "is missing; fill it or drop the row")
    return written


def refuse(bad: pl.Series, where: str, rule: str) -> None:
    """Name the first bad row."""
    rows = bad.arg_true()
    if len(rows):
        raise InputError(f"{where}, row {int(rows[0]) + 1} {rule}")


def advice(written: pl.Series, values: pl.Series) -> str:
    """What to do about text that is not a number."""
    first = written.filter(values.is_null()).head(1)
    if first.dtype == pl.String and first.str.contains(DECIMAL_COMMA).any():
        return "write decimals with a point, not a comma"
    return "correct it or drop the row"
