"""How good predictions are.

>>> of_numbers(np.array([1.0, 3.0]), np.array([1.0, 2.0]))["mae"]
0.5
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.types import Floats

Metrics = dict[str, float]
LEAST_PROBABILITY = 1e-7


def of_numbers(predictions: Floats, labels: NDArray[Any]) -> Metrics:
    """RMSE, R2 and mean absolute error in the unit of the labels."""
    errors = predictions - labels
    squares, spread = float(np.square(errors).mean()), float(np.var(labels))
    r2 = 1 - squares / spread if spread > 0 else 0.0
    return {"rmse": squares**0.5, "r2": r2, "mae": float(np.abs(errors).mean())}


def of_classes(probabilities: Floats, classes: NDArray[Any]) -> Metrics:
    """Accuracy and log loss; ``classes`` counts columns of ``probabilities``."""
    of_truth = np.take_along_axis(probabilities, classes[:, None], axis=1)
    accuracy = float((probabilities.argmax(axis=1) == classes).mean())
    return {"accuracy": accuracy, "log_loss": float(-np.log(of_truth.clip(LEAST_PROBABILITY)).mean())}


def goodness(metrics: Metrics) -> tuple[float, ...]:
    """Compares: the greater, the better. RMSE decides, or accuracy and, where equal, log loss."""
    if "rmse" in metrics:
        return (-metrics["rmse"],)
    return metrics["accuracy"], -metrics["log_loss"]
