"""Labels on their way into a network and predictions on their way back, learnt from training rows alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.splitnn.tasks import Binary, BoundedRegression, MultiClass, Regression, Task
from fedsim.training.metrics import Metrics, of_classes, of_numbers
from fedsim.types import Floats


class Target(Protocol):
    """What is learnt: the task of the network, the way to it and the way back."""

    @property
    def task(self) -> Task: ...

    def inwards(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Labels as the loss takes them."""

    def outwards(self, predictions: Floats) -> Floats:
        """Network predictions (n, T) as numbers in the user's unit (n,), or as probabilities per class (n, classes)."""

    def measure(self, predictions: Floats, labels: NDArray[Any]) -> Metrics:
        """How good predictions in the user's terms are; the first metric chooses the best epoch."""


class LabelScale(Protocol):
    """A way to scale numbers, fitted on the labels of the training rows."""

    def fit(self, labels: Floats) -> Target: ...


@dataclass(frozen=True)
class MinMaxLabel:
    """The paper's: the training range becomes 0..1 behind a sigmoid, so predictions cannot leave that range."""

    def fit(self, labels: Floats) -> Target:
        low, width = float(labels.min()), float(labels.max() - labels.min())
        return Numbers(low, width if width > 0 else 1.0, BoundedRegression())


@dataclass(frozen=True)
class StandardLabel:
    """Mean 0 and deviation 1 before a linear output: predictions can leave the training range."""

    def fit(self, labels: Floats) -> Target:
        deviation = float(labels.std())
        return Numbers(float(labels.mean()), deviation if deviation > 0 else 1.0, Regression())


@dataclass(frozen=True)
class Numbers:
    """label = shift + scale * what the network sees."""

    shift: float = field(repr=False)  # perhaps the smallest label, which belongs into no log
    scale: float = field(repr=False)
    task: Task

    def inwards(self, labels: NDArray[Any]) -> NDArray[Any]:
        return ((labels - self.shift) / self.scale).astype(np.float32)

    def outwards(self, predictions: Floats) -> Floats:
        return self.shift + self.scale * predictions[:, 0]

    def measure(self, predictions: Floats, labels: NDArray[Any]) -> Metrics:
        return of_numbers(predictions, labels)


@dataclass(frozen=True)
class Classes:
    """Classes in ascending order of their labels."""

    classes: tuple[int, ...]

    @property
    def task(self) -> Task:
        return Binary() if len(self.classes) == 2 else MultiClass(len(self.classes))

    def inwards(self, labels: NDArray[Any]) -> NDArray[Any]:
        places = np.searchsorted(self.classes, labels)
        return places.astype(np.float32 if len(self.classes) == 2 else np.int64)

    def outwards(self, predictions: Floats) -> Floats:
        return np.hstack([1 - predictions, predictions]) if len(self.classes) == 2 else predictions

    def measure(self, predictions: Floats, labels: NDArray[Any]) -> Metrics:
        return of_classes(predictions, np.searchsorted(self.classes, labels))
