"""Gaussian noise that is a fixed function of a pair of encoded records and a secret.

Noise that is drawn anew for every answer can be averaged away by repeating the request. Here the noise of a pair is a
function of the two filters, a secret and a purpose: it is the same after a restart, in another batch, and for a second
record with equal identifiers. A keyed hash gives every filter an eight-byte name, and AES of the two names is the
randomness of the pair. The probability that any two of ten million filters share a name, and thus their noise, is 3e-6.

Letters: n left records, m right records, K partners.
"""

from hashlib import blake2b

import numpy as np
from scipy.special import ndtri

from fedsim.privacy.keyed_prng import BLOCK_KEY_BYTES, WORD_DTYPE, derive_subkey, random_words
from fedsim.types import Bits, Floats, Integers, Words

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
