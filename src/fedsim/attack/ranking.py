"""How well scores tell two classes apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fedsim.attack.finding import Estimate, bootstrap
from fedsim.errors import InputError
from fedsim.types import Floats


def auc(score: Floats, positive: NDArray[np.bool_]) -> float:
    """Probability that a positive row scores above a negative one, ties counting half; 0.5 if a class is absent.

    >>> auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if not n_positive or not n_negative:
        return 0.5
    below = rankdata(score)[positive].sum() - n_positive * (n_positive + 1) / 2.0
    return float(below / (n_positive * n_negative))


def auc_of(score: Floats, positive: NDArray[np.bool_], rng: np.random.Generator) -> Estimate:
    """The AUC with its bootstrapped interval."""
    return bootstrap(lambda rows: auc(score[rows], positive[rows]), len(score), rng)


def either_way(estimate: Estimate) -> Estimate:
    """The AUC of an adversary who also knows which way round the scores go."""
    if estimate.value >= 0.5:
        return estimate
    return Estimate(1.0 - estimate.value, 1.0 - estimate.high, 1.0 - estimate.low)


def two_classes(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """True for the rarer of two classes.

    >>> two_classes(np.array([3, 3, 7])).tolist()
    [False, False, True]
    """
    kinds, kind, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(kinds) != 2:
        raise InputError(
            f"the labels have {len(kinds)} different values; label inference needs two: "
            "compare with the median, or take one class against the rest"
        )
    return np.asarray(kind == int(counts[1] <= counts[0]))
