"""Paired intervals: test records and training seeds are drawn again, the same for all that is compared.

Records with equal identifiers are drawn together, for they are hardly separate evidence. A drawing takes as many seeds
as there are, with repetition, and as many groups of test records; a group counts as often in every seed that tests it,
so that seeds which share their test records are not taken for fresh evidence. Where every seed tests fresh records the
intervals are rather too wide, for these differ from seed to seed as well. All compared trainings see the same drawing,
so what is common to them cancels out.

Letters: G groups of all seeds together, S seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.experiment.measures import Measure, Weighable
from fedsim.types import Floats, Integers

DRAWS = 1000
LEVEL = 95.0


@dataclass(frozen=True, eq=False)
class Judged:
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
class Drawn:
    """Scores of every training: of all records (mean over seeds), and of every drawing."""

    whole: dict[str, float]
    drawings: dict[str, Floats]

    def gain(self, before: str, after: str, *, lower_is_better: bool) -> Interval:
        """How much better ``after`` is than ``before``."""
        sign = 1.0 if lower_is_better else -1.0
        drawn = sign * (self.drawings[before] - self.drawings[after])
        low, high = np.percentile(drawn, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
        return Interval(sign * (self.whole[before] - self.whole[after]), float(low), float(high))


def drawn(seeds: Sequence[Judged], measure: Measure, rng: np.random.Generator, draws: int = DRAWS) -> Drawn:
    """Draw seeds and records again and score every training each time."""
    names = list(seeds[0].predictions)
    every = np.unique(np.concatenate([judged.groups for judged in seeds]))  # (G,)
    prepared = [_prepared(judged, measure, every) for judged in seeds]
    whole = np.mean([seed.scores(np.ones(len(every))) for seed in prepared], axis=0)
    drawings = np.array([_drawing(prepared, len(every), rng) for _ in range(draws)])
    return Drawn(dict(zip(names, whole.tolist(), strict=True)), dict(zip(names, drawings.T, strict=True)))


@dataclass(frozen=True, eq=False)
class _Seed:
    """One seed's trainings, and the places of its groups among all."""

    groups: Integers
    trainings: Sequence[Weighable]

    def scores(self, weight: Floats) -> list[float]:
        return [training.score(weight[self.groups]) for training in self.trainings]


def _prepared(judged: Judged, measure: Measure, every: Integers) -> _Seed:
    found, group = np.unique(judged.groups, return_inverse=True)
    trainings = [measure.prepared(predictions, judged.labels, group) for predictions in judged.predictions.values()]
    return _Seed(np.searchsorted(every, found), trainings)


def _drawing(seeds: Sequence[_Seed], groups: int, rng: np.random.Generator) -> Floats:
    """Mean scores of one drawing; a seed none of whose records was drawn has none."""
    while True:
        places = rng.integers(len(seeds), size=len(seeds))  # (S,)
        weight = np.bincount(rng.integers(groups, size=groups), minlength=groups).astype(np.float64)  # (G,)
        scores = [seeds[place].scores(weight) for place in places if weight[seeds[place].groups].any()]
        if scores:
            return np.asarray(np.mean(scores, axis=0))
