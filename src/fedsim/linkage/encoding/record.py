"""From the filters of the fields to the one filter of the record.

``Concatenate`` keeps every bit and adds Hamming distances up: exact, and the default. ``Sample`` gives each field the
share its weight asks for, whatever the size of its filter (record-level filters of Durham et al. 2014). ``Union`` lays
equally long text filters over each other (the "CLK" other linkage systems read): shortest, and the fields crowd it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.encoding.checks import MAX_BITS, check_bits, check_real, settle
from fedsim.linkage.encoding.stream import permutation
from fedsim.linkage.encoding.tiles import take_bits
from fedsim.types import Bits, Integers


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
        if sum(sizes) > MAX_BITS:
            raise SettingError(f"the fields have {sum(sizes)} bits together, more than {MAX_BITS}; use smaller filters")
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
        settle(self)
        check_bits(self.bits)
        if not isinstance(self.weights, tuple):
            raise SettingError(f"weights={self.weights!r} are no list; give one number for each field")
        for weight in self.weights:
            check_real("weight", weight, above=0)

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
            start + _draw(subkey + bytes([field]), 8 * bits.shape[1], share)
            for field, (start, bits, share) in enumerate(zip(starts, filters, self.shares(len(filters)), strict=False))
        ]
        return take_bits(np.hstack(list(filters)), np.concatenate(chosen)[permutation(subkey, self.bits)])


def _draw(subkey: bytes, size: int, share: int) -> Integers:
    return np.resize(permutation(subkey, size), share)
