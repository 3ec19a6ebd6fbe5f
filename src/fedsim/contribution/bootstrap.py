"""Weighted metrics and paired bootstrap intervals over test records and training seeds.

Letters: n test records, G groups of records that are drawn together, S seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.training.labels import pair_win_rate
from fedsim.types import Floats, Integers

# Metrics of predictions in which every group of records has a weight. A scorer computes all that does not depend on the
# weights (G,) once, because a bootstrap asks for a score in every resample.


Scorer = Callable[[Floats], float]


@dataclass(frozen=True)
class Measure:
    """A metric; ``scorer`` takes predictions, labels and every record's place among the groups, (n,)."""

    name: str
    lower_is_better: bool
    scorer: Callable[[NDArray[Any], NDArray[Any], Integers], Scorer]


def _mean_scorer(values: NDArray[Any], group: Integers, power: float = 1.0) -> Scorer:
    sums, counts = np.bincount(group, weights=values), np.bincount(group).astype(np.float64)  # (G,), (G,)
    return lambda weight: float((weight @ sums / (weight @ counts)) ** power)


def _auc_scorer(predictions: NDArray[Any], labels: NDArray[Any], group: Integers) -> Scorer:
    probability = predictions[:, 1]
    order = np.argsort(probability, kind="stable")
    rises = np.diff(probability[order], prepend=probability[order[0]]) > 0
    level = np.cumsum(rises, dtype=np.int64)  # (n,), the same for ties
    second, group = labels[order] == 1, group[order]

    def score(weight: Floats) -> float:
        of_record, levels = weight[group], int(level[-1]) + 1
        ones = np.bincount(level, weights=of_record * second, minlength=levels)
        zeros = np.bincount(level, weights=of_record * ~second, minlength=levels)
        return pair_win_rate(ones, zeros)

    return score


RMSE = Measure("rmse", True, lambda pred, y, group: _mean_scorer(np.square(pred.astype(np.float64) - y), group, 0.5))
ACCURACY = Measure(  # labels count columns of the predictions
    "accuracy", False, lambda pred, y, group: _mean_scorer((pred.argmax(axis=1) == y).astype(np.float64), group)
)
AUC = Measure("auc", False, _auc_scorer)


def measure_for_task(task: str, labels: NDArray[Any]) -> Measure:
    """Return the metric of a ladder: RMSE for numbers, AUC for two classes, accuracy for more."""
    if task == "regression":
        return RMSE
    return AUC if len(np.unique(labels)) == 2 else ACCURACY


# Paired bootstrap: test records and training seeds are resampled, the same for all trainings that are compared, so what
# they have in common cancels out.
#
# Records with equal identifiers are resampled together, because they are hardly separate evidence. A resample has as
# many seeds as there are, with repetition, and as many groups of test records; a group counts as often in every seed
# that tests it, so that seeds which share test records are not taken for independent evidence. Where every seed tests
# other records the intervals are rather too wide, because the records differ from seed to seed as well.


RESAMPLES = 1000
CONFIDENCE_PERCENT = 95.0


@dataclass(frozen=True, eq=False)
class SeedPredictions:
    """The test records of one seed: labels, groups (numbered alike in all seeds), and predictions by training."""

    labels: NDArray[Any]
    groups: Integers
    predictions: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def covers_zero(self) -> bool:
        return self.low <= 0.0 <= self.high


@dataclass(frozen=True, eq=False)
class BootstrapScores:
    """Scores of every training: on all records (mean over seeds), and in every resample."""

    scores: dict[str, float]
    resamples: dict[str, Floats]

    def gain(self, before: str, after: str, *, lower_is_better: bool) -> Interval:
        """Return how much better ``after`` is than ``before``."""
        sign = 1.0 if lower_is_better else -1.0
        gains = sign * (self.resamples[before] - self.resamples[after])
        low, high = np.percentile(gains, [(100 - CONFIDENCE_PERCENT) / 2, (100 + CONFIDENCE_PERCENT) / 2])
        return Interval(sign * (self.scores[before] - self.scores[after]), float(low), float(high))


def bootstrap_scores(
    seeds: Sequence[SeedPredictions], measure: Measure, rng: np.random.Generator, draws: int = RESAMPLES
) -> BootstrapScores:
    """Resample seeds and records, and score every training each time."""
    names = list(seeds[0].predictions)
    groups = np.unique(np.concatenate([seed.groups for seed in seeds]))  # (G,)
    scorers = [_SeedScorer.of(seed, measure, groups) for seed in seeds]
    scores = np.mean([scorer.scores(np.ones(len(groups))) for scorer in scorers], axis=0)
    resamples = np.array([_resample_scores(scorers, len(groups), rng) for _ in range(draws)])
    return BootstrapScores(dict(zip(names, scores.tolist(), strict=True)), dict(zip(names, resamples.T, strict=True)))


@dataclass(frozen=True, eq=False)
class _SeedScorer:
    """One seed's trainings, and the places of its groups among all."""

    groups: Integers
    trainings: Sequence[Scorer]

    @classmethod
    def of(cls, seed: SeedPredictions, measure: Measure, groups: Integers) -> _SeedScorer:
        here, group = np.unique(seed.groups, return_inverse=True)
        trainings = [measure.scorer(predictions, seed.labels, group) for predictions in seed.predictions.values()]
        return cls(np.searchsorted(groups, here), trainings)

    def scores(self, weight: Floats) -> list[float]:
        return [score(weight[self.groups]) for score in self.trainings]


def _resample_scores(seeds: Sequence[_SeedScorer], groups: int, rng: np.random.Generator) -> Floats:
    """Return the mean scores of one resample, without seeds none of whose records were drawn."""
    while True:
        places = rng.integers(len(seeds), size=len(seeds))  # (S,)
        weight = np.bincount(rng.integers(groups, size=groups), minlength=groups).astype(np.float64)  # (G,)
        scores = [seeds[place].scores(weight) for place in places if weight[seeds[place].groups].any()]
        if scores:
            return np.asarray(np.mean(scores, axis=0))
