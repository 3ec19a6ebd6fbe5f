"""Randomised response on the bits of filters: local differential privacy against the coordinator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsim.privacy.checks import check_positive
from fedsim.types import Bits
from fedsim.whole import whole_number

BITS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class FlippedBits:
    """Every bit of every record is flipped by its own coin, with probability 1 / (1 + e^epsilon).

    ``epsilon`` is that of one bit. ``changed_bits`` is the most bits in which the filters of two records differ that
    shall not be told apart: twice the ones of a filter for any two records, fewer for near ones.
    """

    epsilon: float
    changed_bits: int

    def __post_init__(self) -> None:
        check_positive(epsilon=self.epsilon)
        whole_number(self.changed_bits, "changed_bits", least=1)

    @classmethod
    def for_record(cls, epsilon: float, changed_bits: int) -> FlippedBits:
        """The coin whose guarantee for a whole record is ``epsilon``.

        >>> FlippedBits.for_record(epsilon=20.0, changed_bits=400)
        FlippedBits(epsilon=0.05, changed_bits=400)
        """
        return cls(epsilon / whole_number(changed_bits, "changed_bits", least=1), changed_bits)

    @property
    def flip_probability(self) -> float:
        """Chance that a bit is flipped.

        >>> round(FlippedBits(epsilon=3.0, changed_bits=400).flip_probability, 4)
        0.0474
        """
        return 1.0 / (1.0 + math.exp(self.epsilon))

    @property
    def record_epsilon(self) -> float:
        """Local differential privacy between two records whose filters differ in ``changed_bits`` bits."""
        return self.epsilon * self.changed_bits

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        return (
            f"Whoever sees one noisy filter moves its odds on any bit by at most e^{self.epsilon:g}, and between two "
            f"records whose filters differ in {self.changed_bits:,} bits before the flips by at most "
            f"e^{self.record_epsilon:g}; encoding a record afresh spends the same again."
        )

    def apply(self, values: Bits, rng: np.random.Generator) -> Bits:
        """Noisy filters, packed as they came."""
        noisy = np.empty_like(values)
        step = max(1, BITS_AT_ONCE // max(1, 8 * values.shape[1]))
        for first in range(0, len(values), step):
            tile = values[first : first + step]
            flips = rng.random((len(tile), 8 * values.shape[1])) < self.flip_probability
            noisy[first : first + step] = tile ^ np.packbits(flips, axis=1)
        return noisy
