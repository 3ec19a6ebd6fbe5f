"""Exact matches: which record of a secondary has exactly the identifiers of a primary record."""

from __future__ import annotations

import numpy as np
import polars as pl

from fedsim.types import Integers


def equal_rows(primary: pl.DataFrame, secondary: pl.DataFrame) -> Integers:
    """For every primary record the first secondary row whose columns, in order, are all equal; -1 where none is.

    >>> equal_rows(pl.DataFrame({"name": ["b", "c"]}), pl.DataFrame({"title": ["a", "b", "b"]})).tolist()
    [1, -1]
    >>> equal_rows(pl.DataFrame({"year": [1, 2]}), pl.DataFrame({"year": [2.0, 2.5]})).tolist()
    [-1, 0]
    """
    ours, theirs = (
        frame.select(pl.concat_str(pl.all(), separator="\0")).to_series() for frame in _alike(primary, secondary)
    )
    first: dict[str, int] = {}
    for row, key in enumerate(theirs.to_list()):
        if key is not None:
            first.setdefault(key, row)
    return np.array([first.get(key, -1) for key in ours.to_list()], dtype=np.int64)


def _alike(primary: pl.DataFrame, secondary: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both tables as text, in which numbers of different types are written alike."""
    pairs = [_same_type(*columns) for columns in zip(primary, secondary, strict=True)]
    ours, theirs = (
        pl.DataFrame([column.alias(str(place)).cast(pl.String) for place, column in enumerate(side)])
        for side in zip(*pairs, strict=True)
    )
    return ours, theirs


def _same_type(ours: pl.Series, theirs: pl.Series) -> tuple[pl.Series, pl.Series]:
    if ours.dtype == theirs.dtype or not (ours.dtype.is_numeric() and theirs.dtype.is_numeric()):
        return ours, theirs
    return ours.cast(pl.Float64), theirs.cast(pl.Float64)
