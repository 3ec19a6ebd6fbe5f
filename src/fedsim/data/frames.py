"""Anyone's table - pandas, polars, Arrow, a NumPy array, a list of rows - as one polars frame.

Columns are carried over one by one, so that pandas tables need no pyarrow. An array's columns are ``x0``, ``x1``...
"""

from __future__ import annotations

import math
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from fedsim.errors import InputError


def frame_of(table: Any, *, party: str) -> pl.DataFrame:
    """The table's columns under their names (as text), in their order.

    >>> frame_of(np.array([[1.0, 2.0]]), party="primary").columns
    ['x0', 'x1']
    """
    if isinstance(table, pl.DataFrame):
        return table
    try:
        frame = nw.from_native(table, pass_through=True, eager_only=True)
        if isinstance(frame, nw.DataFrame):
            columns = zip(frame.columns, frame.iter_columns(), strict=True)
            return pl.DataFrame([_series(str(name), column, party) for name, column in columns])
    except (DuplicateError, pl.exceptions.DuplicateError):
        raise InputError(f"the {party} table has two columns of one name{_twice(table)}; rename one of them") from None
    return _from_array(_array(table, party), party)


def _twice(table: Any) -> str:
    """The name that several columns have, as text."""
    names = [str(name) for name in getattr(table, "column_names", getattr(table, "columns", ()))]
    return next((f", '{name}'" for name in names if names.count(name) > 1), "")


def _series(name: str, column: nw.Series[Any], party: str) -> pl.Series:
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


def _array(table: Any, party: str) -> NDArray[Any]:
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
