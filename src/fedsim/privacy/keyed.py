"""Chance that only the holder of a secret can foresee, and that comes out the same whenever he draws again.

Made of BLAKE2b and AES-128 and not of a NumPy generator: what a NumPy generator makes of its stream may change from one
release to the next, and it was never meant to withstand an adversary who knows a part of that stream.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedsim.errors import SettingError
from fedsim.types import Integers

Words = NDArray[np.uint64]
WORD = np.dtype("<u8")  # the same bytes on every machine
BLOCK_KEY_BYTES = 16  # AES-128
SECRET_BYTES = 32
MOST_SECRET_BYTES = blake2b.MAX_KEY_SIZE


def subkey(secret: bytes, purpose: str, size: int) -> bytes:
    """A key of ``size`` bytes for one purpose; keys of different purposes say nothing about each other.

    >>> subkey(bytes(32), "noise", 16) == subkey(bytes(32), "order", 16)
    False
    """
    if not isinstance(secret, bytes) or not SECRET_BYTES <= len(secret) <= MOST_SECRET_BYTES:
        raise SettingError(
            f"a secret has {SECRET_BYTES} to {MOST_SECRET_BYTES} random bytes; this one has another size"
        )
    return blake2b(purpose.encode(), key=secret, digest_size=size, person=b"fedsim subkey 1").digest()


def random_words(key: bytes, blocks: Words) -> Words:
    """For every block of two words (last axis) one word that nobody foresees without the key; equal for equal blocks.

    >>> random_words(bytes(16), np.array([[1, 2], [2, 1], [1, 2]], np.uint64)) % 1000
    array([ 77, 687,  77], dtype=uint64)
    """
    # Every block is enciphered once, on its own: this is the cipher as a function, not a way to hide a text.
    cipher = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305
    plain = np.ascontiguousarray(blocks, dtype=WORD)
    words = np.frombuffer(cipher.encryptor().update(plain.tobytes()), dtype=WORD)
    return words.reshape(blocks.shape)[..., 0]


def secret_order(secret: bytes, purpose: str, n: int) -> Integers:
    """The numbers below ``n`` in a random order that is always the same for a secret and a purpose.

    >>> sorted(secret_order(bytes(32), "rows", 5).tolist())
    [0, 1, 2, 3, 4]
    """
    blocks = np.zeros((n, 2), WORD)
    blocks[:, 0] = np.arange(n)
    drawn = random_words(subkey(secret, f"order: {purpose}", BLOCK_KEY_BYTES), blocks)
    return np.argsort(drawn, kind="stable")
