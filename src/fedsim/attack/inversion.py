"""The primary turns activations back into a secondary's features, with a few rows it knows to learn from.

Letters: U rows, C width of the cut layer, F features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.attack.finding import Adversary, Finding, bootstrap, timed
from fedsim.attack.learners import best_fitted, regressors
from fedsim.errors import InputError
from fedsim.types import Floats, Integers

FEWEST_KNOWN = 6


def mean_r2(guess: Floats, truth: Floats) -> float:
    """R2 averaged over the features that vary, each not below 0: who does worse than the mean names the mean.

    >>> mean_r2(np.array([[1.0, 9.0], [3.0, 0.0]]), np.array([[1.0, 5.0], [3.0, 6.0]]))
    0.5
    """
    spread = ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
    missed = ((truth - guess) ** 2).sum(axis=0)
    varies = spread > 0
    return float(np.maximum(0.0, 1.0 - missed[varies] / spread[varies]).mean()) if varies.any() else 0.0


@timed
def inversion_attack(
    activations: Floats, features: NDArray[Any], known: Integers, *, rng: np.random.Generator
) -> Finding:
    """Learn features from activations on the ``known`` rows, guess them for all others, (U, C) and (U, F).

    Activations averaged over several answers are a stronger attack on fresh noise: average before calling.
    """
    inputs, wanted = np.asarray(activations, dtype=np.float64), np.asarray(features, dtype=np.float64)
    known = rng.permutation(np.unique(known))
    if len(inputs) != len(wanted) or not FEWEST_KNOWN <= len(known) < len(inputs):
        raise InputError(
            f"{len(inputs)} rows of activations, {len(wanted)} of features and {len(known)} known ones; give as many "
            f"of one as of the other, and know at least {FEWEST_KNOWN} but not all"
        )
    middle, spread = wanted[known].mean(axis=0), wanted[known].std(axis=0)
    scaled = (wanted - middle) / np.where(spread > 0, spread, 1.0)  # every feature counts alike in the fit
    rest = np.setdiff1d(np.arange(len(inputs)), known)
    model = best_fitted(regressors(len(known), rng), inputs[known], scaled[known], _as_tables)
    guess = model.predict(inputs[rest]).reshape(len(rest), -1)
    truth = scaled[rest]
    each = [mean_r2(guess[:, [column]], truth[:, [column]]) for column in range(truth.shape[1])]
    return Finding(
        "feature inversion",
        Adversary.PRIMARY,
        "mean R2 of the features",
        bootstrap(lambda rows: mean_r2(guess[rows], truth[rows]), len(rest), rng),
        0.0,
        len(rest),
        f"activations, and the features of {len(known)} rows",
        {"R2 of the feature guessed best": max(each), "known rows": float(len(known))},
    )


def _as_tables(guess: Floats, truth: Floats) -> float:
    """Some models return a flat list where a single feature is wanted."""
    return mean_r2(guess.reshape(truth.shape), truth)
