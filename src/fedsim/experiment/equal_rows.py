"""Exact matches: which record of a secondary has exactly the identifiers of a primary record."""

from __future__ import annotations

import numpy as np
import polars as pl

from fedsim.types import Integers


def equal_rows(primary: pl.DataFrame, secondary: pl.DataFrame) -> Integers:
    """For every primary record the first secondary row whose columns, in order, are all equal; -1 where none is.

    >>> equal_rows(pl.DataFrame({"name": ["b", "c"]}), pl.DataFrame({"title": ["a", "b", "b"]})).tolist()
    [1, -1]
    """
    ours, theirs = (
        frame.select(pl.concat_str(pl.all().cast(pl.String), separator="\0")) for frame in (primary, secondary)
    )
    first: dict[str, int] = {}
    for row, key in enumerate(theirs.to_series().to_list()):
        if key is not None:
            first.setdefault(key, row)
    return np.array([first.get(key, -1) for key in ours.to_series().to_list()], dtype=np.int64)
