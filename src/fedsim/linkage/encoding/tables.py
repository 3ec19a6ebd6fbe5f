"""A table at the door of a schema: columns by name, whatever library holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import narwhals as nw
from narwhals.exceptions import DuplicateError

from fedsim.errors import InputError
from fedsim.linkage.encoding.columns import Column, Values
from fedsim.linkage.encoding.description import nearest


def columns_of(records: Any, table: str) -> Mapping[str, Values]:
    """The columns by name, of a mapping or a pandas, polars or Arrow table.

    Nothing else has names: the cells of a list of records must not be taken for them and shown in an error.
    """
    if isinstance(records, Mapping):
        return records
    try:
        frame = nw.from_native(records, pass_through=True, eager_only=True)
    except DuplicateError:
        raise InputError(f"table {table!r} has two columns of one name; rename one of them") from None
    if not isinstance(frame, nw.DataFrame):
        raise InputError(
            f"table {table!r} is a {type(records).__name__}; give columns by name: a dictionary, or a pandas, polars "
            "or Arrow table"
        )
    return {name: frame.get_column(name).to_native() for name in frame.columns}


def column_of(columns: Mapping[str, Values], name: str, table: str) -> Column:
    """The column of this name; where it is absent, the nearest name there is."""
    if name not in columns:
        raise InputError(f"table {table!r} has no column {name!r}{nearest(name, [str(known) for known in columns])}")
    values = columns[name]
    if isinstance(values, str | bytes) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        raise InputError(f"table {table!r}, column {name!r} is a {type(values).__name__}; give a list or an array")
    return Column(values, name, table)
