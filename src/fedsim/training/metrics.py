"""Metrics of predictions.

>>> regression_metrics(np.array([1.0, 3.0]), np.array([1.0, 2.0]))["mae"]
0.5
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
