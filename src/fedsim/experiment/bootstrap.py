"""Paired intervals: test records and training seeds are drawn again, the same for all that is compared.

Records with equal identifiers are drawn together, for they are hardly separate evidence. A drawing takes as many seeds
as there are, with repetition, and within each of them as many groups of test records as it has; all compared trainings
see the same drawing, so what is common to them cancels out.
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
    """The test records of one seed: labels, groups, and the predictions of every training by name."""

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
    prepared = [_prepared(judged, measure) for judged in seeds]
    whole = np.mean([[each[1][name].score(np.ones(each[0])) for name in names] for each in prepared], axis=0)
    drawings = np.empty((draws, len(names)))
    for row in drawings:
        taken = [prepared[place] for place in rng.integers(len(seeds), size=len(seeds))]
        row[:] = np.mean([_once(groups, ready, names, rng) for groups, ready in taken], axis=0)
    return Drawn(dict(zip(names, whole.tolist(), strict=True)), dict(zip(names, drawings.T, strict=True)))


def _prepared(judged: Judged, measure: Measure) -> tuple[int, dict[str, Weighable]]:
    found, group = np.unique(judged.groups, return_inverse=True)
    ready = {
        name: measure.prepared(predictions, judged.labels, group) for name, predictions in judged.predictions.items()
    }
    return len(found), ready


def _once(groups: int, ready: Mapping[str, Weighable], names: Sequence[str], rng: np.random.Generator) -> list[float]:
    weight = np.bincount(rng.integers(groups, size=groups), minlength=groups).astype(np.float64)
    return [ready[name].score(weight) for name in names]
