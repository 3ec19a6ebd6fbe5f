"""Small models an adversary trains on the rows it knows; the best on held-out known rows makes the guess."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

FOLDS = 3
FEWEST_FOR_A_NETWORK = 50
Score = Callable[[Any, NDArray[Any]], float]


def regressors(n_known: int, rng: np.random.Generator) -> list[Any]:
    """Ridge regression, nearest neighbours and a small network, all on standardised columns."""
    found: list[Any] = [RidgeCV(np.logspace(-3, 3, 13)), KNeighborsRegressor(_neighbours(n_known), weights="distance")]
    if n_known >= FEWEST_FOR_A_NETWORK:
        found.append(MLPRegressor(hidden_layer_sizes=(64,), random_state=_seed(rng), **_training(n_known)))
    return [make_pipeline(StandardScaler(), model) for model in found]


def classifiers(n_known: int, rng: np.random.Generator) -> list[Any]:
    """Logistic regression, nearest neighbours and a small network, all on standardised columns."""
    found: list[Any] = [LogisticRegression(max_iter=5_000), KNeighborsClassifier(_neighbours(n_known))]
    if n_known >= FEWEST_FOR_A_NETWORK:
        found.append(MLPClassifier(hidden_layer_sizes=(32,), random_state=_seed(rng), **_training(n_known)))
    return [make_pipeline(StandardScaler(), model) for model in found]


def best_fitted(models: Sequence[Any], rows: NDArray[Any], wanted: NDArray[Any], score: Score) -> Any:
    """The model with the best cross-validated score, fitted on all rows given."""
    whole = wanted.ndim == 1 and wanted.dtype.kind in "biu"
    folds = StratifiedKFold(FOLDS) if whole else KFold(FOLDS)
    parts = list(folds.split(rows, wanted))
    means = [np.mean([_scored(model, rows, wanted, part, score) for part in parts]) for model in models]
    return clone(models[int(np.argmax(means))]).fit(rows, wanted)


def _scored(model: Any, rows: NDArray[Any], wanted: NDArray[Any], part: Any, score: Score) -> float:
    fit, held_out = part
    fitted = clone(model).fit(rows[fit], wanted[fit])
    predicted = fitted.predict_proba(rows[held_out])[:, 1] if hasattr(fitted, "predict_proba") else None
    return score(fitted.predict(rows[held_out]) if predicted is None else predicted, wanted[held_out])


def _neighbours(n_known: int) -> int:
    """Few enough for every fold to have so many rows."""
    return max(1, min(5, n_known // 3))


def _training(n_known: int) -> dict[str, Any]:
    """Stops when held-out rows no longer gain, which is long before the most rounds."""
    return {"early_stopping": True, "max_iter": 2_000, "batch_size": min(32, n_known // 3), "learning_rate_init": 3e-3}


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))
