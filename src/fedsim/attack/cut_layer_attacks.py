"""Attacks on what crosses the cut layer: label inference from gradients, model completion and feature inversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from torch import Tensor

from fedsim.attack.finding import (
    Adversary,
    AttackFinding,
    IntervalEstimate,
    auc_estimate,
    bootstrap_estimate,
    rarer_class_mask,
    roc_auc,
    timed,
    unsigned_auc,
)
from fedsim.errors import InputError
from fedsim.splitnn.secondary_model import Secondary
from fedsim.types import Floats, Integers

# What crossed the cut, kept for the attacks on it
#
# Letters: U distinct rows, C width of the cut layer.


@dataclass(frozen=True, eq=False, repr=False)
class CutStep:
    """One training step: rows asked for, activations given, gradients sent back."""

    step: int
    rows: Integers  # (U,)
    activations: Floats  # (U, C)
    gradients: Floats  # (U, C)


@dataclass(eq=False, repr=False)
class Eavesdropper:
    """A secondary that notes what crosses and changes nothing; ``party`` does the work.

    ``first_step`` leaves out the beginning of training, where gradients are long but say little.
    """

    party: Secondary
    first_step: int = 0
    recorded_steps: list[CutStep] = field(default_factory=list)
    _asked: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    def __getattr__(self, name: str) -> Any:
        """All that is not listened to is the party's own."""
        return getattr(self.party, name)

    def activations(self, rows: Tensor, step: int) -> Tensor:
        reply = self.party.activations(rows, step)
        self._asked = rows, reply
        return reply

    def descend(self, gradients: Tensor, step: int) -> None:
        if self._asked and step >= self.first_step:
            rows, reply = (_to_numpy(tensor) for tensor in self._asked)
            self.recorded_steps.append(CutStep(step, rows.astype(np.int64), reply, _to_numpy(gradients)))
        self._asked = None
        self.party.descend(gradients, step)


def mean_by_row(rows: Integers, values: Floats) -> tuple[Integers, Floats]:
    """Distinct rows and the mean of their values: fresh noise averages out over the steps in which a row was sent.

    >>> [part.tolist() for part in mean_by_row(np.array([4, 2, 4]), np.array([[1.0], [5.0], [3.0]]))]
    [[2, 4], [[5.0], [2.0]]]
    """
    if not len(rows):
        raise InputError("nothing crossed the cut; train at least one step")
    distinct, place, count = np.unique(rows, return_inverse=True, return_counts=True)
    total = np.zeros((len(distinct), values.shape[1]))
    np.add.at(total, place, values)
    return distinct, total / count[:, None]


def _to_numpy(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy().copy()


# Small models an adversary trains on the rows it knows; the best on held-out known rows makes the guess


FOLDS = 3
MIN_ROWS_FOR_MLP = 50
ScoreFunction = Callable[[Any, NDArray[Any]], float]


def candidate_regressors(n_known: int, rng: np.random.Generator) -> list[Any]:
    """Ridge regression, nearest neighbours and a small network, all on standardised columns."""
    found: list[Any] = [
        RidgeCV(np.logspace(-3, 3, 13)),
        KNeighborsRegressor(_n_neighbours(n_known), weights="distance"),
    ]
    if n_known >= MIN_ROWS_FOR_MLP:
        found.append(MLPRegressor(hidden_layer_sizes=(64,), random_state=_random_seed(rng), **_mlp_options(n_known)))
    return [make_pipeline(StandardScaler(), model) for model in found]


def candidate_classifiers(n_known: int, rng: np.random.Generator) -> list[Any]:
    """Logistic regression, nearest neighbours and a small network, all on standardised columns."""
    found: list[Any] = [LogisticRegression(max_iter=5_000), KNeighborsClassifier(_n_neighbours(n_known))]
    if n_known >= MIN_ROWS_FOR_MLP:
        found.append(MLPClassifier(hidden_layer_sizes=(32,), random_state=_random_seed(rng), **_mlp_options(n_known)))
    return [make_pipeline(StandardScaler(), model) for model in found]


def fit_best(models: Sequence[Any], rows: NDArray[Any], wanted: NDArray[Any], score: ScoreFunction) -> Any:
    """The model with the best cross-validated score, fitted on all rows given."""
    whole = wanted.ndim == 1 and wanted.dtype.kind in "biu"
    folds = StratifiedKFold(FOLDS) if whole else KFold(FOLDS)
    parts = list(folds.split(rows, wanted))
    means = [np.mean([_fold_score(model, rows, wanted, part, score) for part in parts]) for model in models]
    return clone(models[int(np.argmax(means))]).fit(rows, wanted)


def _fold_score(model: Any, rows: NDArray[Any], wanted: NDArray[Any], part: Any, score: ScoreFunction) -> float:
    fit, held_out = part
    fitted = clone(model).fit(rows[fit], wanted[fit])
    predicted = fitted.predict_proba(rows[held_out])[:, 1] if hasattr(fitted, "predict_proba") else None
    return score(fitted.predict(rows[held_out]) if predicted is None else predicted, wanted[held_out])


def _n_neighbours(n_known: int) -> int:
    """Few enough for every fold to have so many rows."""
    return max(1, min(5, n_known // 3))


def _mlp_options(n_known: int) -> dict[str, Any]:
    """Stops when held-out rows no longer gain, which is long before the most rounds."""
    return {"early_stopping": True, "max_iter": 2_000, "batch_size": min(32, n_known // 3), "learning_rate_init": 3e-3}


def _random_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


# A secondary reads labels off the gradients sent back to it (Li et al. 2021, "Label leakage and protection")
#
# The gradient of a row is long where the model was wrong, and points one way for one class and the other way for the
# other. A row that several records share gets the sum of their gradients; ``named_labels`` says what is there to infer.
#
# Letters: U rows, C width of the cut layer.


@timed
def norm_attack(gradients: Floats, labels: NDArray[Any], *, rng: np.random.Generator) -> AttackFinding:
    """Tell two classes apart by the length of their gradients, (U, C) and (U,)."""
    positive = rarer_class_mask(labels)
    score = np.linalg.norm(_check_gradients(gradients, labels), axis=1)
    found = unsigned_auc(auc_estimate(score, positive, rng))
    return _label_finding("gradient norm", found, len(positive), "gradients at the cut, and which class is rarer")


@timed
def direction_attack(
    gradients: Floats, labels: NDArray[Any], known: Integers, *, rng: np.random.Generator
) -> AttackFinding:
    """Tell two classes apart by the angle to the gradients of rows whose label is ``known``; one of each is enough."""
    positive = rarer_class_mask(labels)
    unit = _unit_rows(_check_gradients(gradients, labels))
    reference = _reference_direction(unit[known], positive[known])
    rest = np.setdiff1d(np.arange(len(unit)), known)
    found = auc_estimate(unit[rest] @ reference, positive[rest], rng)
    knew = f"gradients at the cut, and the labels of {len(np.unique(known))} rows"
    return _label_finding("gradient direction", found, len(rest), knew)


def mean_label_by_row(partner: Integers, labels: NDArray[Any], n_rows: int) -> Floats:
    """Mean label of the records that name each row, (n, K) and (n,) -> (n_rows,); NaN where none does.

    This is what a secondary can learn of labels when rows are shared: how the neighbourhood of a row fares.

    >>> mean_label_by_row(np.array([[0, 1], [0, 2]]), np.array([1.0, 0.0]), 4).tolist()
    [0.5, 1.0, 0.0, nan]
    """
    linked = partner >= 0
    row = partner[linked]
    label = np.broadcast_to(np.asarray(labels, dtype=np.float64)[:, None], partner.shape)[linked]
    count = np.bincount(row, minlength=n_rows)
    total = np.bincount(row, weights=label, minlength=n_rows)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _reference_direction(unit: Floats, positive: NDArray[np.bool_]) -> Floats:
    """The direction from known rows of the commoner class to those of the rarer; one class alone will do."""
    if not len(unit):
        raise InputError("no label is known; the direction attack needs the label of at least one row")
    towards = unit[positive].mean(axis=0) if positive.any() else np.zeros(unit.shape[1])
    away = unit[~positive].mean(axis=0) if not positive.all() else np.zeros(unit.shape[1])
    return np.asarray(towards - away)


def _unit_rows(rows: Floats) -> Floats:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1.0))


def _check_gradients(gradients: Floats, labels: NDArray[Any]) -> Floats:
    rows = np.asarray(gradients, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(labels):
        raise InputError(f"gradients {rows.shape} and {len(labels)} labels do not fit; give one row for each label")
    return rows


def _label_finding(attack: str, found: IntervalEstimate, targets: int, knew: str) -> AttackFinding:
    return AttackFinding(attack, Adversary.SECONDARY, "AUC of the labels", found, 0.5, targets, knew)


# A secondary completes the model: it trains a head of its own on its part, with a few known labels (Fu et al. 2022)
#
# What counts is the difference to the same attack on its raw features: only that was given away by training together.


@timed
def completion_attack(
    activations: Floats, features: Floats, labels: NDArray[Any], known: Integers, *, rng: np.random.Generator
) -> AttackFinding:
    """Learn labels from the secondary's own activations on ``known`` rows, guess them for all others.

    ``figures`` holds the AUC of the same attack on its raw ``features``, which it could run without any training.
    """
    positive, known = rarer_class_mask(labels), rng.permutation(np.unique(known))
    if min(positive[known].sum(), (~positive[known]).sum()) < FOLDS:
        raise InputError(f"model completion needs at least {FOLDS} known rows of either class; know more rows")
    rest = np.setdiff1d(np.arange(len(positive)), known)
    guesses = [
        _predict_labels(np.asarray(rows, dtype=np.float64), positive, known, rest, rng)
        for rows in (activations, features)
    ]
    return AttackFinding(
        "model completion",
        Adversary.SECONDARY,
        "AUC of the labels",
        auc_estimate(guesses[0], positive[rest], rng),
        0.5,
        len(rest),
        f"its own network and features, and the labels of {len(known)} rows",
        {"AUC from raw features": roc_auc(guesses[1], positive[rest]), "known rows": float(len(known))},
    )


def _predict_labels(
    rows: Floats, positive: NDArray[np.bool_], known: Integers, rest: Integers, rng: np.random.Generator
) -> Floats:
    model = fit_best(candidate_classifiers(len(known), rng), rows[known], positive[known], roc_auc)
    return np.asarray(model.predict_proba(rows[rest])[:, 1])


# The primary turns activations back into a secondary's features, with a few rows it knows to learn from
#
# Letters: U rows, C width of the cut layer, F features.


MIN_KNOWN = 6


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
) -> AttackFinding:
    """Learn features from activations on the ``known`` rows, guess them for all others, (U, C) and (U, F).

    Activations averaged over several answers are a stronger attack on fresh noise: average before calling.
    """
    inputs, wanted = np.asarray(activations, dtype=np.float64), np.asarray(features, dtype=np.float64)
    known = rng.permutation(np.unique(known))
    if len(inputs) != len(wanted) or not MIN_KNOWN <= len(known) < len(inputs):
        raise InputError(
            f"{len(inputs)} rows of activations, {len(wanted)} of features and {len(known)} known ones; give as many "
            f"of one as of the other, and know at least {MIN_KNOWN} but not all"
        )
    middle, spread = wanted[known].mean(axis=0), wanted[known].std(axis=0)
    scaled = (wanted - middle) / np.where(spread > 0, spread, 1.0)  # every feature counts alike in the fit
    rest = np.setdiff1d(np.arange(len(inputs)), known)
    model = fit_best(candidate_regressors(len(known), rng), inputs[known], scaled[known], _mean_r2_reshaped)
    guess = model.predict(inputs[rest]).reshape(len(rest), -1)
    truth = scaled[rest]
    each = [mean_r2(guess[:, [column]], truth[:, [column]]) for column in range(truth.shape[1])]
    return AttackFinding(
        "feature inversion",
        Adversary.PRIMARY,
        "mean R2 of the features",
        bootstrap_estimate(lambda rows: mean_r2(guess[rows], truth[rows]), len(rest), rng),
        0.0,
        len(rest),
        f"activations, and the features of {len(known)} rows",
        {"R2 of the feature guessed best": max(each), "known rows": float(len(known))},
    )


def _mean_r2_reshaped(guess: Floats, truth: Floats) -> float:
    """Some models return a flat list where a single feature is wanted."""
    return mean_r2(guess.reshape(truth.shape), truth)
