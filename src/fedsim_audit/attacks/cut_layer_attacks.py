"""Attacks on what crosses the cut layer: label inference from gradients, model completion and feature inversion.

Letters: U distinct rows of the secondary, C width of the cut layer, F features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from sklearn import base, linear_model, model_selection, neighbors, neural_network, pipeline, preprocessing
from torch import Tensor

from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.errors import InputError
from fedsim.splitnn.secondary_model import Secondary
from fedsim.training.data import roc_auc
from fedsim.types import AnyArray, Floats, Integers
from fedsim_audit.attacks import attack_finding
from fedsim_audit.attacks.attack_finding import AttackFinding
from fedsim_audit.attacks.similarity_attacks import LinksByPartner

FOLDS = 3
MIN_ROWS_FOR_MLP = 50
MIN_KNOWN = 6
ScoreFunction = Callable[[Any, AnyArray], float]


@dataclass(frozen=True, eq=False, repr=False)
class CutStep:
    """What crossed the cut layer in one training step."""

    step: int
    rows: Integers  # (U,)
    activations: Floats  # (U, C)
    gradients: Floats  # (U, C)


@dataclass(eq=False, repr=False)
class Eavesdropper:
    """A secondary that records what crosses the cut layer and changes nothing.

    Parameters
    ----------
    party
        The secondary that the calls are forwarded to.
    first_step
        The first step to record; gradients at the beginning of training are long but reveal little.
    """

    party: Secondary
    first_step: int = 0
    recorded_steps: list[CutStep] = field(default_factory=list)
    _pending: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.party, name)

    def activations(self, rows: Tensor, step: int) -> Tensor:
        reply = self.party.activations(rows, step)
        self._pending = rows, reply
        return reply

    def descend(self, gradients: Tensor, step: int) -> None:
        if self._pending and step >= self.first_step:
            rows, reply, sent = (part.detach().cpu().numpy().copy() for part in (*self._pending, gradients))
            self.recorded_steps.append(CutStep(step, rows.astype(np.int64), reply, sent))
        self._pending = None
        self.party.descend(gradients, step)


def mean_by_row(rows: Integers, values: Floats) -> tuple[Integers, Floats]:
    """Return the distinct rows and their mean values; fresh noise averages out over the steps of a row.

    >>> [part.tolist() for part in mean_by_row(np.array([4, 2, 4]), np.array([[1.0], [5.0], [3.0]]))]
    [[2, 4], [[5.0], [2.0]]]
    """
    if not len(rows):
        raise InputError("nothing crossed the cut layer; train for at least one step", code="nothing-recorded")
    distinct, place, count = np.unique(rows, return_inverse=True, return_counts=True)
    total = np.zeros((len(distinct), values.shape[1]))
    np.add.at(total, place, values)
    return distinct, total / count[:, None]


def mean_label_by_row(partner: Integers, labels: AnyArray, n_rows: int) -> Floats:
    """Return the mean label of the records that list each row, (n, K) and (n,) -> (n_rows,); NaN if none does.

    This is what a secondary can learn about labels when records share its rows.

    >>> mean_label_by_row(np.array([[0, 1], [0, 2]]), np.array([1.0, 0.0]), 4).tolist()
    [0.5, 1.0, 0.0, nan]
    """
    linked = partner >= 0
    row = partner[linked]
    label = np.broadcast_to(np.asarray(labels, dtype=np.float64)[:, None], partner.shape)[linked]
    count = np.bincount(row, minlength=n_rows)
    total = np.bincount(row, weights=label, minlength=n_rows)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


# Label inference from gradients (Li et al. 2021, "Label leakage and protection"). The gradient of a row is long where
# the model was wrong, and its direction depends on the class. A row that several records share gets the sum of their
# gradients; mean_label_by_row computes what can be inferred in that case.


def norm_attack(gradients: Floats, labels: AnyArray, *, rng: Generator) -> AttackFinding:
    """Distinguish two classes by the norm of their gradients.

    Parameters
    ----------
    gradients
        The gradient of every row at the cut layer, (U, C).
    labels
        The true label of every row, of two classes, (U,).
    rng
        Random generator for the interval.

    Returns
    -------
    AttackFinding
        Its score is the AUC of the labels.
    """
    positive = attack_finding.rarer_class_mask(labels)
    score = attack_finding.auc_estimate(np.linalg.norm(_check_gradients(gradients, labels), axis=1), positive, rng)
    if score.value < 0.5:  # the adversary also knows which of the classes has the longer gradients
        score = attack_finding.IntervalEstimate(1.0 - score.value, 1.0 - score.high, 1.0 - score.low)
    return _label_finding("gradient norm", score, len(positive), "gradients at the cut layer, and which class is rarer")


def direction_attack(gradients: Floats, labels: AnyArray, known: Integers, *, rng: Generator) -> AttackFinding:
    """Distinguish two classes by the angle to the gradients of the ``known`` rows.

    Parameters
    ----------
    gradients
        The gradient of every row at the cut layer, (U, C).
    labels
        The true label of every row, of two classes, (U,).
    known
        Rows whose labels the secondary knows; one is enough.
    rng
        Random generator for the interval.

    Returns
    -------
    AttackFinding
        Its score is the AUC of the labels of all other rows.
    """
    positive = attack_finding.rarer_class_mask(labels)
    if not len(known):
        raise InputError("no label is known, but the direction attack needs at least one", code="too-few-known")
    rows = _check_gradients(gradients, labels)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(length > 0, length, 1.0)
    direction = np.zeros(unit.shape[1])  # from the known rows of the more common class to those of the rarer one
    for sign, members in ((1.0, unit[known][positive[known]]), (-1.0, unit[known][~positive[known]])):
        if len(members):
            direction += sign * members.mean(axis=0)
    rest = np.setdiff1d(np.arange(len(unit)), known)
    score = attack_finding.auc_estimate(unit[rest] @ direction, positive[rest], rng)
    knew = f"gradients at the cut layer, and the labels of {len(np.unique(known))} rows"
    return _label_finding("gradient direction", score, len(rest), knew)


def _check_gradients(gradients: Floats, labels: AnyArray) -> Floats:
    rows = np.asarray(gradients, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(labels):
        message = f"gradients have shape {rows.shape} for {len(labels)} labels; pass one row per label"
        raise InputError(message, code="shape-mismatch")
    return rows


def _label_finding(attack: str, score: attack_finding.IntervalEstimate, targets: int, knew: str) -> AttackFinding:
    adversary, measure = Adversary.SECONDARY, "AUC of the labels"
    return AttackFinding(attack, AttackKind.GRADIENTS, adversary, measure, score, 0.5, targets, knew)


# Model completion (Fu et al. 2022): the secondary trains its own head on its part of the model. What joint training
# leaks is only the difference from the same attack on its raw features.


def completion_attack(
    activations: Floats, features: Floats, labels: AnyArray, known: Integers, *, rng: Generator
) -> AttackFinding:
    """Learn labels from the secondary's own activations on the ``known`` rows, and guess the labels of all other rows.

    Parameters
    ----------
    activations
        The output of the secondary's network for every row, (U, C).
    features
        The raw features of the same rows, (U, F).
    labels
        The true label of every row, of two classes, (U,).
    known
        Rows whose labels the secondary knows; at least three of each class.
    rng
        Random generator for the models and the interval.

    Returns
    -------
    AttackFinding
        Its score is the AUC of the labels of all other rows; ``figures`` holds the AUC of the same attack on the
        raw features, which needs no joint training.
    """
    positive, known = attack_finding.rarer_class_mask(labels), rng.permutation(np.unique(known))
    if min(positive[known].sum(), (~positive[known]).sum()) < FOLDS:
        message = f"model completion needs at least {FOLDS} known rows of each class; let it know more rows"
        raise InputError(message, code="too-few-known", limit=FOLDS)
    rest = np.setdiff1d(np.arange(len(positive)), known)
    guesses = []
    for inputs in (np.asarray(rows, dtype=np.float64) for rows in (activations, features)):
        models = candidate_models(len(known), rng, classes=True)
        model = fit_best(models, inputs[known], positive[known], roc_auc)
        guesses.append(np.asarray(model.predict_proba(inputs[rest])[:, 1]))
    score = attack_finding.auc_estimate(guesses[0], positive[rest], rng)
    knew = f"its own network and features, and the labels of {len(known)} rows"
    found = _label_finding("model completion", score, len(rest), knew)
    figures = {
        "AUC from raw features": roc_auc(guesses[1], positive[rest]),
        "known rows": float(len(known)),
    }
    return replace(found, kind=AttackKind.COMPLETION, figures=figures)


def inversion_attack(activations: Floats, features: AnyArray, known: Integers, *, rng: Generator) -> AttackFinding:
    """Learn features from activations on the ``known`` rows, and guess the features of all other rows.

    Averaging activations over several answers first makes the attack stronger against fresh noise.

    Parameters
    ----------
    activations
        What the primary received for every row, (U, C).
    features
        The true features of the same rows, (U, F).
    known
        Rows whose features the primary knows; at least six, but not all.
    rng
        Random generator for the models and the interval.

    Returns
    -------
    AttackFinding
        Its score is the mean R2 of the features of all other rows.
    """
    inputs, wanted = np.asarray(activations, dtype=np.float64), np.asarray(features, dtype=np.float64)
    known = rng.permutation(np.unique(known))
    if len(inputs) != len(wanted):
        message = f"{len(inputs)} rows of activations, but {len(wanted)} of features; pass the same rows of both"
        raise InputError(message, code="shape-mismatch", limit=MIN_KNOWN)
    if not MIN_KNOWN <= len(known) < len(inputs):
        message = f"{len(known)} of {len(inputs)} rows are known; pass at least {MIN_KNOWN}, but not all"
        raise InputError(message, code="too-few-known", limit=MIN_KNOWN)
    middle, spread = wanted[known].mean(axis=0), wanted[known].std(axis=0)
    scaled = (wanted - middle) / np.where(spread > 0, spread, 1.0)  # every feature has the same weight in the fit
    rest = np.setdiff1d(np.arange(len(inputs)), known)

    def score(guess: Floats, truth: Floats) -> float:
        return mean_r2(guess.reshape(len(truth), -1), truth.reshape(len(truth), -1))  # a single feature is flat

    model = fit_best(candidate_models(len(known), rng, classes=False), inputs[known], scaled[known], score)
    guess, truth = model.predict(inputs[rest]).reshape(len(rest), -1), scaled[rest]
    each = [mean_r2(guess[:, [column]], truth[:, [column]]) for column in range(truth.shape[1])]
    figures = {"R2 of the feature guessed best": max(each), "known rows": float(len(known))}
    found = attack_finding.bootstrap_estimate(lambda rows: mean_r2(guess[rows], truth[rows]), len(rest), rng)
    kind, who, measure = AttackKind.INVERSION, Adversary.PRIMARY, "mean R2 of the features"
    knew = f"activations, and the features of {len(known)} rows"
    return AttackFinding("feature inversion", kind, who, measure, found, 0.0, len(rest), knew, figures)


# Similarities, links and activations together (the paper's appendix on advanced attacks leaves this open): the primary
# also knows its own records that list a row, and rows near similar records are similar.


def joint_inversion_attack(
    activations: Floats, behind: Floats, features: AnyArray, known: Integers, *, rng: Generator
) -> AttackFinding:
    """Learn features from activations, similarities and links on the ``known`` rows, and guess those of all others.

    Parameters
    ----------
    activations
        What the primary received for every row, (U, C).
    behind
        What it knows of its own records that list each row, as of :func:`listing_records`, (U, D).
    features
        The true features of the same rows, (U, F).
    known
        Rows whose features the primary knows; at least six, but not all.
    rng
        Random generator for the models and the interval.

    Returns
    -------
    AttackFinding
        Its score is the mean R2 of the features of all other rows.
    """
    found = inversion_attack(np.hstack([activations, behind]), features, known, rng=rng)
    knew = f"similarities, links, its own records, {found.knew}"
    return replace(found, attack="joint inversion", knew=knew)


def listing_records(named: LinksByPartner, own: Floats) -> Floats:
    """Return what the primary knows of each listed row, (J, D + 2).

    These are the mean of its own columns over the records that list the row, weighted by similarity, the mean
    similarity, and the logarithm of the number of these records.

    >>> from fedsim_audit.attacks.similarity_attacks import PrimaryView
    >>> named = LinksByPartner.of(PrimaryView(np.array([[0], [0], [1]]), np.zeros((3, 1))))
    >>> listing_records(named, np.array([[1.0], [3.0], [8.0]])).round(2).tolist()
    [[2.0, 0.0, 0.69], [8.0, 0.0, 0.0]]
    """
    nearest = np.maximum.reduceat(named.similarity, named.start[:-1])
    weight = np.exp(named.similarity - nearest[named.owner])[:, None]
    near = named.sums(weight * own[named.record]) / named.sums(weight)
    return np.column_stack([near, named.means(named.similarity), np.log(named.degree)])


def mean_r2(guess: Floats, truth: Floats) -> float:
    """Return the mean R2 of the features that vary, each at least 0 (the score of guessing the mean).

    >>> mean_r2(np.array([[1.0, 9.0], [3.0, 0.0]]), np.array([[1.0, 5.0], [3.0, 6.0]]))
    0.5
    """
    spread = ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
    missed = ((truth - guess) ** 2).sum(axis=0)
    varies = spread > 0
    return float(np.maximum(0.0, 1.0 - missed[varies] / spread[varies]).mean()) if varies.any() else 0.0


# The small models that an adversary trains on the rows it knows.


def candidate_models(n_known: int, rng: Generator, *, classes: bool) -> list[Any]:
    """Return a linear model, nearest neighbours and a small network, all on standardised columns."""
    neighbours = max(1, min(5, n_known // 3))  # no more than the rows of a fold
    models: list[Any]
    if classes:
        models = [linear_model.LogisticRegression(max_iter=5_000), neighbors.KNeighborsClassifier(neighbours)]
    else:
        nearest = neighbors.KNeighborsRegressor(neighbours, weights="distance")
        models = [linear_model.RidgeCV(np.logspace(-3, 3, 13)), nearest]
    if n_known >= MIN_ROWS_FOR_MLP:
        # Early stopping ends long before max_iter.
        options: dict[str, Any] = {"early_stopping": True, "max_iter": 2_000, "batch_size": min(32, n_known // 3)}
        options |= {"learning_rate_init": 3e-3, "random_state": int(rng.integers(2**31))}
        network = neural_network.MLPClassifier if classes else neural_network.MLPRegressor
        models.append(network(hidden_layer_sizes=(32 if classes else 64,), **options))
    return [pipeline.make_pipeline(preprocessing.StandardScaler(), model) for model in models]


def fit_best(models: Sequence[Any], rows: AnyArray, wanted: AnyArray, score: ScoreFunction) -> Any:
    """Return the model with the best cross-validated score, fitted on all rows; a single column is flattened."""
    if wanted.ndim == 2 and wanted.shape[1] == 1:
        wanted = wanted[:, 0]
    classes = wanted.ndim == 1 and wanted.dtype.kind in "biu"
    splitter = model_selection.StratifiedKFold if classes else model_selection.KFold
    folds = list(splitter(FOLDS).split(rows, wanted))
    means = []
    for model in models:
        scores = []
        for fit, held_out in folds:
            fitted = base.clone(model).fit(rows[fit], wanted[fit])
            probabilities = hasattr(fitted, "predict_proba")
            guess = fitted.predict_proba(rows[held_out])[:, 1] if probabilities else fitted.predict(rows[held_out])
            scores.append(score(guess, wanted[held_out]))
        means.append(np.mean(scores))
    return base.clone(models[int(np.argmax(means))]).fit(rows, wanted)
