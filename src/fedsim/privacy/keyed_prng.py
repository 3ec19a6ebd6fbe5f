"""Keyed pseudorandom numbers, and noise bound to a pair of records, the same on every machine and release of NumPy.

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
from fedsim.types import Bits, Floats, Integers, Words

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


# Noise that is drawn anew for every answer can be averaged away by repeating the request. The noise of two records is
# therefore a function of their filters, a secret and a purpose: it is the same after a restart, in another batch, and
# for a second record with equal identifiers. A keyed hash gives every filter an eight-byte name, and AES of both names
# is the randomness of the pair. The probability that any two of ten million filters share a name, and thus their noise,
# is 3e-6. Letters: n left records, m right records, K partners.

PAIRS_AT_ONCE = 1 << 16  # their blocks fill a megabyte, which the cache holds
HASH_BYTES = 8


def pair_noise(secret: bytes, left_bits: Bits, right_bits: Bits, partner: Integers, *, purpose: str) -> Floats:
    """Return standard normal noise (n, K) for every left row and its partners.

    Never disclose the same noise at two scales: the answers ``a + 2z`` and ``a + 3z`` reveal ``a``. The purpose must
    therefore include everything that the noise is multiplied by or added to.

    Parameters
    ----------
    secret
        The secret; equal arguments give equal noise.
    left_bits
        Filters of the left records, (n, bytes).
    right_bits
        Filters of the right records, (m, bytes).
    partner
        The partners of every left row, as rows of ``right_bits``, (n, K).
    purpose
        What the noise is for; noise for different purposes is independent.

    Examples
    --------
    >>> left, right = np.array([[7], [9]], np.uint8), np.array([[1], [7], [8]], np.uint8)
    >>> drawn = pair_noise(bytes(32), left, right, np.array([[0, 2], [2, 0]]), purpose="example")
    >>> again = pair_noise(bytes(32), left[1:], right[2:], np.array([[0]]), purpose="example")
    >>> bool(again[0, 0] == drawn[1, 0]), len(np.unique(drawn))
    (True, 4)
    """
    naming = derive_subkey(secret, f"pair noise, names: {purpose}", 32)
    drawing = derive_subkey(secret, f"pair noise, draws: {purpose}", BLOCK_KEY_BYTES)
    left, right = hash_rows(left_bits, naming), hash_rows(right_bits, naming)  # (n,), (m,)
    noise = np.empty(partner.shape)
    step = max(1, PAIRS_AT_ONCE // max(1, partner.shape[1]))
    for first in range(0, len(partner), step):
        tile = slice(first, first + step)
        blocks = np.empty((*partner[tile].shape, 2), WORD_DTYPE)
        blocks[..., 0], blocks[..., 1] = left[tile, None], right[partner[tile]]
        noise[tile] = normal_from_words(random_words(drawing, blocks))
    return noise


def normal_from_words(words: Words) -> Floats:
    """Return standard normal values from random words: 52 bits choose the place in a tail, one more bit the side.

    Each tail is cut into 2**52 slices of equal probability, and the value is the middle of a slice. Both tails are
    therefore symmetric, and all values are finite, up to 8.2924 = -ndtri(2**-54). A noisy similarity rounded to float32
    can come from many slices, so its last bits reveal nothing. The exception is about one value in 10**8: noise beyond
    6, where slices are 2e-8 apart, and sums so close to zero that float32 is finer than the slices.

    >>> normal_from_words(np.array([0, 2**64 - 1], np.uint64)).round(4).tolist()
    [8.2924, -0.0]
    """
    from scipy.special import ndtri  # noqa: PLC0415 - SciPy takes a tenth of a second, and few need it

    place = ((words >> np.uint64(12)) + 0.5) * 2.0**-53  # exact, above 0 and below 1/2
    tail: Floats = ndtri(place)
    return np.where(words >> np.uint64(11) & np.uint64(1), tail, -tail)


def hash_rows(bits: Bits, key: bytes) -> Words:
    """Return a keyed hash of every row; hashing equal rows again is cheaper than finding them.

    Parameters
    ----------
    bits
        The rows, (n, bytes).
    key
        The key, without which nobody can link a hash to its row.
    """
    keyed = blake2b(key=key, digest_size=HASH_BYTES)
    names = bytearray()
    for row in np.ascontiguousarray(bits):
        hashed = keyed.copy()
        hashed.update(row)
        names += hashed.digest()
    return np.frombuffer(names, dtype=WORD_DTYPE)
