"""Keyed pseudorandom numbers that are the same on every machine and with every release of NumPy.

Only the holder of the key can predict them. They come from BLAKE2b, AES-128 and SHAKE-256 (FIPS 202), because the
streams of NumPy's generators may change between releases and are not secure against an adversary who knows part of
them. Both parties must be able to draw the same pivots, positions and permutations from one key for years.
"""

import hashlib
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedsim.errors import SettingError
from fedsim.types import Floats, Integers, Words

WORD_DTYPE = np.dtype("<u8")  # the same bytes on every machine
BLOCK_KEY_BYTES = 16  # AES-128
SECRET_BYTES = 32
MAX_SECRET_BYTES = blake2b.MAX_KEY_SIZE


def derive_subkey(secret: bytes, purpose: str, size: int) -> bytes:
    """Return a key of ``size`` bytes for one purpose; keys for different purposes reveal nothing about each other.

    >>> derive_subkey(bytes(32), "noise", 16) == derive_subkey(bytes(32), "order", 16)
    False
    """
    if not isinstance(secret, bytes) or not SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise SettingError(f"a secret must have {SECRET_BYTES} to {MAX_SECRET_BYTES} random bytes", code="bad-secret")
    return blake2b(purpose.encode(), key=secret, digest_size=size, person=b"fedsim subkey 1").digest()


def random_words(key: bytes, blocks: Words) -> Words:
    """Return one unpredictable word for every block of two words (last axis); equal blocks give equal words.

    >>> random_words(bytes(16), np.array([[1, 2], [2, 1], [1, 2]], np.uint64)) % 1000
    array([ 77, 687,  77], dtype=uint64)
    """
    # ECB is safe here: the cipher is used as a keyed function of single blocks, not to encrypt a message.
    cipher = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305
    plain = np.ascontiguousarray(blocks, dtype=WORD_DTYPE)
    words = np.frombuffer(cipher.encryptor().update(plain.tobytes()), dtype=WORD_DTYPE)
    return words.reshape(blocks.shape)[..., 0]


def secret_permutation(secret: bytes, purpose: str, n: int) -> Integers:
    """Return a permutation of ``range(n)`` that is always the same for a secret and a purpose.

    >>> sorted(secret_permutation(bytes(32), "rows", 5).tolist())
    [0, 1, 2, 3, 4]
    """
    blocks = np.zeros((n, 2), WORD_DTYPE)
    blocks[:, 0] = np.arange(n)
    drawn = random_words(derive_subkey(secret, f"order: {purpose}", BLOCK_KEY_BYTES), blocks)
    return np.argsort(drawn, kind="stable")


def shake_words(subkey: bytes, messages: Iterable[bytes], count: int) -> Words:
    """Return ``count`` uniform 64-bit words for every message, one row each."""
    # Prefixing a fixed-length key is a sound way to key SHAKE: sponges are not open to length extension.
    drawn = b"".join(hashlib.shake_256(subkey + message).digest(8 * count) for message in messages)
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64).reshape(-1, count)


def shake_uniforms(subkey: bytes, count: int) -> Floats:
    """Return ``count`` uniform numbers in [0, 1) with 53 random bits each."""
    return uniform_from_words(shake_words(subkey, [b""], count)[0])


def uniform_from_words(words: Words) -> Floats:
    """Return uniform numbers in [0, 1) with the upper 53 bits of random words."""
    return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def shake_permutation(subkey: bytes, count: int) -> Integers:
    """Return a random permutation of ``range(count)``.

    It sorts random words; equal words, which would favour the earlier one, occur in one of ``2**65 / count**2`` keys.

    >>> shake_permutation(bytes(32), 5)
    array([1, 3, 0, 4, 2])
    """
    return np.argsort(shake_words(subkey, [b""], count)[0], kind="stable").astype(np.int64)
