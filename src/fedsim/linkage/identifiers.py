"""Identifiers as users hold them - arrays, lists, pandas, polars, Arrow - in the one form the search works on.

Every fault is one sentence with table, column and row number (data rows count from 1), never the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from fedsim.errors import FingerprintError, InputError
from fedsim.types import Bits, EncodedTable, Floats

IDENTIFIER = "identifier"  # what a column is called when it came without a name


def columns_of(records: Any, table: str) -> dict[str, Any]:
    """The columns by name; arrays and lists, which have no names, get numbered ones."""
    columns: dict[str, Any]
    frame = nw.from_native(records, pass_through=True, eager_only=True, allow_series=True)
    if isinstance(frame, nw.DataFrame):
        columns = {name: frame.get_column(name) for name in frame.columns}
    elif isinstance(frame, nw.Series):
        columns = {frame.name or IDENTIFIER: frame}
    elif isinstance(records, np.ndarray) and records.ndim == 2:
        columns = {f"{IDENTIFIER} {place + 1}": column for place, column in enumerate(records.T)}
    elif isinstance(records, np.ndarray) and records.ndim == 1:
        columns = {IDENTIFIER: records}
    elif isinstance(records, Sequence) and not isinstance(records, str | bytes):
        return columns_of(_array_of(records, table), table)
    else:
        raise InputError(
            f"the {table} table is a {type(records).__name__}; give a NumPy array, a list, or a pandas, polars or "
            "Arrow table"
        )
    if not columns or not len(next(iter(columns.values()))):
        raise InputError(f"the {table} table has no records; linking needs at least one")
    return columns


def _array_of(records: Sequence[Any], table: str) -> NDArray[Any]:
    if not records:
        raise InputError(f"the {table} table has no records; linking needs at least one")
    if isinstance(records[0], Sequence) and not isinstance(records[0], str | bytes):
        widths = {len(record) for record in records}
        if len(widths) > 1:
            raise InputError(
                f"the {table} table's records have between {min(widths)} and {max(widths)} values; all "
                "records need the same number"
            )
        return np.array(records, dtype=object)
    return np.fromiter(records, dtype=object, count=len(records))


def numbers(records: Any, table: str) -> Floats:
    """All columns as finite float64, one row per record."""
    if isinstance(records, np.ndarray) and records.ndim == 2 and records.dtype.kind == "f" and records.size:
        whole = np.ascontiguousarray(records, np.float64)
        if np.isfinite(whole).all():
            return whole
    columns = columns_of(records, table)
    return np.column_stack([_finite(column, name, table) for name, column in columns.items()])


def _finite(column: Any, name: str, table: str) -> Floats:
    values = _objects_or_numbers(column)
    if values.dtype.kind == "O":
        values = _floats_from_objects(values, name, table)
    if values.dtype.kind not in "fiu":
        raise InputError(
            f"{table} table, column '{name}': the metric compares numbers, but this column holds "
            f"{_kind_of(values)}; choose another metric or convert the column"
        )
    floats = values.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(floats))
    if len(bad):
        raise InputError(
            f"{table} table, column '{name}', row {bad[0] + 1}: the identifier is missing or not finite "
            f"({len(bad)} such rows); drop these records or fill them in"
        )
    return floats


def _objects_or_numbers(column: Any) -> NDArray[Any]:
    if isinstance(column, nw.Series):
        nullable = column.null_count() > 0
        if column.dtype.is_numeric() and nullable:
            column = column.cast(nw.Float64)
        return np.asarray(column.to_list(), dtype=object) if not column.dtype.is_numeric() else column.to_numpy()
    return np.asarray(column)


def _floats_from_objects(values: NDArray[Any], name: str, table: str) -> Floats:
    floats = np.empty(len(values))
    for row, value in enumerate(values):
        if value is None:
            floats[row] = np.nan
        elif isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
            floats[row] = value
        else:
            raise InputError(
                f"{table} table, column '{name}', row {row + 1}: the metric compares numbers, but this is "
                f"{_kind_of(values[row : row + 1])}; choose another metric or convert the column"
            )
    return floats


def _kind_of(values: NDArray[Any]) -> str:
    kinds = {"U": "text", "S": "bytes", "b": "true/false", "M": "dates", "m": "durations"}
    if values.dtype.kind == "O":
        return "text" if isinstance(values[0], str) else f"of type {type(values[0]).__name__}"
    return kinds.get(values.dtype.kind, f"values of type {values.dtype}")


def coordinates(records: Any, table: str) -> Floats:
    """Latitude and longitude in degrees, in this order, inside their ranges."""
    degrees = numbers(records, table)
    names = list(columns_of(records, table))
    if degrees.shape[1] != 2:
        raise InputError(
            f"the {table} table has {degrees.shape[1]} columns; great-circle needs two, latitude then longitude"
        )
    for axis, (word, most) in enumerate((("latitude", 90), ("longitude", 180))):
        bad = np.flatnonzero(np.abs(degrees[:, axis]) > most)
        if len(bad):
            raise InputError(
                f"{table} table, column '{names[axis]}', row {bad[0] + 1}: a {word} lies between -{most} and {most} "
                "degrees; give latitude first, then longitude, in degrees"
            )
    return degrees


def strings(records: Any, table: str) -> list[str]:
    """One column of text."""
    columns = columns_of(records, table)
    if len(columns) != 1:
        raise InputError(
            f"the {table} table has {len(columns)} columns; an edit distance compares one column of text - choose one, "
            "or give each its weight in a weighted sum"
        )
    name, column = next(iter(columns.items()))
    values = column.to_list() if isinstance(column, nw.Series) else column.tolist()
    for row, value in enumerate(values):
        if not isinstance(value, str):
            missing = value is None or (isinstance(value, float) and np.isnan(value))
            fault = "the identifier is missing" if missing else f"this is no text but a {type(value).__name__}"
            raise InputError(
                f"{table} table, column '{name}', row {row + 1}: {fault}; an edit distance needs text in every row"
            )
    return list(values)


def days(records: Any, table: str) -> Floats:
    """One column of dates as days, from dates, datetimes or ISO text (1987-03-14)."""
    columns = columns_of(records, table)
    if len(columns) != 1:
        raise InputError(f"the {table} table has {len(columns)} columns; 'days' compares one column of dates")
    name, column = next(iter(columns.items()))
    values = column.to_list() if isinstance(column, nw.Series) else column.tolist()
    return np.array([[_day(value, name, row, table)] for row, value in enumerate(values)])


def _day(value: Any, name: str, row: int, table: str) -> float:
    if isinstance(value, date):
        return float(value.toordinal())
    try:
        return float(date.fromisoformat(value[:10]).toordinal())
    except (TypeError, ValueError):
        raise InputError(
            f"{table} table, column '{name}', row {row + 1}: no date; write dates as 1987-03-14 or give a date column"
        ) from None


def filters(records: Any, table: str) -> Bits:
    """Packed bits, one row of bytes per record, from an encoded table or an array of uint8."""
    if isinstance(records, EncodedTable):
        records = records.bits
    if not isinstance(records, np.ndarray) or records.ndim != 2 or records.dtype != np.uint8:
        raise InputError(
            f"the {table} table holds no packed bits; give an encoded table or a two-dimensional array of uint8 "
            "(numpy.packbits)"
        )
    if not records.size:
        raise InputError(f"the {table} table has no records; linking needs at least one")
    return records


def check_sides(primary: Any, secondary: Any) -> None:
    """Both tables must name the same columns and, if encoded, carry the same fingerprint."""
    if isinstance(primary, EncodedTable) and isinstance(secondary, EncodedTable):
        if primary.fingerprint != secondary.fingerprint:
            raise FingerprintError(
                f"the tables carry fingerprints {primary.fingerprint[:12]} and {secondary.fingerprint[:12]}: they were "
                "encoded with different schemas or keys; encode both with the same"
            )
        return
    if isinstance(primary, EncodedTable) or isinstance(secondary, EncodedTable):
        raise InputError("one table is encoded and the other is not; encode both with the same schema and key")
    left, right = list(columns_of(primary, "primary")), list(columns_of(secondary, "secondary"))
    if len(left) != len(right):
        raise InputError(
            f"the primary table has {len(left)} identifier columns and the secondary {len(right)}; name the same "
            "columns on both sides"
        )
    unnamed = any(name.startswith(IDENTIFIER) for name in left + right)
    if left != right and not unnamed:
        raise InputError(
            f"the primary table's columns are {', '.join(left)}, the secondary's {', '.join(right)}; rename them so "
            "that both sides agree"
        )
