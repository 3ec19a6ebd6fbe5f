"""Keyed chance that is the same on every machine and for every version of numpy.

Both parties must draw the same pivots, positions and permutations from one subkey for years; numpy's generators
promise no such thing, SHAKE-256 (FIPS 202) does. A fixed-length key in front of the message keys it soundly, because
the sponge has no length extension.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedsim.types import Floats, Integers


def words(subkey: bytes, messages: Iterable[bytes], count: int) -> NDArray[np.uint64]:
    """``count`` uniform 64-bit words for every message, one row each."""
    drawn = b"".join(hashlib.shake_256(subkey + message).digest(8 * count) for message in messages)
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64).reshape(-1, count)


def uniforms(subkey: bytes, count: int) -> Floats:
    """``count`` numbers uniform on [0, 1), each with 53 random bits."""
    mantissas: Floats = (words(subkey, [b""], count)[0] >> np.uint64(11)).astype(np.float64)
    return mantissas * 2.0**-53


def permutation(subkey: bytes, count: int) -> Integers:
    """A permutation of ``range(count)``, every one equally likely.

    It sorts random words; two equal ones, which would favour the earlier, turn up once in ``2**65 / count**2`` keys.

    >>> permutation(bytes(32), 5)
    array([1, 3, 0, 4, 2])
    """
    return np.argsort(words(subkey, [b""], count)[0], kind="stable").astype(np.int64)
