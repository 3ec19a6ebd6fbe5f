"""How good predictions are when records count more or less: what a bootstrap asks for, over and over.

Letters: n test records, G groups of records that are drawn together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.training.metrics import won_pairs
from fedsim.types import Floats, Integers


class Weighable(Protocol):
    """Predictions of one training, ready to be judged."""

    def score(self, weight: Floats) -> float:
        """The metric where each group counts so often."""


class Measure(Protocol):
    """A metric."""

    @property
    def name(self) -> str: ...

    @property
    def lower_is_better(self) -> bool: ...

    def prepared(self, predictions: NDArray[Any], labels: NDArray[Any], group: Integers) -> Weighable:
        """All that does not depend on the weights."""


@dataclass(frozen=True, eq=False)
class _Mean:
    """A mean over records, perhaps under a root."""

    sums: Floats  # (G,)
    counts: Floats  # (G,)
    power: float

    def score(self, weight: Floats) -> float:
        return float((weight @ self.sums / (weight @ self.counts)) ** self.power)


def _summed(values: NDArray[Any], group: Integers, power: float) -> _Mean:
    sums = np.asarray(np.bincount(group, weights=values), dtype=np.float64)
    return _Mean(sums, np.bincount(group).astype(np.float64), power)


@dataclass(frozen=True)
class RootMeanSquare:
    """Root mean square error in the unit of the labels."""

    name: str = "rmse"
    lower_is_better: bool = True

    def prepared(self, predictions: NDArray[Any], labels: NDArray[Any], group: Integers) -> Weighable:
        return _summed(np.square(predictions.astype(np.float64) - labels), group, 0.5)


@dataclass(frozen=True)
class Accuracy:
    """Share of records whose likeliest class is theirs; labels count columns of the predictions."""

    name: str = "accuracy"
    lower_is_better: bool = False

    def prepared(self, predictions: NDArray[Any], labels: NDArray[Any], group: Integers) -> Weighable:
        return _summed((predictions.argmax(axis=1) == labels).astype(np.float64), group, 1.0)


@dataclass(frozen=True, eq=False)
class _Ranked:
    """Records of two classes in the order of their probability; equal ones share a ``level``."""

    level: Integers
    group: Integers
    second: NDArray[np.bool_]

    def score(self, weight: Floats) -> float:
        of_record = weight[self.group]
        levels = int(self.level[-1]) + 1
        ones = np.bincount(self.level, weights=of_record * self.second, minlength=levels)
        zeros = np.bincount(self.level, weights=of_record * ~self.second, minlength=levels)
        return won_pairs(ones, zeros)


@dataclass(frozen=True)
class AreaUnderCurve:
    """Chance that a record of the second class is given the greater probability; a half for guessing."""

    name: str = "auc"
    lower_is_better: bool = False

    def prepared(self, predictions: NDArray[Any], labels: NDArray[Any], group: Integers) -> Weighable:
        probability = predictions[:, 1]
        order = np.argsort(probability, kind="stable")
        rises = np.diff(probability[order], prepend=probability[order[0]]) > 0
        level = np.cumsum(rises, dtype=np.int64)
        return _Ranked(level, group[order], labels[order] == 1)


def measure_for(task: str, labels: NDArray[Any]) -> Measure:
    """What a ladder is measured by: error for numbers, area under the curve for two classes, accuracy for more."""
    if task == "regression":
        return RootMeanSquare()
    return AreaUnderCurve() if len(np.unique(labels)) == 2 else Accuracy()
