"""Queries in pieces that a thread can work on."""

from __future__ import annotations

import numpy as np

from fedsim.types import Integers


def tiles_of(n_queries: int, size: int) -> list[Integers]:
    """Consecutive rows, ``size`` at a time.

    >>> [tile.tolist() for tile in tiles_of(5, 2)]
    [[0, 1], [2, 3], [4]]
    """
    return in_tiles(np.arange(n_queries), size)


def in_tiles(rows: Integers, size: int) -> list[Integers]:
    """Rows in their given order, ``size`` at a time."""
    return [rows[first : first + size] for first in range(0, len(rows), size)]
