"""Combine the filters of several fields into one per record, and harden the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.encoding.filters import pack_rows, take_bits
from fedsim.privacy.keyed_prng import shake_permutation
from fedsim.types import Bits, Integers
from fedsim.validation import MAX_FILTER_BITS, check_filter_bits, check_number, convert_numpy_scalars

# From the filters of the fields to the one filter of the record
#
# ``Concatenate`` keeps every bit and adds Hamming distances up: exact, and the default. ``Sample`` gives each field the
# share its weight asks for, whatever the size of its filter (record-level filters of Durham et al. 2014). ``Union``
# lays equally long text filters over each other (the "CLK" other linkage systems read): shortest, and the fields
# crowd it.


class Combination(Protocol):
    """Makes one filter of several."""

    KIND: ClassVar[str]

    def size(self, sizes: Sequence[int]) -> int:
        """Bits of a record whose fields have ``sizes`` bits; a ``SettingError`` if they do not fit together."""
        ...

    def combine(self, filters: Sequence[Bits], subkey: bytes) -> Bits:
        """One packed filter per record."""
        ...


@dataclass(frozen=True)
class Concatenate:
    """Fields side by side; the Hamming distance of records is the sum over their fields."""

    KIND: ClassVar[str] = "concatenate"

    def size(self, sizes: Sequence[int]) -> int:
        if sum(sizes) > MAX_FILTER_BITS:
            raise SettingError(
                f"the fields have {sum(sizes)} bits together, more than {MAX_FILTER_BITS}; use smaller filters"
            )
        return sum(sizes)

    def combine(self, filters: Sequence[Bits], subkey: bytes) -> Bits:
        return np.hstack(list(filters))


@dataclass(frozen=True)
class Union:
    """Fields over each other: a bit is one where any field's is."""

    KIND: ClassVar[str] = "union"

    def size(self, sizes: Sequence[int]) -> int:
        if len(set(sizes)) > 1:
            raise SettingError(
                f"a union needs fields of one size, these have {sorted(set(sizes))} bits; make them equal"
            )
        return sizes[0]

    def combine(self, filters: Sequence[Bits], subkey: bytes) -> Bits:
        union: Bits = np.bitwise_or.reduce(list(filters))
        return union


@dataclass(frozen=True)
class Sample:
    """Secretly chosen bits of every field, as many as its weight asks for, shuffled together.

    ``weights`` follow the order of the fields; none means equal. A field too small for its share gives bits twice.
    """

    KIND: ClassVar[str] = "sample"

    bits: int = 1024
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        convert_numpy_scalars(self)
        check_filter_bits(self.bits)
        if not isinstance(self.weights, tuple):
            raise SettingError(f"weights={self.weights!r} are no list; give one number for each field")
        for weight in self.weights:
            check_number("weight", weight, above=0)

    def size(self, sizes: Sequence[int]) -> int:
        if self.weights and len(self.weights) != len(sizes):
            raise SettingError(f"{len(self.weights)} weights given for {len(sizes)} fields; give one for each, or none")
        return self.bits

    def shares(self, n_fields: int) -> list[int]:
        """Bits that go to each field; they add up to ``bits``.

        >>> Sample(bits=1024, weights=(2, 1)).shares(2)
        [683, 341]
        """
        weights = np.asarray(self.weights or (1.0,) * n_fields, dtype=np.float64)
        borders = np.rint(np.cumsum(weights) / weights.sum() * self.bits).astype(np.int64)
        return [int(share) for share in np.diff(borders, prepend=0)]

    def combine(self, filters: Sequence[Bits], subkey: bytes) -> Bits:
        starts = np.cumsum([0] + [8 * bits.shape[1] for bits in filters])
        chosen = [
            start + _draw_positions(subkey + bytes([field]), 8 * bits.shape[1], share)
            for field, (start, bits, share) in enumerate(zip(starts, filters, self.shares(len(filters)), strict=False))
        ]
        return take_bits(np.hstack(list(filters)), np.concatenate(chosen)[shake_permutation(subkey, self.bits)])


def _draw_positions(subkey: bytes, size: int, share: int) -> Integers:
    return np.resize(shake_permutation(subkey, size), share)


# What makes filters harder to read back, and what it costs
#
# Random hashing is built into :class:`StringFilter` and salting into :class:`Field`; the steps here work on finished
# record filters, in the order the schema lists them. ``Shuffle`` and ``Balance`` keep the distances and ``XorFold``
# nearly does, so none of them stops an attack that reads distances; ``BitFlip`` blurs those too. No step protects a
# low-dimensional number.


OptionalGenerator = np.random.Generator | None


class Hardening(Protocol):
    """One step from record filters to harder record filters."""

    KIND: ClassVar[str]

    def size(self, n_bits: int) -> int:
        """Bits after the step; a ``SettingError`` if it cannot work on ``n_bits``."""
        ...

    def apply(self, bits: Bits, subkey: bytes, rng: OptionalGenerator) -> Bits:
        """The hardened filters; ``subkey`` is the parties' common chance, ``rng`` the holder's own."""
        ...


@dataclass(frozen=True)
class Shuffle:
    """Bits in a secret order, the same for every record: hides where one field ends; distances stay."""

    KIND: ClassVar[str] = "shuffle"

    def size(self, n_bits: int) -> int:
        return n_bits

    def apply(self, bits: Bits, subkey: bytes, rng: OptionalGenerator) -> Bits:
        return take_bits(bits, shake_permutation(subkey, 8 * bits.shape[1]))


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

    def apply(self, bits: Bits, subkey: bytes, rng: OptionalGenerator) -> Bits:
        half = bits.shape[1] // 2
        return bits[:, :half] ^ bits[:, half:]


@dataclass(frozen=True)
class Balance:
    """Filter and complement together in a secret order: every record has equally many ones; distances double."""

    KIND: ClassVar[str] = "balance"

    def size(self, n_bits: int) -> int:
        return 2 * n_bits

    def apply(self, bits: Bits, subkey: bytes, rng: OptionalGenerator) -> Bits:
        return take_bits(np.hstack([bits, ~bits]), shake_permutation(subkey, 16 * bits.shape[1]))


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
        convert_numpy_scalars(self)
        # At 36 the chance of a flip is 2**-52: the coin has no finer side, and nothing is hidden.
        check_number("epsilon", self.epsilon, above=0, below=36)

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

    def apply(self, bits: Bits, subkey: bytes, rng: OptionalGenerator) -> Bits:
        if rng is None:
            raise SettingError("bit-flip draws fresh chance for every record; pass rng=numpy.random.default_rng()")
        n_bits, probability = 8 * bits.shape[1], self.flip_probability

        def flips(rows: slice) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
            return rng.random((rows.stop - rows.start, n_bits)) < probability

        return bits ^ pack_rows(len(bits), n_bits, flips)
