"""Metrics of predictions, and the scaling of labels into the network and of predictions back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import FileError, SettingError
from fedsim.splitnn.gates import (
    BinaryClassification,
    BoundedRegression,
    MulticlassClassification,
    PredictionTask,
    Regression,
)
from fedsim.types import Floats

Metrics = dict[str, float]
MIN_PROBABILITY = 1e-7


def regression_metrics(predictions: Floats, labels: NDArray[Any]) -> Metrics:
    """RMSE, R2 and mean absolute error in the unit of the labels."""
    errors = predictions - labels
    squares, spread = float(np.square(errors).mean()), float(np.var(labels))
    r2 = 1 - squares / spread if spread > 0 else 0.0
    return {"rmse": squares**0.5, "r2": r2, "mae": float(np.abs(errors).mean())}


def classification_metrics(probabilities: Floats, classes: NDArray[Any]) -> Metrics:
    """Accuracy and log loss, of two classes the area under the curve too; ``classes`` counts columns."""
    of_truth = np.take_along_axis(probabilities, classes[:, None], axis=1)
    accuracy = float((probabilities.argmax(axis=1) == classes).mean())
    found = {"accuracy": accuracy, "log_loss": float(-np.log(of_truth.clip(MIN_PROBABILITY)).mean())}
    return found | {"auc": roc_auc(probabilities[:, 1], classes)} if probabilities.shape[1] == 2 else found


def roc_auc(probability: Floats, classes: NDArray[Any]) -> float:
    """Chance that a record of class 1 is given the greater probability than one of class 0.

    >>> roc_auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 0, 1, 1]))
    0.875
    """
    level = np.unique(probability, return_inverse=True)[1]
    ones, zeros = (np.bincount(level[classes == kind], minlength=level.max() + 1) for kind in (1, 0))
    return pair_win_rate(ones, zeros)


def pair_win_rate(ones: NDArray[Any], zeros: NDArray[Any]) -> float:
    """Share of pairs whose one stands higher, from how many stand at each level; equal ones are half won.

    Without a pair it is that of guessing, a half.
    """
    pairs = ones.sum() * zeros.sum()
    won = (ones * (np.cumsum(zeros) - 0.5 * zeros)).sum()
    return float(won / pairs) if pairs else 0.5


def selection_key(metrics: Metrics) -> tuple[float, ...]:
    """Compares: the greater, the better. RMSE decides, or accuracy and, where equal, log loss."""
    if "rmse" in metrics:
        return (-metrics["rmse"],)
    return metrics["accuracy"], -metrics["log_loss"]


# Labels on their way into a network and predictions on their way back, learnt from training rows alone


class Target(Protocol):
    """What is learnt: the task of the network, the way to it and the way back."""

    @property
    def task(self) -> PredictionTask: ...

    def encode_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Labels as the loss takes them."""

    def decode_predictions(self, predictions: Floats) -> Floats:
        """Network predictions (n, T) as numbers in the user's unit (n,), or as probabilities per class (n, classes)."""

    def measure(self, predictions: Floats, labels: NDArray[Any]) -> Metrics:
        """How good predictions in the user's terms are; the first metric chooses the best epoch."""


class LabelScaler(Protocol):
    """A way to scale numbers, fitted on the labels of the training rows."""

    def fit(self, labels: Floats) -> Target: ...


@dataclass(frozen=True)
class MinMaxLabel:
    """The paper's: the training range becomes 0..1 behind a sigmoid, so predictions cannot leave that range."""

    def fit(self, labels: Floats) -> Target:
        low, width = float(labels.min()), float(labels.max() - labels.min())
        return NumericTarget(low, width if width > 0 else 1.0, BoundedRegression())


@dataclass(frozen=True)
class StandardLabel:
    """Mean 0 and deviation 1 before a linear output: predictions can leave the training range."""

    def fit(self, labels: Floats) -> Target:
        deviation = float(labels.std())
        return NumericTarget(float(labels.mean()), deviation if deviation > 0 else 1.0, Regression())


@dataclass(frozen=True)
class NumericTarget:
    """label = shift + scale * what the network sees."""

    shift: float = field(repr=False)  # perhaps the smallest label, which belongs into no log
    scale: float = field(repr=False)
    task: PredictionTask

    def encode_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        return ((labels - self.shift) / self.scale).astype(np.float32)

    def decode_predictions(self, predictions: Floats) -> Floats:
        return self.shift + self.scale * predictions[:, 0]

    def measure(self, predictions: Floats, labels: NDArray[Any]) -> Metrics:
        return regression_metrics(predictions, labels)


@dataclass(frozen=True)
class ClassTarget:
    """Classes in ascending order of their labels."""

    classes: tuple[int, ...]

    @property
    def task(self) -> PredictionTask:
        return BinaryClassification() if len(self.classes) == 2 else MulticlassClassification(len(self.classes))

    def encode_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        places = np.searchsorted(self.classes, labels)
        return places.astype(np.float32 if len(self.classes) == 2 else np.int64)

    def decode_predictions(self, predictions: Floats) -> Floats:
        return np.hstack([1 - predictions, predictions]) if len(self.classes) == 2 else predictions

    def measure(self, predictions: Floats, labels: NDArray[Any]) -> Metrics:
        return classification_metrics(predictions, np.searchsorted(self.classes, labels))


# How labels reach the network and predictions come back, as plain JSON values, and back


def target_state(target: Target) -> dict[str, Any]:
    """What :func:`target_from` needs.

    >>> target_state(ClassTarget((5, 6, 7)))
    {'classes': [5, 6, 7]}
    """
    if isinstance(target, NumericTarget):
        return {"shift": target.shift, "scale": target.scale, "bounded": isinstance(target.task, BoundedRegression)}
    if isinstance(target, ClassTarget):
        return {"classes": list(target.classes)}
    raise SettingError(f"labels scaled by {type(target).__name__} cannot be saved")


def target_from_state(state: Mapping[str, Any]) -> Target:
    """The target that :func:`target_state` described."""
    try:
        if "classes" in state:
            classes = state["classes"]  # earlier models say how many there are
            return ClassTarget(tuple(range(classes) if isinstance(classes, int) else classes))
        return NumericTarget(state["shift"], state["scale"], BoundedRegression() if state["bounded"] else Regression())
    except (LookupError, TypeError) as error:
        raise FileError(f"the labels' scale cannot be read ({type(error).__name__}); save the model again") from error
