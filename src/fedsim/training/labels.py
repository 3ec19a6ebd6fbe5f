"""Metrics of predictions, and the scaling of labels for the network and of its predictions back.

Letters: n records, T outputs of the task.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import FileError, SettingError
from fedsim.splitnn import gates
from fedsim.splitnn.gates import BoundedRegression, PredictionTask, Regression
from fedsim.types import Floats

# Metrics. scikit-learn has them too, but training runs on machines with torch and numpy alone.


Metrics = dict[str, float]
MIN_PROBABILITY = 1e-7  # keeps the log loss finite


def regression_metrics(predictions: Floats, labels: NDArray[Any]) -> Metrics:
    """Return RMSE, R2 and mean absolute error in the unit of the labels.

    >>> regression_metrics(np.array([1.0, 3.0]), np.array([1.0, 2.0]))["mae"]
    0.5
    """
    errors = predictions - labels
    mse, variance = float(np.square(errors).mean()), float(np.var(labels))
    r2 = 1 - mse / variance if variance > 0 else 0.0
    return {"rmse": mse**0.5, "r2": r2, "mae": float(np.abs(errors).mean())}


def classification_metrics(probabilities: Floats, classes: NDArray[Any]) -> Metrics:
    """Return accuracy and log loss, and for two classes the area under the curve; ``classes`` counts columns."""
    of_truth = np.take_along_axis(probabilities, classes[:, None], axis=1)
    accuracy = float((probabilities.argmax(axis=1) == classes).mean())
    metrics = {"accuracy": accuracy, "log_loss": float(-np.log(of_truth.clip(MIN_PROBABILITY)).mean())}
    return metrics | {"auc": roc_auc(probabilities[:, 1], classes)} if probabilities.shape[1] == 2 else metrics


def roc_auc(probability: Floats, classes: NDArray[Any]) -> float:
    """Return the probability that a record of class 1 is ranked above one of class 0.

    >>> roc_auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 0, 1, 1]))
    0.875
    """
    level = np.unique(probability, return_inverse=True)[1]
    ones, zeros = (np.bincount(level[classes == kind], minlength=level.max() + 1) for kind in (1, 0))
    return pair_win_rate(ones, zeros)


def pair_win_rate(ones: NDArray[Any], zeros: NDArray[Any]) -> float:
    """Return the share of (one, zero) pairs in which the one ranks higher, given the counts at each level.

    Ties count half. Without a pair the rate is that of guessing, a half.
    """
    pairs = ones.sum() * zeros.sum()
    won = (ones * (np.cumsum(zeros) - 0.5 * zeros)).sum()
    return float(won / pairs) if pairs else 0.5


def selection_key(metrics: Metrics) -> tuple[float, ...]:
    """Return a key that is greater for better metrics: by RMSE, or by accuracy and then log loss."""
    if "rmse" in metrics:
        return (-metrics["rmse"],)
    return metrics["accuracy"], -metrics["log_loss"]


# Targets: labels on their way into a network and predictions on their way back, fitted on training rows only


class Target(Protocol):
    """What is learnt: the network's task, the scaling of labels and of predictions back."""

    @property
    def task(self) -> PredictionTask: ...

    def encode_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return labels as the loss takes them."""

    def decode_predictions(self, predictions: Floats) -> Floats:
        """Turn network predictions (n, T) into numbers in the user's unit (n,) or probabilities (n, classes)."""

    def measure(self, predictions: Floats, labels: NDArray[Any]) -> Metrics:
        """Return metrics of decoded predictions; the first one chooses the best epoch."""


class LabelScaler(Protocol):
    """A way to scale numbers, fitted on the labels of the training rows."""

    def fit(self, labels: Floats) -> Target: ...


@dataclass(frozen=True)
class MinMaxLabel:
    """The paper's scaling: the training range becomes 0..1 behind a sigmoid, so predictions cannot leave that range."""

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

    shift: float = field(repr=False)  # perhaps the smallest label, which must not appear in a log
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
        n = len(self.classes)
        return gates.BinaryClassification() if n == 2 else gates.MulticlassClassification(n)

    def encode_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        places = np.searchsorted(self.classes, labels)
        return places.astype(np.float32 if len(self.classes) == 2 else np.int64)

    def decode_predictions(self, predictions: Floats) -> Floats:
        return np.hstack([1 - predictions, predictions]) if len(self.classes) == 2 else predictions

    def measure(self, predictions: Floats, labels: NDArray[Any]) -> Metrics:
        return classification_metrics(predictions, np.searchsorted(self.classes, labels))


def target_state(target: Target) -> dict[str, Any]:
    """Return a target as JSON values, for :func:`target_from_state`.

    >>> target_state(ClassTarget((5, 6, 7)))
    {'classes': [5, 6, 7]}
    """
    if isinstance(target, NumericTarget):
        return {"shift": target.shift, "scale": target.scale, "bounded": isinstance(target.task, BoundedRegression)}
    if isinstance(target, ClassTarget):
        return {"classes": list(target.classes)}
    raise SettingError(f"labels scaled by {type(target).__name__} cannot be saved", code="target-not-savable")


def target_from_state(state: Mapping[str, Any]) -> Target:
    """Return the target that :func:`target_state` described."""
    try:
        if "classes" in state:
            classes = state["classes"]  # models of early versions store how many there are
            return ClassTarget(tuple(range(classes) if isinstance(classes, int) else classes))
        return NumericTarget(state["shift"], state["scale"], BoundedRegression() if state["bounded"] else Regression())
    except (LookupError, TypeError) as error:
        message = f"the scale of the labels cannot be read ({type(error).__name__}); save the model again"
        raise FileError(message, code="target-unreadable") from error
