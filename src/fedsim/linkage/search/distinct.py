"""Equal records are searched once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedsim.types import Integers

Records = Any  # an array with one row per record, a list of strings, or a tuple of such columns


def distinct(records: Records) -> tuple[Integers, Integers]:
    """Row of the first record of every kind, and every record's kind.

    >>> first, kind = distinct(["b", "a", "b"])
    >>> first.tolist(), kind.tolist()
    ([0, 1], [0, 1, 0])
    """
    if isinstance(records, list):
        kinds: dict[str, int] = {}
        kind = np.fromiter((kinds.setdefault(text, len(kinds)) for text in records), np.int64, len(records))
        return np.unique(kind, return_index=True)[1], kind
    if isinstance(records, tuple):
        records = np.column_stack([distinct(column)[1] for column in records])
    table = np.ascontiguousarray(records)
    if table.dtype.kind == "f":
        table = table + 0.0  # -0.0 and 0.0 are the same place
    bytes_of_row = table.view(np.uint8).reshape(len(table), -1)
    _, first, kind = np.unique(_row_hashes(bytes_of_row), return_index=True, return_inverse=True)
    if (table[first][kind] != table).any():  # two kinds of record share a hash: compare whole rows instead
        whole_rows = bytes_of_row.view(np.dtype((np.void, bytes_of_row.shape[1]))).ravel()
        _, first, kind = np.unique(whole_rows, return_index=True, return_inverse=True)
    return first, kind


@njit(nogil=True, cache=True)
def _row_hashes(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """FNV-1a of every row."""
    hashes = np.empty(len(rows), np.uint64)
    for row in range(len(rows)):
        state = np.uint64(0xCBF29CE484222325)
        for place in range(rows.shape[1]):
            state = (state ^ np.uint64(rows[row, place])) * np.uint64(0x100000001B3)
        hashes[row] = state
    return hashes


def part(records: Records, rows: slice | Integers) -> Records:
    """Some of the records, in the same form."""
    if isinstance(records, list):
        return records[rows] if isinstance(rows, slice) else [records[row] for row in rows]
    if isinstance(records, tuple):
        return tuple(part(column, rows) for column in records)
    return records[rows]


def count(records: Records) -> int:
    """Number of records."""
    return len(records[0]) if isinstance(records, tuple) else len(records)
