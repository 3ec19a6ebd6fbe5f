"""Read identifiers from any table type as the arrays that metrics compare, and check that two tables are comparable.

Records may be NumPy arrays, lists, mappings of columns, or pandas, polars or Arrow tables. Errors name the table,
column and row (the first record is row 1), never the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.errors import FingerprintError, InputError
from fedsim.registry import LazyModule
from fedsim.types import Bits, EncodedTable, Floats

if TYPE_CHECKING:
    import narwhals as nw
    import polars as pl

    from fedsim import cells
    from fedsim.cells import CellType
else:  # numeric arrays, texts and encoded tables can be read even if neither is installed
    nw, pl, cells = LazyModule("narwhals"), LazyModule("polars"), LazyModule("fedsim.cells")

UNNAMED_COLUMN = "identifier"  # name of a column that has none


def identifier_columns(records: Any, table: str) -> dict[str, Any]:
    """Return the columns by name; columns of arrays and lists, which have no names, are numbered."""
    if isinstance(records, Sequence) and not isinstance(records, str | bytes):
        widths = {len(record) if _is_row(record) else 0 for record in records}
        if len(widths) > 1:
            spread = f"{min(widths)} to {max(widths)} values"
            message = f"the records of the {table} table have {spread}; give all the same number"
            raise InputError(message, code="ragged-table", table=table)
        several = any(widths)  # a list of rows; otherwise a list of values, which is one column
        records = np.array([list(row) for row in records], object) if several else np.fromiter(records, object)
    if isinstance(records, Mapping):
        columns = dict(records)
    elif not isinstance(records, np.ndarray):
        columns = _frame_columns(records, table)
    elif records.ndim == 1:
        columns = {UNNAMED_COLUMN: records}
    elif records.ndim == 2:
        columns = {f"{UNNAMED_COLUMN} {place}": column for place, column in enumerate(records.T, 1)}
    else:
        message = f"the {table} table is an array of {records.ndim} dimensions; give one row per record"
        raise InputError(message, code="table-shape", table=table)
    if not columns or not len(next(iter(columns.values()))):
        raise InputError(f"the {table} table has no records; give at least one", code="no-records", table=table)
    return columns


def _frame_columns(records: Any, table: str) -> dict[str, Any]:
    if hasattr(records, "__arrow_c_array__"):  # a single Arrow chunk, which narwhals does not know
        records = pl.from_arrow(records)
    try:
        frame = nw.from_native(records, eager_only=True, allow_series=True)
    except nw.exceptions.DuplicateError:
        message = f"the {table} table has two columns with the same name; rename one"
        raise InputError(message, code="duplicate-column", table=table) from None
    except TypeError:
        kinds = "an array, a list, or a pandas, polars or Arrow table"
        message = f"the {table} table is a {type(records).__name__}; give {kinds}"
        raise InputError(message, code="unknown-table-type", table=table) from None
    if isinstance(frame, nw.Series):
        return {str(frame.name or UNNAMED_COLUMN): frame}
    return {str(name): frame.get_column(name) for name in frame.columns}


def _is_row(record: Any) -> bool:
    return isinstance(record, Sequence | np.ndarray) and not isinstance(record, str | bytes)


def numbers(records: Any, table: str) -> Floats:
    """Return all columns as finite float64, shape (records, columns)."""
    plain = type(records) is np.ndarray and records.ndim == 2 and records.dtype.kind == "f" and records.size
    if plain and np.isfinite(records).all():
        return np.ascontiguousarray(records, np.float64)
    columns = identifier_columns(records, table)
    return np.column_stack(
        [_read(name, column, cells.CellType.NUMBER, table).to_numpy() for name, column in columns.items()]
    )


def coordinates(records: Any, table: str) -> Floats:
    """Return latitude and longitude in degrees, in this order, shape (records, 2)."""
    degrees = numbers(records, table)
    names = list(identifier_columns(records, table))
    if degrees.shape[1] != 2:
        message = f"the {table} table has {degrees.shape[1]} columns; great-circle needs two, latitude then longitude"
        raise InputError(message, code="column-count", table=table, found=degrees.shape[1])
    for axis, (word, most) in enumerate((("latitude", 90), ("longitude", 180))):
        outside = np.flatnonzero(np.abs(degrees[:, axis]) > most)
        if len(outside):
            row = int(outside[0]) + 1
            # Many such rows indicate columns in the wrong order; a few, wrong cells.
            swapped = axis == 0 and 2 * len(outside) > len(degrees)
            fix = "give latitude first, then longitude" if swapped else "correct it or drop the row"
            rule = f"a {word} is between -{most} and {most} degrees; {fix}"
            message = f"{table}: column {names[axis]!r}, row {row}: {rule}"
            raise InputError(message, code="outside-range", table=table, column=names[axis], row=row)
    return degrees


def strings(records: Any, table: str) -> list[str]:
    """Return one column of text."""
    if isinstance(records, list) and records and all(type(text) is str for text in records):
        return list(records)
    return _read_single(records, cells.CellType.TEXT, table).to_list()


def days(records: Any, table: str) -> Floats:
    """Return one column of dates as days since 1970, shape (records, 1)."""
    dates = _read_single(records, cells.CellType.DATE, table).dt.date()
    return dates.to_physical().to_numpy().astype(np.float64)[:, np.newaxis]


def _read_single(records: Any, wanted: CellType, table: str) -> pl.Series:
    columns = identifier_columns(records, table)
    if len(columns) != 1:
        rule = f"this metric compares one column of {wanted}s; choose one, or combine them in a WeightedSum"
        message = f"the {table} table has {len(columns)} identifier columns, but {rule}"
        raise InputError(message, code="column-count", table=table, found=len(columns))
    name, column = next(iter(columns.items()))
    return _read(name, column, wanted, table)


def _read(name: str, column: Any, wanted: CellType, table: str) -> pl.Series:
    return cells.read_cells(column, wanted, name=name, parse=False, exact=True).require(table)


def filters(records: Any, table: str) -> Bits:
    """Return packed bits, one row of bytes per record, from an encoded table or an array of uint8."""
    if isinstance(records, EncodedTable):
        records = records.bits
    if not isinstance(records, np.ndarray) or records.ndim != 2 or records.dtype != np.uint8:
        message = f"the {table} table has no packed bits; give an encoded table, or rows of numpy.packbits (uint8)"
        raise InputError(message, code="not-packed-bits", table=table)
    if not records.size:
        raise InputError(f"the {table} table has no records; give at least one", code="no-records", table=table)
    return records


def check_compatible(primary: Any, secondary: Any, names: tuple[str, str]) -> None:
    """Check that both tables have the same columns or, if encoded, the same fingerprint and size."""
    if isinstance(primary, EncodedTable) and isinstance(secondary, EncodedTable):
        if primary.fingerprint != secondary.fingerprint:
            found = f"{primary.fingerprint[:12]} and {secondary.fingerprint[:12]}"
            message = f"fingerprints {found}: encoded with different schemas or keys; encode both tables with the same"
            raise FingerprintError(message, code="fingerprints-differ")
        if primary.n_bits != secondary.n_bits:
            message = (
                f"filters of {primary.n_bits} and {secondary.n_bits} bits; encode both tables with the same schema"
            )
            raise FingerprintError(message, code="filter-sizes-differ")
        return
    if isinstance(primary, EncodedTable) or isinstance(secondary, EncodedTable):
        message = "one table is encoded and the other is not; encode both with the same schema and key"
        raise InputError(message, code="one-table-encoded")
    (n_left, left), (n_right, right) = _table_header(primary, names[0]), _table_header(secondary, names[1])
    if n_left != n_right:
        counts = f"the {names[0]} table has {n_left} identifier columns and the {names[1]} table {n_right}"
        raise InputError(f"{counts}; both need the same columns, or filters of the same size", code="columns-differ")
    if n_left > 1 and left is not None and right is not None and left != right:
        ours, theirs = f"{names[0]} ({', '.join(left)})", f"{names[1]} ({', '.join(right)})"
        message = f"the tables have different columns: {ours} and {theirs}; rename them so that both sides agree"
        raise InputError(message, code="columns-differ")


def _table_header(records: Any, table: str) -> tuple[int, list[str] | None]:
    """Return the number of columns, and their names if the records have names."""
    if isinstance(records, np.ndarray) and records.ndim == 2:
        return records.shape[1], None
    if isinstance(records, Sequence) and not isinstance(records, str | bytes):
        return (len(records[0]) if records and _is_row(records[0]) else 1), None
    columns = list(identifier_columns(records, table))
    return len(columns), None if isinstance(records, np.ndarray) else columns
