"""What makes filters harder to read back, and what it costs.

Random hashing is built into :class:`StringFilter` and salting into :class:`Field`; the steps here work on finished
record filters, in the order the schema lists them. ``Shuffle`` and ``Balance`` keep the distances and ``XorFold``
nearly does, so none of them stops an attack that reads distances; ``BitFlip`` blurs those too. No step protects a
low-dimensional number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.encoding.checks import check_real, settle
from fedsim.linkage.encoding.stream import permutation
from fedsim.linkage.encoding.tiles import pack_rows, take_bits
from fedsim.types import Bits

Chance = np.random.Generator | None


class Hardening(Protocol):
    """One step from record filters to harder record filters."""

    KIND: ClassVar[str]

    def size(self, n_bits: int) -> int:
        """Bits after the step; a ``SettingError`` if it cannot work on ``n_bits``."""
        ...

    def apply(self, bits: Bits, subkey: bytes, rng: Chance) -> Bits:
        """The hardened filters; ``subkey`` is the parties' common chance, ``rng`` the holder's own."""
        ...


@dataclass(frozen=True)
class Shuffle:
    """Bits in a secret order, the same for every record: hides where one field ends; distances stay."""

    KIND: ClassVar[str] = "shuffle"

    def size(self, n_bits: int) -> int:
        return n_bits

    def apply(self, bits: Bits, subkey: bytes, rng: Chance) -> Bits:
        return take_bits(bits, permutation(subkey, 8 * bits.shape[1]))


@dataclass(frozen=True)
class XorFold:
    """The two halves of a filter, added without carry: half the size, and patterns of q-grams blur.

    >>> XorFold().apply(np.array([[0b11110000, 0b10101010]], dtype=np.uint8), b"", None)
    array([[90]], dtype=uint8)
    """

    KIND: ClassVar[str] = "xor-fold"

    def size(self, n_bits: int) -> int:
        if n_bits % 16:
            raise SettingError(f"xor-fold needs a multiple of 16 bits, the filter has {n_bits}; add 8 to one field")
        return n_bits // 2

    def apply(self, bits: Bits, subkey: bytes, rng: Chance) -> Bits:
        half = bits.shape[1] // 2
        return bits[:, :half] ^ bits[:, half:]


@dataclass(frozen=True)
class Balance:
    """Filter and complement together in a secret order: every record has equally many ones; distances double."""

    KIND: ClassVar[str] = "balance"

    def size(self, n_bits: int) -> int:
        return 2 * n_bits

    def apply(self, bits: Bits, subkey: bytes, rng: Chance) -> Bits:
        return take_bits(np.hstack([bits, ~bits]), permutation(subkey, 16 * bits.shape[1]))


@dataclass(frozen=True)
class BitFlip:
    """Randomised response: every bit of every record is flipped by its own coin, with probability 1 / (1 + e^epsilon).

    ``epsilon`` is the differential privacy of **one bit**: no observer's odds on its true value move by more than
    e^epsilon. Two filters that differ in w bits are w times epsilon apart, see :meth:`record_epsilon`. Encoding the
    same record again spends it again, since the mean of many noisy copies is the filter.
    """

    KIND: ClassVar[str] = "bit-flip"

    epsilon: float

    def __post_init__(self) -> None:
        settle(self)
        # At 36 the chance of a flip is 2**-52: the coin has no finer side, and nothing is hidden.
        check_real("epsilon", self.epsilon, above=0, below=36)

    @property
    def flip_probability(self) -> float:
        """Chance that a bit is flipped.

        >>> round(BitFlip(epsilon=3.0).flip_probability, 4)
        0.0474
        """
        return 1 / (1 + math.exp(self.epsilon))

    def record_epsilon(self, changed_bits: int) -> float:
        """Differential privacy between two records whose filters differ in at most ``changed_bits`` bits."""
        return changed_bits * self.epsilon

    def size(self, n_bits: int) -> int:
        return n_bits

    def apply(self, bits: Bits, subkey: bytes, rng: Chance) -> Bits:
        if rng is None:
            raise SettingError("bit-flip draws fresh chance for every record; pass rng=numpy.random.default_rng()")
        n_bits, probability = 8 * bits.shape[1], self.flip_probability

        def flips(rows: slice) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
            return rng.random((rows.stop - rows.start, n_bits)) < probability

        return bits ^ pack_rows(len(bits), n_bits, flips)
