"""Convert identifiers of any table type to the form the search needs, and check that two tables can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray

from fedsim.cells import is_missing, is_number, to_date
from fedsim.errors import FingerprintError, InputError
from fedsim.types import Bits, EncodedTable, Floats

# Identifiers as users hold them - arrays, lists, pandas, polars, Arrow - in the one form the search works on
#
# Every fault is one sentence with table, column and row number (data rows count from 1), never the value.


UNNAMED_COLUMN = "identifier"  # what a column is called when it came without a name
MAX_EXACT_INTEGER = 2**53  # from here on float64 loses whole numbers


def identifier_columns(records: Any, table: str) -> dict[str, Any]:
    """The columns by name; arrays and lists, which have no names, get numbered ones."""
    columns = _columns(records, table)
    if not columns or not len(next(iter(columns.values()))):
        raise InputError(f"the {table} table has no records; linking needs at least one")
    return columns


def _columns(records: Any, table: str) -> dict[str, Any]:
    if isinstance(records, Mapping):
        return dict(records)
    if isinstance(records, np.ndarray):
        return _array_columns(records, table)
    if isinstance(records, Sequence) and not isinstance(records, str | bytes):
        return _array_columns(_to_array(records, table), table)
    frame = _to_narwhals(records, table)
    if isinstance(frame, nw.Series):
        return {str(frame.name or UNNAMED_COLUMN): frame}
    return {str(name): frame.get_column(name) for name in frame.columns}


def _to_narwhals(records: Any, table: str) -> Any:
    """A table or a series of pandas, polars or Arrow behind one interface."""
    if hasattr(records, "__arrow_c_array__"):  # a single chunk, which narwhals does not take
        records = pl.from_arrow(records)
    try:
        return nw.from_native(records, eager_only=True, allow_series=True)
    except DuplicateError:
        raise InputError(f"the {table} table names a column twice; rename one") from None
    except TypeError:
        raise InputError(
            f"the {table} table is a {type(records).__name__}; give a NumPy array, a list, or a pandas, polars or "
            "Arrow table"
        ) from None


def _array_columns(records: NDArray[Any], table: str) -> dict[str, Any]:
    if records.ndim not in (1, 2):
        raise InputError(f"the {table} table is an array of {records.ndim} dimensions; give one row per record")
    if isinstance(records, np.ma.MaskedArray):
        records = np.ma.filled(records.astype(object), None)
    if records.ndim == 1:
        return {UNNAMED_COLUMN: records}
    return {f"{UNNAMED_COLUMN} {place + 1}": column for place, column in enumerate(records.T)}


def is_row(record: Any) -> bool:
    """True for a list's record of several values, false for one that is a value itself."""
    return isinstance(record, Sequence | np.ndarray) and not isinstance(record, str | bytes)


def _to_array(records: Sequence[Any], table: str) -> NDArray[Any]:
    """A list of values as one column, a list of rows as several."""
    rows = [is_row(record) for record in records]
    if not any(rows):
        return np.fromiter(records, dtype=object, count=len(records))
    widths = {len(record) if whole else 0 for record, whole in zip(records, rows, strict=True)}
    if len(widths) > 1:
        raise InputError(
            f"the {table} table's records have between {min(widths)} and {max(widths)} values; all records need the "
            "same number"
        )
    return np.array([list(record) for record in records], dtype=object)


def numbers(records: Any, table: str) -> Floats:
    """All columns as finite float64, one row per record."""
    plain = type(records) is np.ndarray and records.ndim == 2 and records.dtype.kind == "f" and records.size
    if plain and np.isfinite(records).all():
        return np.ascontiguousarray(records, np.float64)
    columns = identifier_columns(records, table)
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
    _refuse_rows(
        ~np.isfinite(floats), "the identifier is missing or not finite; drop or fill such records", name, table
    )
    if values.dtype.kind in "iu":
        inexact = np.abs(floats) >= MAX_EXACT_INTEGER
        _refuse_rows(inexact, "whole numbers from 2**53 on would lose digits; compare them as text", name, table)
    return floats


def _refuse_rows(bad: NDArray[np.bool_], rule: str, name: str, table: str) -> None:
    if bad.any():
        raise InputError(f"{table} table, column '{name}', row {int(bad.argmax()) + 1}: {rule} ({bad.sum()} such rows)")


def _objects_or_numbers(column: Any) -> NDArray[Any]:
    if isinstance(column, nw.Series):
        if not column.dtype.is_numeric():
            return np.asarray(column.to_list(), dtype=object)
        return (
            column.cast(nw.Float64).to_numpy()
            if column.null_count() or column.dtype.is_decimal()
            else column.to_numpy()
        )
    return np.asarray(column)


def _floats_from_objects(values: NDArray[Any], name: str, table: str) -> Floats:
    floats = np.empty(len(values))
    for row, value in enumerate(values):
        if is_missing(value):
            floats[row] = np.nan
        elif is_number(value):
            floats[row] = _exact_float(value, name, row, table)
        else:
            raise InputError(
                f"{table} table, column '{name}', row {row + 1}: the metric compares numbers, but this is "
                f"{_kind_of(values[row : row + 1])}; choose another metric or convert the column"
            )
    return floats


def _exact_float(value: Any, name: str, row: int, table: str) -> float:
    if isinstance(value, int | np.integer) and abs(int(value)) >= MAX_EXACT_INTEGER:
        raise InputError(
            f"{table} table, column '{name}', row {row + 1}: whole numbers from 2**53 on would lose digits; compare "
            "them as text"
        )
    return float(value)


def _kind_of(values: NDArray[Any]) -> str:
    kinds = {"U": "text", "S": "bytes", "b": "true/false", "M": "dates", "m": "durations"}
    if values.dtype.kind == "O":
        return "text" if isinstance(values[0], str) else f"of type {type(values[0]).__name__}"
    return kinds.get(values.dtype.kind, f"values of type {values.dtype}")


def coordinates(records: Any, table: str) -> Floats:
    """Latitude and longitude in degrees, in this order, inside their ranges."""
    degrees = numbers(records, table)
    names = list(identifier_columns(records, table))
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
    columns = identifier_columns(records, table)
    if len(columns) != 1:
        raise InputError(
            f"the {table} table has {len(columns)} columns; an edit distance compares one column of text - choose one, "
            "or give each its weight in a weighted sum"
        )
    name, column = next(iter(columns.items()))
    values = column.to_list() if isinstance(column, nw.Series) else column.tolist()
    for row, value in enumerate(values):
        if not isinstance(value, str):
            fault = (
                "the identifier is missing" if is_missing(value) else f"this is no text but a {type(value).__name__}"
            )
            raise InputError(
                f"{table} table, column '{name}', row {row + 1}: {fault}; an edit distance needs text in every row"
            )
    return list(values)


def days(records: Any, table: str) -> Floats:
    """One column of dates as days, from dates, datetimes or ISO text (1987-03-14)."""
    columns = identifier_columns(records, table)
    if len(columns) != 1:
        raise InputError(f"the {table} table has {len(columns)} columns; 'days' compares one column of dates")
    name, column = next(iter(columns.items()))
    values = column.to_list() if isinstance(column, nw.Series) else _python_values(np.asarray(column))
    return np.array([[_day(value, name, row, table)] for row, value in enumerate(values)])


def _python_values(values: NDArray[Any]) -> list[Any]:
    whole: list[Any] = values.astype("datetime64[D]").tolist() if values.dtype.kind == "M" else values.tolist()
    return whole


def _day(value: Any, name: str, row: int, table: str) -> float:
    day = to_date(value)
    if day is None:
        raise InputError(
            f"{table} table, column '{name}', row {row + 1}: no date; write dates as 1987-03-14 or give a date column"
        )
    return float(day.toordinal())


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


# May these two tables be compared at all?


TableHeader = tuple[
    int, list[str] | None
]  # how many columns, and their names where the records have names of their own


def check_compatible(primary: Any, secondary: Any, names: tuple[str, str]) -> None:
    """Both tables must name the same columns and, if encoded, carry the same fingerprint and size."""
    if isinstance(primary, EncodedTable) and isinstance(secondary, EncodedTable):
        _check_encoded(primary, secondary)
    elif isinstance(primary, EncodedTable) or isinstance(secondary, EncodedTable):
        raise InputError("one table is encoded and the other is not; encode both with the same schema and key")
    else:
        _check_columns(_table_header(primary, names[0]), _table_header(secondary, names[1]), names)


def _check_encoded(primary: EncodedTable, secondary: EncodedTable) -> None:
    if primary.fingerprint != secondary.fingerprint:
        raise FingerprintError(
            f"the tables carry fingerprints {primary.fingerprint[:12]} and {secondary.fingerprint[:12]}: they were "
            "encoded with different schemas or keys; encode both with the same"
        )
    if primary.n_bits != secondary.n_bits:
        raise FingerprintError(
            f"the tables have filters of {primary.n_bits} and {secondary.n_bits} bits; encode both with the same schema"
        )


def _table_header(records: Any, table: str) -> TableHeader:
    if isinstance(records, np.ndarray) and records.ndim == 2:
        return records.shape[1], None
    if isinstance(records, Sequence) and not isinstance(records, str | bytes):
        return (len(records[0]) if records and is_row(records[0]) else 1), None
    columns = list(identifier_columns(records, table))
    return len(columns), None if isinstance(records, np.ndarray) else columns


def _check_columns(left: TableHeader, right: TableHeader, names: tuple[str, str]) -> None:
    if left[0] != right[0]:
        raise InputError(
            f"the {names[0]} table has {left[0]} identifier columns and the {names[1]} table {right[0]}; both sides "
            "need the same columns, or filters of the same size"
        )
    if left[0] > 1 and left[1] is not None and right[1] is not None and left[1] != right[1]:
        raise InputError(
            f"the {names[0]} table's columns are {', '.join(left[1])}, those of the {names[1]} table "
            f"{', '.join(right[1])}; rename them so that both sides agree"
        )
