"""What training takes from each party: arrays and the checks on them, metrics, and the scaling of labels.

Letters: n primary records, K partners of each, T outputs of the task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import FileError, InputError, SettingError
from fedsim.splitnn import Features, gates, methods, secondary_model
from fedsim.types import MAX_MAGNITUDE, Floats, Links, Split


class TaskType(Enum):
    """What the labels are: numbers (regression) or classes (classification)."""

    NUMBERS = "regression"
    CLASSES = "classification"


@dataclass(frozen=True, eq=False)
class PrimaryData:
    """The table of the party with the labels.

    Parameters
    ----------
    features
        Columns ready for a network; a plain array holds numbers.
    labels
        One number per record, (n,), or one integer per record that stands for its class.
    task_type
        Whether the labels are numbers or classes.
    name
        Name of the party, as in messages and folders.
    weights
        How much each record counts in the loss and in all metrics, (n,); a record of weight 2 counts as two.
    """

    features: Features | NDArray[Any]
    labels: NDArray[Any]  # (n,)
    task_type: TaskType = TaskType.NUMBERS
    name: str = "primary"
    weights: Floats | None = None  # (n,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", as_features(self.features))
        object.__setattr__(self, "labels", np.asarray(self.labels))

    def weights_of(self, rows: NDArray[Any]) -> Floats | None:
        """Return the weights of some records, scaled to a mean of one."""
        return None if self.weights is None else self.weights[rows] / self.weights[rows].mean()


@dataclass(frozen=True, eq=False)
class SecondaryData:
    """The table of a party without labels, and every primary record's partners in it.

    Parameters
    ----------
    features
        Columns ready for a network; a plain array holds numbers.
    partner, similarity
        Rows of this party, (n, K), and their similarities, (n, K) or one per compared field, (n, K, F).
    name
        Name of the party.
    aligned_with
        Name of an earlier secondary whose rows correspond one to one with these. Such a party has no list of its own:
        both answer for the same partner rows (paper, appendix "Extension to Multiple Parties").
    """

    features: Features | NDArray[Any]
    partner: NDArray[Any] | None = None  # (n, K)
    similarity: NDArray[Any] | None = None  # (n, K) or (n, K, F)
    name: str = "secondary"
    aligned_with: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", as_features(self.features))

    @property
    def neighbours(self) -> Links | None:
        """Its own list, if it has one."""
        if self.partner is None or self.similarity is None:
            return None
        return Links(np.asarray(self.partner), np.asarray(self.similarity))


@dataclass(frozen=True, eq=False)
class NeighbourList:
    """A list of partners and the parties that hold those rows.

    Parameters
    ----------
    neighbours
        Every primary record's partners.
    holders
        Secondaries that hold the partner rows, in this process or elsewhere; several if they are aligned.
    """

    neighbours: Links
    holders: tuple[secondary_model.Secondary, ...]


def as_features(features: Features | NDArray[Any]) -> Features:
    """Return features; a plain array holds columns of numbers."""
    return features if isinstance(features, Features) else Features(np.asarray(features))


# Checks before training. Messages name the party and the way out, and show no value.


MAX_LABEL = 1e150  # of predictions on a log scale: the square of a larger one overflows


def check_primary(primary: PrimaryData, split: Split) -> None:
    """Raise InputError if features, labels or split of the primary cannot be used."""
    name, labels = primary.name, primary.labels
    features = as_features(primary.features)
    features.check(name)
    if labels.shape != (len(features),):
        message = f"{name} has labels of shape {labels.shape} for {len(features)} records; give one label per record"
        raise InputError(message, code="label-shape")
    _check_split(split, len(features))
    used = np.concatenate([split.train, split.validation, split.test])  # others may have no label
    labels = labels[used]
    if primary.weights is not None and not (
        primary.weights.shape == (len(features),)
        and np.isfinite(primary.weights[used]).all()
        and (primary.weights[used] > 0).all()
    ):
        message = f"the weights of {name} are not one positive number per record; leave out records of weight zero"
        raise InputError(message, code="weight-not-positive")
    if primary.task_type is TaskType.NUMBERS:
        real = np.issubdtype(labels.dtype, np.integer) or np.issubdtype(labels.dtype, np.floating)
        if not (real and np.isfinite(labels).all()):
            message = f"the labels of {name} are not all finite numbers; drop those records"
            raise InputError(message, code="label-not-finite")
        if np.abs(labels.astype(np.float64)).max() > MAX_MAGNITUDE:
            raise InputError(
                f"labels of {name} are beyond {MAX_MAGNITUDE:g}; correct them, or choose a larger unit",
                code="label-too-large",
            )
    elif not (np.issubdtype(labels.dtype, np.integer) or labels.dtype == bool):
        raise InputError(f"the classes of {name} are of type {labels.dtype}; give integers", code="class-not-integer")
    elif len(np.unique(primary.labels[split.train])) < 2:
        raise InputError(f"the training labels of {name} are all of one class; give at least two", code="one-class")


def _check_split(split: Split, n_records: int) -> None:
    parts = {"training": split.train, "validation": split.validation, "test": split.test, "other": split.unlabelled}
    for name, rows in parts.items():
        integers = rows.ndim == 1 and np.issubdtype(rows.dtype, np.integer)
        if not integers or (len(rows) and (rows.min() < 0 or rows.max() >= n_records)):
            raise InputError(f"the {name} rows of the split are not row numbers below {n_records}", code="split-rows")
        if not len(rows) and name in ("training", "validation"):
            raise InputError(f"the split has no {name} rows; give at least one", code="split-empty")
    rows = np.concatenate(list(parts.values()))
    if len(np.unique(rows)) < len(rows):
        raise InputError("the parts of the split share rows; each record belongs to one part", code="split-overlap")


def check_names(names: Sequence[str]) -> None:
    """Raise an error unless every party has a different name that can be a folder's."""
    if len(set(names)) < len(names):
        raise InputError(f"the parties are called {', '.join(names)}; give each another name", code="repeated-name")
    for name in names:
        if not re.fullmatch(r"\w[\w. -]*", name):
            raise SettingError(f"party name '{name}'; use letters, digits, '_', '-', '.' and blanks", code="party-name")


def check_lists(lists: Sequence[NeighbourList], n_records: int, required: methods.PartnerRequirement) -> None:
    """Raise an error if a list does not fit the primary's records or those of its holders."""
    for listed in lists:
        if not listed.holders:
            raise InputError("a list of partners has no holder; give a secondary that has those rows", code="no-holder")
        party, n_rows = listed.holders[0].name, listed.holders[0].n_records
        partner, similarity = listed.neighbours.partner, listed.neighbours.similarity
        shaped = partner.ndim == 2 and similarity.ndim == 3 and partner.shape == similarity.shape[:2]
        if not shaped or len(partner) != n_records or not similarity.size:
            raise InputError(
                f"the list of {party} has partners of shape {partner.shape} and similarities of shape "
                f"{similarity.shape} for {n_records} primary records; both need a row per record and a "
                "column per partner, and similarities at least one field",
                code="list-shape",
            )
        if not np.issubdtype(partner.dtype, np.integer) or partner.min() < -1 or partner.max() >= n_rows:
            message = f"the list of {party} has partners outside its {n_rows} rows; rows count from zero"
            raise InputError(message, code="partner-out-of-range")
        # A field may be missing in a pair, but not all of them.
        if not (
            np.issubdtype(similarity.dtype, np.number)
            and not np.isinf(similarity).any()
            and not np.isnan(similarity).all(axis=2).any()
        ):
            message = f"the similarities of {party} are not all finite; link again"
            raise InputError(message, code="similarity-not-finite")
        if required is methods.PartnerRequirement.EVERY and (partner < 0).any():
            message = f"the list of {party} has records without a partner (row -1), which only the method Exact allows"
            raise InputError(message, code="missing-partners")
        for holder in listed.holders:
            if holder.n_records != n_rows:
                sizes = f"{holder.name} has {holder.n_records} records and {party} has {n_rows}"
                raise InputError(f"{sizes}; aligned parties hold the same rows", code="aligned-sizes")


# Metrics. scikit-learn has them too, but training runs on machines with torch and numpy alone.


Metrics = dict[str, float]
MIN_PROBABILITY = 1e-7  # keeps the log loss finite


def regression_metrics(predictions: Floats, labels: NDArray[Any], weights: Floats | None = None) -> Metrics:
    """Return RMSE, R2 and mean absolute error in the unit of the labels; ``weights`` say how much each record counts.

    >>> regression_metrics(np.array([1.0, 3.0]), np.array([1.0, 2.0]))["mae"]
    0.5
    """

    def mean(values: NDArray[Any]) -> float:
        return float(np.average(values, weights=weights))

    errors = predictions - labels
    mse, variance = mean(np.square(errors)), mean(np.square(labels - mean(labels)))
    r2 = 1 - mse / variance if variance > 0 else 0.0
    return {"rmse": mse**0.5, "r2": r2, "mae": mean(np.abs(errors))}


def classification_metrics(probabilities: Floats, classes: NDArray[Any], weights: Floats | None = None) -> Metrics:
    """Return accuracy and log loss, and for two classes the area under the curve; ``classes`` counts columns."""
    of_truth = np.take_along_axis(probabilities, classes[:, None], axis=1)[:, 0]
    right, loss = probabilities.argmax(axis=1) == classes, -np.log(of_truth.clip(MIN_PROBABILITY))
    metrics = {
        "accuracy": float(np.average(right, weights=weights)),
        "log_loss": float(np.average(loss, weights=weights)),
    }
    return metrics | {"auc": roc_auc(probabilities[:, 1], classes, weights)} if probabilities.shape[1] == 2 else metrics


def roc_auc(probability: Floats, classes: NDArray[Any], weights: Floats | None = None) -> float:
    """Return the probability that a record of class 1 is ranked above one of class 0.

    >>> roc_auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 0, 1, 1]))
    0.875
    """
    level = np.unique(probability, return_inverse=True)[1]
    ones, zeros = (
        np.bincount(level[here], None if weights is None else weights[here], level.max() + 1)
        for here in (classes == 1, classes == 0)
    )
    return pair_win_rate(ones, zeros)


def pair_win_rate(ones: NDArray[Any], zeros: NDArray[Any]) -> float:
    """Return the share of (one, zero) pairs in which the one ranks higher, given the counts at each level.

    Ties count half. Without a pair the rate is that of guessing, a half.
    """
    pairs = ones.sum() * zeros.sum()
    won = (ones * (np.cumsum(zeros) - 0.5 * zeros)).sum()
    return float(won / pairs) if pairs else 0.5


def selection_key(metrics: Metrics) -> tuple[float, ...]:
    """Return a key that is greater for better metrics: by RMSE, of logarithms if these are learnt, or by accuracy and
    then log loss.
    """
    if "rmse" in metrics:
        return (-metrics.get("rmse_log", metrics["rmse"]),)
    return metrics["accuracy"], -metrics["log_loss"]


# Targets: labels on their way into a network and predictions on their way back, fitted on training rows only


class Target(Protocol):
    """What is learnt: the network's task, the scaling of labels and of predictions back."""

    @property
    def task(self) -> gates.PredictionTask: ...

    def encode_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return labels as the loss takes them."""

    def decode_predictions(self, predictions: Floats) -> Floats:
        """Turn network predictions (n, T) into numbers in the user's unit (n,) or probabilities (n, classes)."""

    def calibrate(
        self, predictions: Floats, spread: Floats, labels: NDArray[Any], weights: Floats | None = None
    ) -> Target:
        """Return the target with intervals, or probabilities, fitted to network predictions (n, T) of validation
        records.
        """

    def decode_intervals(self, predictions: Floats, spread: Floats) -> Floats | None:
        """Return lower and upper ends in the user's unit, (n, 2); None where they are not fitted, and for classes."""

    def measure(self, predictions: Floats, labels: NDArray[Any], weights: Floats | None = None) -> Metrics:
        """Return metrics of decoded predictions, of which :func:`selection_key` chooses the best epoch."""


class LabelScaler(Protocol):
    """A way to scale numbers, fitted on the labels of the training rows."""

    def fit(self, labels: Floats) -> Target: ...


@dataclass(frozen=True)
class MinMaxLabel:
    """The paper's scaling: the training range becomes 0..1 behind a sigmoid, so predictions cannot leave that range."""

    def fit(self, labels: Floats) -> Target:
        low, width = float(labels.min()), float(labels.max() - labels.min())
        return NumericTarget(low, width if width > 0 else 1.0, gates.BoundedRegression())


@dataclass(frozen=True)
class StandardLabel:
    """Mean 0 and deviation 1 before a linear output: predictions can leave the training range."""

    def fit(self, labels: Floats) -> Target:
        deviation = float(labels.std())
        return NumericTarget(float(labels.mean()), deviation if deviation > 0 else 1.0, gates.Regression())


# Intervals around predictions, by split conformal prediction (Papadopoulos et al., 2002; Lei et al., 2018)

INTERVAL_LEVEL = 0.9


@dataclass(frozen=True)
class IntervalWidth:
    """How wide an interval is, given the spread of the members: factor * sqrt(noise^2 + spread^2) to either side.

    The spread says which records the members disagree about; ``noise`` is the error that they share. ``factor`` is such
    that the share ``level`` of the validation records lies inside, so the interval covers new records of the same kind
    about as often. Validation records also choose the best epoch, which makes it a little too narrow.
    """

    noise: float = field(repr=False)
    factor: float
    level: float = INTERVAL_LEVEL

    @classmethod
    def fit(
        cls, errors: Floats, spread: Floats, weights: Floats | None = None, level: float = INTERVAL_LEVEL
    ) -> IntervalWidth:
        """Fit to errors, spreads and weights of validation records, (n,) each.

        >>> width = IntervalWidth.fit(np.linspace(-1, 1, 101), np.zeros(101))
        >>> round(float(width.half(np.zeros(1))[0]), 2)
        0.92
        """
        variance = np.average(np.square(errors), weights=weights) - np.average(np.square(spread), weights=weights)
        noise = max(float(variance), 0.0) ** 0.5
        ratios = np.abs(errors) / np.maximum(np.hypot(noise, spread), np.finfo(float).tiny)
        order = np.argsort(ratios, kind="stable")
        wanted = min(len(errors), math.ceil((len(errors) + 1) * level))  # the conformal quantile, counted in records
        counted = np.arange(1, len(order) + 1) if weights is None else np.cumsum(weights[order] / weights.mean())
        place = min(int(np.searchsorted(counted, wanted - 1e-9)), len(order) - 1)
        return cls(noise, float(ratios[order[place]]), level)

    def half(self, spread: Floats) -> Floats:
        """Return half the width of each interval."""
        half: Floats = self.factor * np.hypot(self.noise, spread)
        return half


def interval_stretch(errors: Floats, half: Floats) -> float:
    """Return the factor with which half widths of intervals contain the errors of validation records, (n,) each.

    >>> interval_stretch(np.linspace(-1, 1, 101), np.full(101, 0.5)).__round__(2)
    1.84
    """
    ratios = np.sort(np.abs(errors) / np.maximum(half, np.finfo(float).tiny))
    place = min(len(ratios), math.ceil((len(ratios) + 1) * INTERVAL_LEVEL)) - 1  # of the conformal quantile
    return float(ratios[place])


def half_widths(intervals: Floats) -> Floats:
    """Return half the width of intervals, (n, 2) -> (n,)."""
    return np.asarray((intervals[:, 1] - intervals[:, 0]) / 2)


def stretch_intervals(values: Floats, intervals: Floats, factor: float, *, log: bool) -> Floats:
    """Return intervals around predictions that are wider by a factor, (n, 2); on a logarithmic scale with ``log``.

    >>> stretch_intervals(np.array([4.0]), np.array([[3.0, 5.0]]), 2.0, log=False).tolist()
    [[2.0, 6.0]]
    """
    scale, unscale = (np.log, np.exp) if log else (np.asarray, np.asarray)
    centre, half = scale(values), factor * half_widths(scale(intervals))
    return np.asarray(unscale(np.column_stack([centre - half, centre + half])))


# Class probabilities, by one temperature (Guo et al., 2017)

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.25, 20.0
BISECTIONS = 50
LEAST_PROBABILITY = 1e-12  # so that a class that was thought impossible gets some probability
CALIBRATION_BINS = 10


def scale_probabilities(probabilities: Floats, temperature: float) -> Floats:
    """Return probabilities, (n, classes), whose log-odds are divided by a temperature; the order of classes stays.

    A temperature above 1 makes them less extreme; its inverse undoes it. Differences below 1e-12 are lost.

    >>> scale_probabilities(np.array([[0.1, 0.9]]), 2.0).round(2).tolist()
    [[0.25, 0.75]]
    """
    if temperature == 1.0:
        return probabilities
    logs = np.log(np.maximum(probabilities, LEAST_PROBABILITY)) / temperature
    scaled = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(scaled / scaled.sum(axis=1, keepdims=True))


def fit_temperature(probabilities: Floats, classes: NDArray[Any], weights: Floats | None = None) -> float:
    """Return the temperature with the smallest log loss on validation records; ``classes`` counts columns.

    One further record that could be of any class keeps a model that is right about all validation records from being
    made certain. If no temperature reduces the log loss, it is 1. Validation records also choose the best epoch, so the
    scaled probabilities are still a little too extreme.
    """
    logs = np.log(np.maximum(probabilities, LEAST_PROBABILITY))  # (n, C)
    of_truth, of_any = np.take_along_axis(logs, classes[:, None], axis=1)[:, 0], logs.mean(axis=1)
    truth, anything = (np.average(part, weights=weights) for part in (of_truth, of_any))
    wanted = truth + (anything - truth) / (len(logs) + 1)

    def is_too_extreme(inverse: float) -> bool:
        """Whether the derivative of the log loss, which grows with the inverse temperature, is above zero."""
        scaled = scale_probabilities(probabilities, 1.0 / inverse)
        return bool(np.average((scaled * logs).sum(axis=1), weights=weights) > wanted)

    low, high = 1.0 / MAX_TEMPERATURE, 1.0 / MIN_TEMPERATURE
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_too_extreme(middle) else (middle, high)
    found = 2.0 / (low + high)
    before, after = (
        classification_metrics(scale_probabilities(probabilities, temperature), classes, weights)["log_loss"]
        for temperature in (1.0, found)
    )
    return found if after < before else 1.0


def calibration_error(probabilities: Floats, classes: NDArray[Any], weights: Floats | None = None) -> float:
    """Return how far the confidence of predictions is from their accuracy: the mean gap over ten bins of confidence.

    >>> calibration_error(np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([0, 1]))
    0.5
    """
    sure, right = probabilities.max(axis=1), (probabilities.argmax(axis=1) == classes).astype(np.float64)
    counted = np.ones(len(sure)) if weights is None else weights
    bins = np.minimum((sure * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, counted * (sure - right), CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / counted.sum())


@dataclass(frozen=True)
class LogLabel:
    """The logarithm of a positive label, scaled by another scaling; predictions return to the label's unit."""

    inner: LabelScaler

    def fit(self, labels: Floats) -> Target:
        return LogTarget(self.inner.fit(np.log(labels)))


@dataclass(frozen=True)
class NumericTarget:
    """label = shift + scale * what the network sees; ``interval`` is fitted after training."""

    shift: float = field(repr=False)  # perhaps the smallest label, which must not appear in a log
    scale: float = field(repr=False)
    task: gates.PredictionTask
    interval: IntervalWidth | None = None

    def encode_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        return ((labels - self.shift) / self.scale).astype(np.float32)

    def decode_predictions(self, predictions: Floats) -> Floats:
        return self.shift + self.scale * predictions[:, 0]

    def decode_intervals(self, predictions: Floats, spread: Floats) -> Floats | None:
        if self.interval is None:
            return None
        half = self.interval.half(spread)
        return np.column_stack([self.decode_predictions(predictions + sign * half[:, None]) for sign in (-1, 1)])

    def calibrate(
        self, predictions: Floats, spread: Floats, labels: NDArray[Any], weights: Floats | None = None
    ) -> NumericTarget:
        errors = self.encode_labels(labels).astype(np.float64) - predictions[:, 0]
        return replace(self, interval=IntervalWidth.fit(errors, spread, weights))

    def measure(self, predictions: Floats, labels: NDArray[Any], weights: Floats | None = None) -> Metrics:
        return regression_metrics(predictions, labels, weights)


@dataclass(frozen=True)
class LogTarget:
    """The logarithm of the label is what ``inner`` scales; metrics are in the label's unit, and rmse_log of logarithms.

    >>> target = LogTarget(StandardLabel().fit(np.log(np.array([1.0, 100.0]))))
    >>> target.decode_predictions(np.zeros((1, 1))).round(6).tolist()
    [10.0]
    """

    inner: Target

    @property
    def task(self) -> gates.PredictionTask:
        return self.inner.task

    def encode_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        return self.inner.encode_labels(np.log(labels))

    def decode_predictions(self, predictions: Floats) -> Floats:
        return self._exponential(self.inner.decode_predictions(predictions))

    def calibrate(
        self, predictions: Floats, spread: Floats, labels: NDArray[Any], weights: Floats | None = None
    ) -> LogTarget:
        return LogTarget(self.inner.calibrate(predictions, spread, np.log(labels), weights))

    def decode_intervals(self, predictions: Floats, spread: Floats) -> Floats | None:
        ends = self.inner.decode_intervals(predictions, spread)
        return None if ends is None else self._exponential(ends)

    def _exponential(self, logarithms: Floats) -> Floats:
        limit = np.log(MAX_LABEL)
        return np.asarray(np.exp(logarithms.clip(-limit, limit)))

    def measure(self, predictions: Floats, labels: NDArray[Any], weights: Floats | None = None) -> Metrics:
        logarithms = regression_metrics(np.log(predictions), np.log(labels), weights)
        return {**regression_metrics(predictions, labels, weights), "rmse_log": logarithms["rmse"]}


@dataclass(frozen=True)
class ClassTarget:
    """Classes in ascending order of their labels; ``temperature`` is fitted after training."""

    classes: tuple[int, ...]
    temperature: float = 1.0

    @property
    def task(self) -> gates.PredictionTask:
        n = len(self.classes)
        return gates.BinaryClassification() if n == 2 else gates.MulticlassClassification(n)

    def encode_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        places = self.columns_of(labels)
        return places.astype(np.float32 if len(self.classes) == 2 else np.int64)

    def decode_predictions(self, predictions: Floats) -> Floats:
        every = np.hstack([1 - predictions, predictions]) if len(self.classes) == 2 else predictions
        return scale_probabilities(every, self.temperature)

    def calibrate(
        self, predictions: Floats, spread: Floats, labels: NDArray[Any], weights: Floats | None = None
    ) -> ClassTarget:
        # The spread of the members is in their averaged probabilities already.
        plain = replace(self, temperature=1.0).decode_predictions(predictions)
        return replace(self, temperature=fit_temperature(plain, self.columns_of(labels), weights))

    def columns_of(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return the column of each label among the probabilities."""
        return np.searchsorted(self.classes, labels)

    def decode_intervals(self, predictions: Floats, spread: Floats) -> Floats | None:
        return None

    def measure(self, predictions: Floats, labels: NDArray[Any], weights: Floats | None = None) -> Metrics:
        return classification_metrics(predictions, self.columns_of(labels), weights)


def target_state(target: Target) -> dict[str, Any]:
    """Return a target as JSON values, for :func:`target_from_state`.

    >>> target_state(ClassTarget((5, 6, 7)))
    {'classes': [5, 6, 7], 'temperature': 1.0}
    """
    if isinstance(target, NumericTarget):
        bounded = isinstance(target.task, gates.BoundedRegression)
        interval = {} if target.interval is None else {"interval": asdict(target.interval)}
        return {"shift": target.shift, "scale": target.scale, "bounded": bounded, **interval}
    if isinstance(target, LogTarget):
        return {**target_state(target.inner), "log": True}
    if isinstance(target, ClassTarget):
        return {"classes": list(target.classes), "temperature": target.temperature}
    raise SettingError(f"labels scaled by {type(target).__name__} cannot be saved", code="target-not-savable")


def target_from_state(state: Mapping[str, Any]) -> Target:
    """Return the target that :func:`target_state` described."""
    try:
        if "classes" in state:
            classes = state["classes"]  # models of early versions store how many there are
            classes = tuple(range(classes) if isinstance(classes, int) else classes)
            return ClassTarget(classes, state.get("temperature", 1.0))  # earlier releases did not calibrate
        task = gates.BoundedRegression() if state["bounded"] else gates.Regression()
        interval = IntervalWidth(**state["interval"]) if "interval" in state else None
        target = NumericTarget(state["shift"], state["scale"], task, interval)
        return LogTarget(target) if state.get("log") else target
    except (LookupError, TypeError) as error:
        message = f"the scale of the labels cannot be read ({type(error).__name__}); save the model again"
        raise FileError(message, code="target-unreadable") from error
