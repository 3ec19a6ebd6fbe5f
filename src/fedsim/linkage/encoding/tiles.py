"""Packed bit rows, made and rearranged a few rows at a time.

A filter of the paper's size has millions of bits; one byte per bit for a whole table would be eight times the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.types import Bits, Integers

# Four million bits at one byte each: fits the second-level cache of most machines, and hides the cost of the loop.
TILE_BYTES = 1 << 22


def pack_rows(n_rows: int, n_bits: int, tile: Callable[[slice], NDArray[Any]], widest: int = 1) -> Bits:
    """Packed rows of ``tile(rows)``, which returns zeros and ones of shape (rows, ``n_bits``).

    ``widest`` is the bits per row that ``tile`` unpacks on its way, where that is more than ``n_bits``.
    """
    packed = np.empty((n_rows, n_bits // 8), dtype=np.uint8)
    step = max(1, TILE_BYTES // max(n_bits, widest))
    for start in range(0, n_rows, step):
        rows = slice(start, min(start + step, n_rows))
        packed[rows] = np.packbits(tile(rows), axis=1)
    return packed


def take_bits(bits: Bits, positions: Integers) -> Bits:
    """Bit ``positions[j]`` of every row as its bit ``j``.

    >>> take_bits(np.array([[0b10000000]], dtype=np.uint8), np.array([1, 0, 1, 1, 1, 1, 1, 1]))
    array([[64]], dtype=uint8)
    """
    return pack_rows(
        len(bits),
        len(positions),
        lambda rows: np.unpackbits(bits[rows], axis=1).take(positions, axis=1),
        widest=8 * bits.shape[1],
    )
