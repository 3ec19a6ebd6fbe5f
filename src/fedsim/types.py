"""Frozen value types shared by several packages."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bits = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]
Floats32 = NDArray[np.float32]
Integers32 = NDArray[np.int32]
AnyArray = NDArray[Any]

POSITION_DTYPE = np.dtype("<i4")  # of one axis of an encoded position, on every machine

# The number of partners per primary record wherever a user names none: estimators, commands and new jobs.
DEFAULT_K = 20


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Identifiers as the coordinator may see them: one packed bit filter per record.

    ``bits`` has one row per record and ``ceil(n_bits / 8)`` bytes (``numpy.packbits`` order, spare bits zero).
    ``fingerprint`` stands for the schema and the key that made the filters; tables link only if theirs are equal.
    """

    bits: Bits
    n_bits: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.bits)

    def __repr__(self) -> str:
        return f"EncodedTable({len(self)} records x {self.n_bits} bits, fingerprint {self.fingerprint[:12]})"


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of the negative distances of the training links (paper, equation 1)."""

    mean: float
    deviation: float


@dataclass(frozen=True, eq=False)
class Links:
    """For every primary record its K partners, nearest first (ties: lower candidate row first).

    ``partner`` holds candidate row numbers, ``distance`` what the metric said, ``similarity`` the scaled, possibly
    noisy value the networks see; all three have one row per primary record and K columns. ``next_distance`` is that of
    the first candidate left out (infinite where none was), ``saturated`` the share of records whose K-th partner has
    nothing in common with them any more, for the metrics where that is known.
    """

    partner: Integers
    distance: Floats
    similarity: Floats
    scale: Scale
    sigma: float
    metric: str
    n_candidates: int
    next_distance: Floats
    saturated: float | None = None
    plan: str = ""

    def __len__(self) -> int:
        return len(self.partner)

    @property
    def k(self) -> int:
        """Number of partners per record."""
        return int(self.partner.shape[1])

    def __repr__(self) -> str:
        return f"Links({len(self)} records x {self.k} partners of {self.n_candidates}, {self.metric})"


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of the primary's records that train, validate and test."""

    train: Integers
    validation: Integers
    test: Integers

    def __repr__(self) -> str:
        return f"Split({len(self.train)} training, {len(self.validation)} validation, {len(self.test)} test records)"
