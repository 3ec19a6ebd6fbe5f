"""The primary's identifiers as features, and exact matches between two tables."""

import zlib
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.features import fit_preprocessor
from fedsim.splitnn.layers import Features
from fedsim.types import Integers

GRAM_LENGTH = 3
HASH_COLUMNS = 64


def identifier_features(frame: pl.DataFrame, rows: Integers) -> Features:
    """Return numbers and dates as they are and text as trigram counts, scaled by the training ``rows``.

    >>> identifier_features(pl.DataFrame({"lat": [1.0, 2.0], "name": ["fox", "ox"]}), np.arange(2))
    Features(2 records x 65 numbers and 0 codes)
    """
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    plain = frame.drop(texts)
    prepared = fit_preprocessor(plain, party="primary", rows=rows).apply(plain)
    counts = [trigram_counts(frame[name].to_list()) for name in texts]
    for count in counts:
        deviation = count[rows].std(axis=0)
        count[:] = (count - count[rows].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    numbers = np.hstack([prepared.numbers.reshape(len(frame), -1), *counts]).astype(np.float32)
    codes = prepared.codes.reshape(len(frame), -1)
    return Features(numbers, codes, prepared.cardinalities, spread=prepared.spread)


def trigram_counts(texts: Sequence[str | None], columns: int = HASH_COLUMNS) -> NDArray[np.float32]:
    """Count the trigrams of each text, hashed into columns; a missing text has none.

    >>> trigram_counts(["abc", None], columns=4).sum(axis=1).tolist()
    [3.0, 0.0]
    """
    counts = np.zeros((len(texts), columns), dtype=np.float32)
    for row, text in enumerate(texts):
        padded = f" {text.casefold()} " if text else ""
        for first in range(len(padded) - GRAM_LENGTH + 1):
            counts[row, zlib.crc32(padded[first : first + GRAM_LENGTH].encode()) % columns] += 1
    return counts


def exact_match_rows(primary: pl.DataFrame, secondary: pl.DataFrame) -> Integers:
    """Return for every primary record the first secondary row whose columns, in order, are all equal, or -1.

    >>> exact_match_rows(pl.DataFrame({"name": ["b", "c"]}), pl.DataFrame({"title": ["a", "b", "b"]})).tolist()
    [1, -1]
    >>> exact_match_rows(pl.DataFrame({"year": [1, 2]}), pl.DataFrame({"year": [2.0, 2.5]})).tolist()
    [-1, 0]
    """
    columns: tuple[list[pl.Series], list[pl.Series]] = [], []
    for place, pair in enumerate(zip(primary, secondary, strict=True)):
        # Numbers of different types are compared as floats, everything else as text.
        numeric = pair[0].dtype != pair[1].dtype and all(column.dtype.is_numeric() for column in pair)
        for side, column in zip(columns, pair, strict=True):
            side.append((column.cast(pl.Float64) if numeric else column).alias(str(place)).cast(pl.String))
    ours, theirs = (pl.DataFrame(side).select(pl.concat_str(pl.all(), separator="\0")).to_series() for side in columns)
    first: dict[str, int] = {}
    for row, key in enumerate(theirs.to_list()):
        if key is not None:
            first.setdefault(key, row)
    return np.array([first.get(key, -1) for key in ours.to_list()], dtype=np.int64)
