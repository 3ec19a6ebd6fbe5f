"""Cells of a text file as numbers, wherever a whole column allows it."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl


def typed(table: pl.DataFrame, missing: Sequence[str] = ()) -> pl.DataFrame:
    """Text columns that hold nothing but numbers become numbers; the words in ``missing`` and blanks become null.

    >>> typed(pl.DataFrame({"area": ["40", "NA"], "town": ["a", "1"]}), ["NA"]).dtypes
    [Float64, String]
    """
    columns = []
    for column in table.iter_columns():
        text = column if column.dtype != pl.String else column.replace([*missing, ""], None)
        numbers = text.cast(pl.Float64, strict=False) if text.dtype == pl.String else text
        columns.append(numbers if numbers.null_count() == text.null_count() else text)
    return pl.DataFrame(columns)
