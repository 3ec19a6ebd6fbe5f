"""Gradient boosted trees on the primary's own table, the baseline of the ladder; the only module here that imports scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from fedsim.contribution.arrays import SplitArrays
from fedsim.contribution.rungs import Rung, RungOutcome
from fedsim.splitnn.layers import Features
from fedsim.training import PrimaryData, TaskType
from fedsim.training.data import as_features
from fedsim.training.labels import classification_metrics, regression_metrics

MAX_CATEGORIES = 250  # scikit-learn takes no more than 255; columns with more are taken as numbers
ROUNDS, RATE, LEAVES, PATIENCE = 3000, 0.1, 63, 40


def train_trees(rung: Rung, primary: PrimaryData, arrays: SplitArrays) -> RungOutcome:
    """Trees fitted to the training rows; the validation rows say how many of them are used."""
    features = as_features(primary.features)
    columns = np.hstack([features.numbers, features.codes]).astype(np.float64)
    split, sorts = arrays.split, primary.task_type is TaskType.CLASSES
    labels = np.unique(primary.labels, return_inverse=True)[1] if sorts else primary.labels
    kind: Any = HistGradientBoostingClassifier if sorts else HistGradientBoostingRegressor
    model = kind(
        max_iter=rung.epochs or ROUNDS,
        learning_rate=rung.rate or RATE,
        max_leaf_nodes=LEAVES,
        categorical_features=_categorical_mask(features),
        early_stopping=True,
        n_iter_no_change=rung.patience or PATIENCE,
        random_state=arrays.about["seed"],
    )
    trained, waiting = split.train, split.validation
    known = waiting[np.isin(labels[waiting], labels[trained])] if sorts else waiting
    judges = known if len(known) else trained
    model.fit(columns[trained], labels[trained], X_val=columns[judges], y_val=labels[judges])
    best = max(1, int(np.argmax(model.validation_score_)))  # the first score is that of no tree at all
    staged = model.staged_predict_proba if sorts else model.staged_predict
    found = {
        name: _stage_predictions(staged(columns[rows]), best)
        for name, rows in (("validation", waiting), ("test", split.test))
    }
    if sorts:
        found = {
            name: _all_class_probabilities(guess, model.classes_, labels.max() + 1) for name, guess in found.items()
        }
    measure = classification_metrics if sorts else regression_metrics
    return RungOutcome(
        found["test"],
        measure(found["test"], labels[split.test]),
        measure(found["validation"], labels[waiting]),
        {"best_epoch": best},
    )


def _all_class_probabilities(guess: NDArray[Any], known: NDArray[Any], classes: int) -> NDArray[Any]:
    """Probabilities of all classes: a class that no training record has gets none."""
    every = np.zeros((len(guess), classes))
    every[:, known] = guess[:, : len(known)]  # of a single class scikit-learn gives two columns
    return every


def _stage_predictions(stages: Any, wanted: int) -> NDArray[Any]:
    for place, guess in enumerate(stages, start=1):
        if place == wanted:
            return np.array(guess)
    raise IndexError(wanted)  # pragma: no cover - the best stage is one of them


def _categorical_mask(features: Features) -> NDArray[np.bool_]:
    """Which columns hold codes that are few enough to be categories."""
    few = [cardinality <= MAX_CATEGORIES for cardinality in features.cardinalities]
    return np.array([False] * features.numbers.shape[1] + few, dtype=bool)
