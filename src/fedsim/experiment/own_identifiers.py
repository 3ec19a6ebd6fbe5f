"""The primary's own identifiers as features: what it could have learnt from them without any partner."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.features import fit_preparation
from fedsim.splitnn.features import Features
from fedsim.types import Integers

GRAM = 3
COLUMNS = 64


def identifier_features(frame: pl.DataFrame, rows: Integers) -> Features:
    """Numbers and dates as they are, text as counts of its three-letter pieces; scaled by the training ``rows``.

    >>> identifier_features(pl.DataFrame({"lat": [1.0, 2.0], "name": ["fox", "ox"]}), np.arange(2))
    Features(2 records x 65 numbers and 0 codes)
    """
    words = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    plain = frame.drop(words)
    prepared = fit_preparation(plain, party="primary", rows=rows).apply(plain)
    pieces = [_scaled(piece_counts(frame[name].to_list()), rows) for name in words]
    numbers = np.hstack([prepared.numbers.reshape(len(frame), -1), *pieces]).astype(np.float32)
    codes = prepared.codes.reshape(len(frame), -1)
    return Features(numbers, codes, prepared.cardinalities, spread=prepared.spread)


def piece_counts(texts: Sequence[str | None], columns: int = COLUMNS) -> NDArray[np.float32]:
    """How often each text has pieces of three letters that fall into a column; a missing text has none.

    >>> piece_counts(["abc", None], columns=4).sum(axis=1).tolist()
    [3.0, 0.0]
    """
    counts = np.zeros((len(texts), columns), dtype=np.float32)
    for row, text in enumerate(texts):
        padded = f" {text.casefold()} " if text else ""
        for first in range(len(padded) - GRAM + 1):
            counts[row, zlib.crc32(padded[first : first + GRAM].encode()) % columns] += 1
    return counts


def _scaled(counts: NDArray[np.float32], rows: Integers) -> NDArray[np.float32]:
    deviation = counts[rows].std(axis=0)
    return np.asarray((counts - counts[rows].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0))
