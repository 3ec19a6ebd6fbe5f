"""Combine the filters of several fields into one per record, and harden the result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.encoding.filters import pack_rows, take_bits
from fedsim.privacy.keyed_prng import shake_permutation
from fedsim.types import Bits
from fedsim.validation import MAX_FILTER_BITS, convert_scalars, validate_filter_bits, validate_number

# Combinations. ``Concatenate``, the default, keeps every bit, and Hamming distances add up exactly. ``Sample`` allots
# bits to fields by weight, whatever the size of their filters (record-level filters of Durham et al. 2014). ``Union``
# is the "CLK" of other linkage systems: the shortest, but the fields share their bits.


@dataclass(frozen=True)
class Concatenate:
    """Concatenates the fields; the Hamming distance between records is the sum over their fields."""

    KIND: ClassVar[str] = "concatenate"

    def size(self, sizes: Sequence[int]) -> int:
        if sum(sizes) > MAX_FILTER_BITS:
            message = f"the fields have {sum(sizes)} bits together; use smaller filters, at most {MAX_FILTER_BITS}"
            raise SettingError(message, code="filter-too-large", limit=MAX_FILTER_BITS)
        return sum(sizes)

    def combine(self, filters: Sequence[Bits], subkey: bytes) -> Bits:
        return np.hstack(list(filters))


@dataclass(frozen=True)
class Union:
    """Bitwise OR of the fields: a bit is one if it is one in any field."""

    KIND: ClassVar[str] = "union"

    def size(self, sizes: Sequence[int]) -> int:
        if len(set(sizes)) > 1:
            message = f"union needs fields of equal size, but these have {sorted(set(sizes))} bits; make them equal"
            raise SettingError(message, code="unequal-sizes")
        return sizes[0]

    def combine(self, filters: Sequence[Bits], subkey: bytes) -> Bits:
        union: Bits = np.bitwise_or.reduce(list(filters))
        return union


@dataclass(frozen=True)
class Sample:
    """Secretly chosen bits of every field in proportion to its weight, shuffled together.

    Parameters
    ----------
    bits
        Bits per record.
    weights
        One weight per field, in field order; equal by default. A field that is too small for its share repeats bits.
    """

    KIND: ClassVar[str] = "sample"

    bits: int = 1024
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        convert_scalars(self)
        validate_filter_bits(self.bits)
        if not isinstance(self.weights, tuple):
            raise SettingError(f"weights={self.weights!r} is not a list; give one number per field", code="bad-weights")
        for weight in self.weights:
            validate_number(weight, "weight", above=0)

    def size(self, sizes: Sequence[int]) -> int:
        if self.weights and len(self.weights) != len(sizes):
            message = f"{len(self.weights)} weights for {len(sizes)} fields; give one per field, or none"
            raise SettingError(message, code="bad-weights")
        return self.bits

    def shares(self, n_fields: int) -> list[int]:
        """Return the number of bits of each field; they add up to ``bits``.

        >>> Sample(bits=1024, weights=(2, 1)).shares(2)
        [683, 341]
        """
        weights = np.asarray(self.weights or (1.0,) * n_fields, dtype=np.float64)
        borders = np.rint(np.cumsum(weights) / weights.sum() * self.bits).astype(np.int64)
        return [int(share) for share in np.diff(borders, prepend=0)]

    def combine(self, filters: Sequence[Bits], subkey: bytes) -> Bits:
        starts = np.cumsum([0] + [8 * bits.shape[1] for bits in filters])
        chosen = [
            start + np.resize(shake_permutation(subkey + bytes([field]), 8 * bits.shape[1]), share)
            for field, (start, bits, share) in enumerate(zip(starts, filters, self.shares(len(filters)), strict=False))
        ]
        return take_bits(np.hstack(list(filters)), np.concatenate(chosen)[shake_permutation(subkey, self.bits)])


# Hardening: steps that make finished record filters harder to decode. (Random hashing is built into StringFilter,
# salting into SchemaField.) Shuffle and Balance preserve the distances and XorFold nearly does, so none of them stops
# an attack on distances; BitFlip also adds noise to the distances. No step protects a low-dimensional number.


@dataclass(frozen=True)
class Shuffle:
    """Permutes bits in a secret order, the same for every record: hides field boundaries and preserves distances."""

    KIND: ClassVar[str] = "shuffle"

    def size(self, n_bits: int) -> int:
        return n_bits

    def apply(self, bits: Bits, subkey: bytes, rng: np.random.Generator | None) -> Bits:
        return take_bits(bits, shake_permutation(subkey, 8 * bits.shape[1]))


@dataclass(frozen=True)
class XorFold:
    """Combines the two halves of a filter with XOR, which halves the size and mixes the patterns of q-grams.

    >>> XorFold().apply(np.array([[0b11110000, 0b10101010]], dtype=np.uint8), b"", None)
    array([[90]], dtype=uint8)
    """

    KIND: ClassVar[str] = "xor-fold"

    def size(self, n_bits: int) -> int:
        if n_bits % 16:
            message = f"xor-fold needs a multiple of 16 bits, but the filter has {n_bits}; add 8 to one field"
            raise SettingError(message, code="not-a-multiple")
        return n_bits // 2

    def apply(self, bits: Bits, subkey: bytes, rng: np.random.Generator | None) -> Bits:
        half = bits.shape[1] // 2
        return bits[:, :half] ^ bits[:, half:]


@dataclass(frozen=True)
class Balance:
    """Appends the complement, in a secret order: every record has the same number of ones, and distances double."""

    KIND: ClassVar[str] = "balance"

    def size(self, n_bits: int) -> int:
        return 2 * n_bits

    def apply(self, bits: Bits, subkey: bytes, rng: np.random.Generator | None) -> Bits:
        return take_bits(np.hstack([bits, ~bits]), shake_permutation(subkey, 16 * bits.shape[1]))


@dataclass(frozen=True)
class BitFlip:
    """Randomised response: flips every bit of every record independently with probability 1 / (1 + e^epsilon).

    Parameters
    ----------
    epsilon
        Local differential privacy of **one bit**. For filters that differ in w bits, it is w times epsilon; see
        :meth:`record_epsilon`. Encoding a record again spends it again: the mean of many noisy copies is the filter.
    """

    KIND: ClassVar[str] = "bit-flip"

    epsilon: float

    def __post_init__(self) -> None:
        convert_scalars(self)
        # At 36 the probability of a flip is 2**-52, the resolution of the uniform numbers: nothing is hidden.
        validate_number(self.epsilon, "epsilon", above=0, below=36)

    @property
    def flip_probability(self) -> float:
        """The probability that a bit is flipped.

        >>> round(BitFlip(epsilon=3.0).flip_probability, 4)
        0.0474
        """
        return 1 / (1 + math.exp(self.epsilon))

    def record_epsilon(self, changed_bits: int) -> float:
        """Return the differential privacy between records whose filters differ in at most ``changed_bits`` bits."""
        return changed_bits * self.epsilon

    def guarantee(self, changed_bits: int) -> str:
        """Return the guarantee in one sentence, for records whose filters differ in at most ``changed_bits`` bits."""
        return (
            f"One noisy filter changes the odds on any bit by a factor of at most e^{self.epsilon:g}, and the odds "
            f"between two records whose filters differ in {changed_bits:,} bits by at most "
            f"e^{self.record_epsilon(changed_bits):g}; encoding a record again spends the same again."
        )

    def size(self, n_bits: int) -> int:
        return n_bits

    def apply(self, bits: Bits, subkey: bytes, rng: np.random.Generator | None) -> Bits:
        if rng is None:
            raise SettingError("bit-flip needs a generator; pass rng=numpy.random.default_rng()", code="no-generator")
        n_bits, probability = 8 * bits.shape[1], self.flip_probability

        def flips(rows: slice) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
            return rng.random((rows.stop - rows.start, n_bits)) < probability

        return bits ^ pack_rows(len(bits), n_bits, flips)
