"""Read a table from a file, a database or an in-memory object into a polars frame."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray
from polars.exceptions import PanicException, PolarsError

from fedsim.data.column_names import column_positions
from fedsim.data.csv_file import header_widths, read_csv
from fedsim.data.sql import SqlTable, TableSource, parse_source
from fedsim.errors import FileError, InputError, SettingError
from fedsim.storage.files import check_readable

# A Parquet file as a frame


PARQUET_MAGIC = b"PAR1"


def read_parquet(path: Path, columns: list[str] | None) -> pl.DataFrame:
    """The columns asked for, in that order."""
    _check_parquet_magic(path)
    try:
        header = list(pl.read_parquet_schema(path))
        wanted = [header[place] for place in column_positions(path, header, columns)]
        frame = pl.read_parquet(path, columns=wanted).select(wanted)
    except (PolarsError, PanicException, OSError):
        # From None: the reader's own text may quote cells, and a traceback would show it.
        raise FileError(f"{path} is damaged and cannot be read as Parquet; write it again") from None
    if frame.is_empty():
        raise InputError(f"{path} has columns but no rows; at least one record is needed")
    return frame


def _check_parquet_magic(path: Path) -> None:
    """Parquet begins and ends with the same four bytes, so a cut file shows at once."""
    with path.open("rb") as file:
        start = file.read(4)
        size = file.seek(0, 2)
        file.seek(max(0, size - 4))
        end = file.read(4)
    if size == 0:
        raise FileError(f"{path} is empty; write it again")
    if start != PARQUET_MAGIC:
        raise FileError(f"{path} is not a Parquet file; a text table needs a name ending in .csv or .tsv")
    if size < 12 or end != PARQUET_MAGIC:
        raise FileError(f"{path} is cut off: its end is missing; copy or write it again")


# A table from a file, by the ending of its name, or from a database
#
# Errors name file, column and data row (the first row under the header is row 1), never what stands in a cell.


SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET_SUFFIXES = (".parquet", ".pq")


def read_table(
    source: TableSource | str,
    columns: list[str] | None = None,
    *,
    separator: str | None = None,
    option: str = "--separator",
) -> pl.DataFrame:
    """The columns asked for, in that order; all of them for ``None``.

    ``option`` is where the reader of an error may name another ``separator``. Text may be a path or the URL of a
    database with a table, ``sqlite:///flats.db#flats``.

    Cells of a CSV file come as text, exactly as written, so that ``007`` stays ``007``:
    :mod:`fedsim.data.columns` turns them into numbers, names or dates and says which row is not one.
    """
    path = parse_source(source) if isinstance(source, str) else source
    if isinstance(path, SqlTable):
        return path.read(columns)
    check_readable(path)
    if path.name.lower().endswith(PARQUET_SUFFIXES):
        return read_parquet(path, columns)
    return read_csv(path, columns, separator=_resolve_separator(path, separator), option=option)


def detect_separator(path: Path) -> str | None:
    """What stands between the cells of a text table, where that is not what the ending of its name says."""
    check_readable(path)
    if path.name.lower().endswith(PARQUET_SUFFIXES):
        return None
    usual, widths = _resolve_separator(path, None), header_widths(path)
    widest = max(widths, key=lambda separator: widths[separator])
    return widest if widths[usual] == 1 < widths[widest] else None


def source_files(sources: Iterable[TableSource]) -> list[Path]:
    """The files that tables are read from; a database server has none."""
    found = [source.file if isinstance(source, SqlTable) else source for source in sources]
    return [path for path in found if path]


def _resolve_separator(path: Path, asked: str | None) -> str:
    if asked is None:
        endings = [ending for ending in SEPARATORS if path.name.lower().endswith(ending)]
        if not endings:
            known = ", ".join([*SEPARATORS, *PARQUET_SUFFIXES])
            raise FileError(f"{path}: the ending of the name tells no kind of file; use one of {known}")
        return SEPARATORS[endings[0]]
    separator = "\t" if asked in ("\\t", "tab") else asked
    if len(separator.encode()) != 1 or separator in '"\r\n':
        raise SettingError(f"separator {asked!r} is not one plain character; use ',', ';', '|' or tab")
    return separator


# Anyone's table - pandas, polars, Arrow, a NumPy array, a list of rows - as one polars frame
#
# Columns are carried over one by one, so that pandas tables need no pyarrow. An array's columns are ``x0``, ``x1``...


def to_polars(table: Any, *, party: str) -> pl.DataFrame:
    """The table's columns under their names (as text), in their order.

    >>> to_polars(np.array([[1.0, 2.0]]), party="primary").columns
    ['x0', 'x1']
    """
    if isinstance(table, pl.DataFrame):
        return table
    try:
        frame = nw.from_native(table, pass_through=True, eager_only=True)
        if isinstance(frame, nw.DataFrame):
            columns = zip(frame.columns, frame.iter_columns(), strict=True)
            return pl.DataFrame([_to_series(str(name), column, party) for name, column in columns])
    except (DuplicateError, pl.exceptions.DuplicateError):
        raise InputError(
            f"the {party} table has two columns of one name{_duplicate_name(table)}; rename one of them"
        ) from None
    return _from_array(_to_array(table, party), party)


def _duplicate_name(table: Any) -> str:
    """The name that several columns have, as text."""
    names = [str(name) for name in getattr(table, "column_names", getattr(table, "columns", ()))]
    return next((f", '{name}'" for name in names if names.count(name) > 1), "")


def _to_series(name: str, column: nw.Series[Any], party: str) -> pl.Series:
    if column.dtype.is_float() or (column.dtype.is_integer() and column.null_count() == 0):
        return pl.Series(name, column.to_numpy(), nan_to_null=True)
    missing = column.is_null().to_list()
    values = [None if gap else value for value, gap in zip(column.to_list(), missing, strict=True)]
    if isinstance(column.dtype, nw.Categorical | nw.Enum):
        values = [value if value is None else str(value) for value in values]
    return _from_values(name, values, party)


def _from_values(name: str, values: list[Any], party: str) -> pl.Series:
    """Values of one type; numbers of several types become floats."""
    kinds = {type(value) for value in values} - {type(None)}
    if len(kinds) > 1 and all(issubclass(kind, int | float | np.number) and kind is not bool for kind in kinds):
        return pl.Series(name, [None if value is None else float(value) for value in values], dtype=pl.Float64)
    try:
        series = pl.Series(name, values)
    except (PolarsError, TypeError, OverflowError):
        series = None
    if series is None or series.dtype == pl.Object:
        found = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(
            f"{party} table, column '{name}' holds {found} values; give it numbers, text, true/false or dates"
        )
    return series


def _to_array(table: Any, party: str) -> NDArray[Any]:
    array = np.asarray(table) if isinstance(table, list | tuple | np.ndarray) else None
    if array is None or array.ndim != 2:
        seen = f"a {type(table).__name__}" if array is None else f"an array of {array.ndim} dimension(s)"
        raise InputError(
            f"the {party} table is {seen}; give a pandas, polars or Arrow table, or an array with one row per record"
        )
    return array


def _from_array(array: NDArray[Any], party: str) -> pl.DataFrame:
    columns = []
    for place, values in enumerate(array.T):
        name = f"x{place}"
        plain = values.dtype.kind in "fiub"
        cells = values if plain else [None if _is_nan(value) else value for value in values]
        columns.append(pl.Series(name, cells, nan_to_null=True) if plain else _from_values(name, cells, party))
    return pl.DataFrame(columns)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
