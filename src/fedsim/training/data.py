"""What training takes: plain arrays, one value per party.

Letters: n primary records, K partners of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.splitnn.cut import Secondary
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours


class Goal(Enum):
    """What the labels are."""

    NUMBERS = "regression"
    CLASSES = "classification"


@dataclass(frozen=True, eq=False)
class PrimaryData:
    """The party with the labels: numbers, or whole numbers that stand for classes."""

    features: Features | NDArray[Any]
    labels: NDArray[Any]  # (n,)
    goal: Goal = Goal.NUMBERS
    name: str = "primary"

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", as_features(self.features))
        object.__setattr__(self, "labels", np.asarray(self.labels))


@dataclass(frozen=True, eq=False)
class SecondaryData:
    """A party without labels, and every primary record's partners in it.

    A secondary whose rows correspond one to one with those of an earlier one names that in ``aligned_with`` and brings
    no list of its own: both answer for the same partner rows, and their cut layers stand side by side (paper, appendix
    "Extension to Multiple Parties").
    """

    features: Features | NDArray[Any]
    partner: NDArray[Any] | None = None  # (n, K), rows of this party
    similarity: NDArray[Any] | None = None  # (n, K)
    name: str = "secondary"
    aligned_with: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", as_features(self.features))

    @property
    def neighbours(self) -> Neighbours | None:
        """Its own list, if it has one."""
        if self.partner is None or self.similarity is None:
            return None
        return Neighbours(np.asarray(self.partner), np.asarray(self.similarity))


@dataclass(frozen=True, eq=False)
class HeldList:
    """Every primary record's partners, and the parties that hold those rows, in this process or elsewhere."""

    neighbours: Neighbours
    holders: tuple[Secondary, ...]


def as_features(features: Features | NDArray[Any]) -> Features:
    """Plain arrays are columns of numbers."""
    return features if isinstance(features, Features) else Features(np.asarray(features))
