"""A secondary completes the model: it trains a head of its own on its part, with a few known labels (Fu et al. 2022).

What counts is the difference to the same attack on its raw features: only that was given away by training together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.attack.finding import Adversary, Finding, timed
from fedsim.attack.learners import FOLDS, best_fitted, classifiers
from fedsim.attack.ranking import auc, auc_of, two_classes
from fedsim.errors import InputError
from fedsim.types import Floats, Integers


@timed
def completion_attack(
    activations: Floats, features: Floats, labels: NDArray[Any], known: Integers, *, rng: np.random.Generator
) -> Finding:
    """Learn labels from the secondary's own activations on ``known`` rows, guess them for all others.

    ``figures`` holds the AUC of the same attack on its raw ``features``, which it could run without any training.
    """
    positive, known = two_classes(labels), rng.permutation(np.unique(known))
    if min(positive[known].sum(), (~positive[known]).sum()) < FOLDS:
        raise InputError(f"model completion needs at least {FOLDS} known rows of either class; know more rows")
    rest = np.setdiff1d(np.arange(len(positive)), known)
    guesses = [
        _guessed(np.asarray(rows, dtype=np.float64), positive, known, rest, rng) for rows in (activations, features)
    ]
    return Finding(
        "model completion",
        Adversary.SECONDARY,
        "AUC of the labels",
        auc_of(guesses[0], positive[rest], rng),
        0.5,
        len(rest),
        f"its own network and features, and the labels of {len(known)} rows",
        {"AUC from raw features": auc(guesses[1], positive[rest]), "known rows": float(len(known))},
    )


def _guessed(
    rows: Floats, positive: NDArray[np.bool_], known: Integers, rest: Integers, rng: np.random.Generator
) -> Floats:
    model = best_fitted(classifiers(len(known), rng), rows[known], positive[known], auc)
    return np.asarray(model.predict_proba(rows[rest])[:, 1])
