"""Weighted metrics and paired bootstrap intervals over test records and training seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.training.labels import pair_win_rate
from fedsim.types import Floats, Integers

# How good predictions are when records count more or less: what a bootstrap asks for, over and over
#
# Letters: n test records, G groups of records that are drawn together.


class WeightedScorer(Protocol):
    """Predictions of one training, ready to be judged."""

    def score(self, weight: Floats) -> float:
        """The metric where each group counts so often."""


class Measure(Protocol):
    """A metric."""

    @property
    def name(self) -> str: ...

    @property
    def lower_is_better(self) -> bool: ...

    def prepared(self, predictions: NDArray[Any], labels: NDArray[Any], group: Integers) -> WeightedScorer:
        """All that does not depend on the weights."""


@dataclass(frozen=True, eq=False)
class _MeanScorer:
    """A mean over records, perhaps under a root."""

    sums: Floats  # (G,)
    counts: Floats  # (G,)
    power: float

    def score(self, weight: Floats) -> float:
        return float((weight @ self.sums / (weight @ self.counts)) ** self.power)


def _mean_scorer(values: NDArray[Any], group: Integers, power: float) -> _MeanScorer:
    sums = np.asarray(np.bincount(group, weights=values), dtype=np.float64)
    return _MeanScorer(sums, np.bincount(group).astype(np.float64), power)


@dataclass(frozen=True)
class RootMeanSquare:
    """Root mean square error in the unit of the labels."""

    name: str = "rmse"
    lower_is_better: bool = True

    def prepared(self, predictions: NDArray[Any], labels: NDArray[Any], group: Integers) -> WeightedScorer:
        return _mean_scorer(np.square(predictions.astype(np.float64) - labels), group, 0.5)


@dataclass(frozen=True)
class Accuracy:
    """Share of records whose likeliest class is theirs; labels count columns of the predictions."""

    name: str = "accuracy"
    lower_is_better: bool = False

    def prepared(self, predictions: NDArray[Any], labels: NDArray[Any], group: Integers) -> WeightedScorer:
        return _mean_scorer((predictions.argmax(axis=1) == labels).astype(np.float64), group, 1.0)


@dataclass(frozen=True, eq=False)
class _RankScorer:
    """Records of two classes in the order of their probability; equal ones share a ``level``."""

    level: Integers
    group: Integers
    second: NDArray[np.bool_]

    def score(self, weight: Floats) -> float:
        of_record = weight[self.group]
        levels = int(self.level[-1]) + 1
        ones = np.bincount(self.level, weights=of_record * self.second, minlength=levels)
        zeros = np.bincount(self.level, weights=of_record * ~self.second, minlength=levels)
        return pair_win_rate(ones, zeros)


@dataclass(frozen=True)
class AreaUnderCurve:
    """Chance that a record of the second class is given the greater probability; a half for guessing."""

    name: str = "auc"
    lower_is_better: bool = False

    def prepared(self, predictions: NDArray[Any], labels: NDArray[Any], group: Integers) -> WeightedScorer:
        probability = predictions[:, 1]
        order = np.argsort(probability, kind="stable")
        rises = np.diff(probability[order], prepend=probability[order[0]]) > 0
        level = np.cumsum(rises, dtype=np.int64)
        return _RankScorer(level, group[order], labels[order] == 1)


def measure_for_task(task: str, labels: NDArray[Any]) -> Measure:
    """What a ladder is measured by: error for numbers, area under the curve for two classes, accuracy for more."""
    if task == "regression":
        return RootMeanSquare()
    return AreaUnderCurve() if len(np.unique(labels)) == 2 else Accuracy()


# Paired intervals: test records and training seeds are drawn again, the same for all that is compared
#
# Records with equal identifiers are drawn together, for they are hardly separate evidence. A drawing takes as many
# seeds as there are, with repetition, and as many groups of test records; a group counts as often in every seed that
# tests it, so that seeds which share their test records are not taken for fresh evidence. Where every seed tests
# fresh records the intervals are rather too wide, for these differ from seed to seed as well. All compared trainings
# see the same drawing, so what is common to them cancels out.
#
# Letters: G groups of all seeds together, S seeds.


RESAMPLES = 1000
CONFIDENCE_PERCENT = 95.0


@dataclass(frozen=True, eq=False)
class SeedPredictions:
    """The test records of one seed: labels, groups, and the predictions of every training by name.

    A group has the same number in every seed.
    """

    labels: NDArray[Any]
    groups: Integers
    predictions: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Interval:
    """An estimate and where it may lie."""

    estimate: float
    low: float
    high: float

    @property
    def covers_zero(self) -> bool:
        return self.low <= 0.0 <= self.high


@dataclass(frozen=True, eq=False)
class BootstrapScores:
    """Scores of every training: of all records (mean over seeds), and of every drawing."""

    whole: dict[str, float]
    drawings: dict[str, Floats]

    def gain(self, before: str, after: str, *, lower_is_better: bool) -> Interval:
        """How much better ``after`` is than ``before``."""
        sign = 1.0 if lower_is_better else -1.0
        drawn = sign * (self.drawings[before] - self.drawings[after])
        low, high = np.percentile(drawn, [(100 - CONFIDENCE_PERCENT) / 2, (100 + CONFIDENCE_PERCENT) / 2])
        return Interval(sign * (self.whole[before] - self.whole[after]), float(low), float(high))


def bootstrap_scores(
    seeds: Sequence[SeedPredictions], measure: Measure, rng: np.random.Generator, draws: int = RESAMPLES
) -> BootstrapScores:
    """Draw seeds and records again and score every training each time."""
    names = list(seeds[0].predictions)
    every = np.unique(np.concatenate([judged.groups for judged in seeds]))  # (G,)
    prepared = [_seed_scorer(judged, measure, every) for judged in seeds]
    whole = np.mean([seed.scores(np.ones(len(every))) for seed in prepared], axis=0)
    drawings = np.array([_resample_scores(prepared, len(every), rng) for _ in range(draws)])
    return BootstrapScores(dict(zip(names, whole.tolist(), strict=True)), dict(zip(names, drawings.T, strict=True)))


@dataclass(frozen=True, eq=False)
class _SeedScorer:
    """One seed's trainings, and the places of its groups among all."""

    groups: Integers
    trainings: Sequence[WeightedScorer]

    def scores(self, weight: Floats) -> list[float]:
        return [training.score(weight[self.groups]) for training in self.trainings]


def _seed_scorer(judged: SeedPredictions, measure: Measure, every: Integers) -> _SeedScorer:
    found, group = np.unique(judged.groups, return_inverse=True)
    trainings = [measure.prepared(predictions, judged.labels, group) for predictions in judged.predictions.values()]
    return _SeedScorer(np.searchsorted(every, found), trainings)


def _resample_scores(seeds: Sequence[_SeedScorer], groups: int, rng: np.random.Generator) -> Floats:
    """Mean scores of one drawing; a seed none of whose records was drawn has none."""
    while True:
        places = rng.integers(len(seeds), size=len(seeds))  # (S,)
        weight = np.bincount(rng.integers(groups, size=groups), minlength=groups).astype(np.float64)  # (G,)
        scores = [seeds[place].scores(weight) for place in places if weight[seeds[place].groups].any()]
        if scores:
            return np.asarray(np.mean(scores, axis=0))
