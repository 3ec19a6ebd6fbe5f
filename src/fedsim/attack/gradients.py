"""A secondary reads labels off the gradients sent back to it (Li et al. 2021, "Label leakage and protection").

The gradient of a row is long where the model was wrong, and points one way for one class and the other way for the
other. A row that several records share gets the sum of their gradients; ``named_labels`` says what is there to infer.

Letters: U rows, C width of the cut layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.attack.finding import Adversary, Estimate, Finding, timed
from fedsim.attack.ranking import auc_of, either_way, two_classes
from fedsim.errors import InputError
from fedsim.types import Floats, Integers


@timed
def norm_attack(gradients: Floats, labels: NDArray[Any], *, rng: np.random.Generator) -> Finding:
    """Tell two classes apart by the length of their gradients, (U, C) and (U,)."""
    positive = two_classes(labels)
    score = np.linalg.norm(_checked(gradients, labels), axis=1)
    found = either_way(auc_of(score, positive, rng))
    return _finding("gradient norm", found, len(positive), "gradients at the cut, and which class is rarer")


@timed
def direction_attack(gradients: Floats, labels: NDArray[Any], known: Integers, *, rng: np.random.Generator) -> Finding:
    """Tell two classes apart by the angle to the gradients of rows whose label is ``known``; one of each is enough."""
    positive = two_classes(labels)
    unit = _units(_checked(gradients, labels))
    reference = _reference(unit[known], positive[known])
    rest = np.setdiff1d(np.arange(len(unit)), known)
    found = auc_of(unit[rest] @ reference, positive[rest], rng)
    knew = f"gradients at the cut, and the labels of {len(np.unique(known))} rows"
    return _finding("gradient direction", found, len(rest), knew)


def named_labels(partner: Integers, labels: NDArray[Any], n_rows: int) -> Floats:
    """Mean label of the records that name each row, (n, K) and (n,) -> (n_rows,); NaN where none does.

    This is what a secondary can learn of labels when rows are shared: how the neighbourhood of a row fares.

    >>> named_labels(np.array([[0, 1], [0, 2]]), np.array([1.0, 0.0]), 4).tolist()
    [0.5, 1.0, 0.0, nan]
    """
    linked = partner >= 0
    row = partner[linked]
    label = np.broadcast_to(np.asarray(labels, dtype=np.float64)[:, None], partner.shape)[linked]
    count = np.bincount(row, minlength=n_rows)
    total = np.bincount(row, weights=label, minlength=n_rows)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _reference(unit: Floats, positive: NDArray[np.bool_]) -> Floats:
    """The direction from known rows of the commoner class to those of the rarer; one class alone will do."""
    if not len(unit):
        raise InputError("no label is known; the direction attack needs the label of at least one row")
    towards = unit[positive].mean(axis=0) if positive.any() else np.zeros(unit.shape[1])
    away = unit[~positive].mean(axis=0) if not positive.all() else np.zeros(unit.shape[1])
    return np.asarray(towards - away)


def _units(rows: Floats) -> Floats:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1.0))


def _checked(gradients: Floats, labels: NDArray[Any]) -> Floats:
    rows = np.asarray(gradients, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(labels):
        raise InputError(f"gradients {rows.shape} and {len(labels)} labels do not fit; give one row for each label")
    return rows


def _finding(attack: str, found: Estimate, targets: int, knew: str) -> Finding:
    return Finding(attack, Adversary.SECONDARY, "AUC of the labels", found, 0.5, targets, knew)
