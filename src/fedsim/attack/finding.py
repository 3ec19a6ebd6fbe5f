"""The result of an attack, with confidence intervals, bootstrap and AUC."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import wraps
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, rankdata

from fedsim.errors import InputError, SettingError
from fedsim.types import Floats

# What an attack found: how often it was right, what the adversary knew, what it cost, what blind guessing gives


CONFIDENCE_LEVEL = 0.95  # of every interval
RESAMPLES = 200
Arguments = ParamSpec("Arguments")


class Adversary(Enum):
    """Who attacks."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class IntervalEstimate:
    """A measured number with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class AttackFinding:
    """One attack's result; no record of the victim is in it.

    ``score`` grows with the adversary's success: a share of targets, an AUC or an R2, as ``measure`` says. ``blind`` is
    the score of an adversary who guesses without having seen anything. ``figures`` holds further numbers by name.
    ``seconds`` is what the attack cost and takes no part in comparisons.
    """

    attack: str
    adversary: Adversary
    measure: str
    score: IntervalEstimate
    blind: float
    targets: int
    knew: str
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = field(default=float("nan"), compare=False)

    @property
    def advantage(self) -> float:
        """How far the score lies on the way from blind guessing (0) to certainty (1)."""
        return max(0.0, (self.score.value - self.blind) / (1.0 - self.blind)) if self.blind < 1 else 0.0

    def exceeds(self, limit: float) -> bool:
        """Whether the score is above ``limit`` beyond doubt: its whole interval lies there."""
        return self.score.low > limit


def timed(attack: Callable[Arguments, AttackFinding]) -> Callable[Arguments, AttackFinding]:
    """The attack with its cost written into what it found."""

    @wraps(attack)
    def measured(*arguments: Arguments.args, **settings: Arguments.kwargs) -> AttackFinding:
        began = time.perf_counter()
        found = attack(*arguments, **settings)
        return replace(found, seconds=time.perf_counter() - began)

    return measured


def binomial_estimate(hits: int, trials: int, level: float = CONFIDENCE_LEVEL) -> IntervalEstimate:
    """A success rate with its exact binomial interval (Clopper and Pearson).

    >>> print(binomial_estimate(3, 100))
    0.03 (0.00623 to 0.08518)
    """
    if not 0 <= hits <= trials or trials < 1:
        raise SettingError(f"{hits} successes in {trials} trials; an attack needs at least one target")
    outside = (1.0 - level) / 2.0
    low = 0.0 if hits == 0 else float(beta.ppf(outside, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1.0 - outside, hits + 1, trials - hits))
    return IntervalEstimate(hits / trials, low, high)


def bootstrap_estimate(
    statistic: Callable[[NDArray[np.int64]], float], n_rows: int, rng: np.random.Generator, resamples: int = RESAMPLES
) -> IntervalEstimate:
    """A statistic of rows with its percentile interval over resampled rows.

    >>> values = np.arange(100.0)
    >>> print(bootstrap_estimate(lambda rows: float(values[rows].mean()), 100, np.random.default_rng(0)))
    49.5 (44.23 to 54.73)
    """
    if n_rows < 1:
        raise InputError("no row to measure the attack on; keep some rows unknown to the adversary")
    drawn = [statistic(rng.integers(0, n_rows, n_rows)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1.0 - CONFIDENCE_LEVEL) / 2.0, (1.0 + CONFIDENCE_LEVEL) / 2.0])
    return IntervalEstimate(statistic(np.arange(n_rows)), float(low), float(high))


def median_estimate(values: Floats, rng: np.random.Generator) -> IntervalEstimate:
    """The median with its bootstrapped interval."""
    return bootstrap_estimate(lambda rows: float(np.median(values[rows])), len(values), rng)


def sample_targets(candidates: NDArray[Any], most: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    """Up to ``most`` of the candidates, ascending; all of them without a limit."""
    chosen = candidates if most is None or most >= len(candidates) else rng.choice(candidates, most, replace=False)
    return np.sort(np.asarray(chosen, dtype=np.int64))


def check_flip_probability(probability: float) -> None:
    """The chance that a bit was flipped, known to the attacker: at a half nothing is left to read."""
    if not 0 <= probability < 0.5:
        raise SettingError(f"flip_probability={probability}; a probability from 0 to below 0.5 is needed")


# How well scores tell two classes apart


def roc_auc(score: Floats, positive: NDArray[np.bool_]) -> float:
    """Probability that a positive row scores above a negative one, ties counting half; 0.5 if a class is absent.

    >>> roc_auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if not n_positive or not n_negative:
        return 0.5
    below = rankdata(score)[positive].sum() - n_positive * (n_positive + 1) / 2.0
    return float(below / (n_positive * n_negative))


def auc_estimate(score: Floats, positive: NDArray[np.bool_], rng: np.random.Generator) -> IntervalEstimate:
    """The AUC with its bootstrapped interval."""
    return bootstrap_estimate(lambda rows: roc_auc(score[rows], positive[rows]), len(score), rng)


def unsigned_auc(estimate: IntervalEstimate) -> IntervalEstimate:
    """The AUC of an adversary who also knows which way round the scores go."""
    if estimate.value >= 0.5:
        return estimate
    return IntervalEstimate(1.0 - estimate.value, 1.0 - estimate.high, 1.0 - estimate.low)


def rarer_class_mask(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """True for the rarer of two classes.

    >>> rarer_class_mask(np.array([3, 3, 7])).tolist()
    [False, False, True]
    """
    kinds, kind, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(kinds) != 2:
        raise InputError(
            f"the labels have {len(kinds)} different values; label inference needs two: "
            "compare with the median, or take one class against the rest"
        )
    return np.asarray(kind == int(counts[1] <= counts[0]))
