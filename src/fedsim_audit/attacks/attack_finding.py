"""The result of an attack, with confidence intervals and AUC."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import beta

from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.errors import InputError, SettingError
from fedsim.training.data import roc_auc
from fedsim.types import AnyArray, Flags, Floats, Integers

CONFIDENCE_LEVEL = 0.95  # of every interval
RESAMPLES = 200
MEDIAN_ERROR_METRES = "median error in metres"
RADIUS_METRES = "radius in metres"
# Figures of attacks that repeat requests.
# Figures of a dictionary of made-up records.
NAMED, TOKENS_NEEDED = "share of records named", "tokens that honest records need"


@dataclass(frozen=True)
class IntervalEstimate:
    """A measured value with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class AttackFinding:
    """The result of one attack; it contains no record of the victim.

    Parameters
    ----------
    attack
        The name of the attack, for people.
    kind
        Its kind, for programs.
    adversary
        The party that attacks.
    measure
        What ``score`` is: a share of targets, an AUC or an R2.
    score
        The adversary's success, with its interval.
    blind
        The score of guessing without having seen anything.
    targets
        The number of records, links or rows attacked.
    knew
        What the adversary knows.
    figures
        Additional figures, by name.
    seconds
        The time the attack took in an audit; ignored when findings are compared.

    Examples
    --------
    >>> score = IntervalEstimate(0.75, 0.7, 0.8)
    >>> finding = AttackFinding("norm", AttackKind.GRADIENTS, Adversary.SECONDARY, "AUC", score, 0.5, 100, "gradients")
    >>> finding.advantage
    0.5
    """

    attack: str
    kind: AttackKind
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
        """The score on a scale from blind guessing (0) to certainty (1)."""
        return max(0.0, (self.score.value - self.blind) / (1.0 - self.blind)) if self.blind < 1 else 0.0


def binomial_estimate(hits: int, trials: int, level: float = CONFIDENCE_LEVEL) -> IntervalEstimate:
    """Return a success rate with its exact binomial interval (Clopper and Pearson).

    >>> print(binomial_estimate(3, 100))
    0.03 (0.00623 to 0.08518)
    """
    if not 0 <= hits <= trials or trials < 1:
        message = f"{hits} successes in {trials} trials; an attack needs at least one target"
        raise SettingError(message, code="no-targets", trials=trials)
    outside = (1.0 - level) / 2.0
    low = 0.0 if hits == 0 else float(beta.ppf(outside, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1.0 - outside, hits + 1, trials - hits))
    return IntervalEstimate(hits / trials, low, high)


def bootstrap_estimate(
    statistic: Callable[[Integers], float], n_rows: int, rng: np.random.Generator, resamples: int = RESAMPLES
) -> IntervalEstimate:
    """Return a statistic of some rows with its percentile bootstrap interval.

    >>> values = np.arange(100.0)
    >>> print(bootstrap_estimate(lambda rows: float(values[rows].mean()), 100, np.random.default_rng(0)))
    49.5 (44.23 to 54.73)
    """
    if n_rows < 1:
        raise InputError("there is no row to evaluate the attack on; let the adversary know fewer rows", code="no-rows")
    drawn = [statistic(rng.integers(0, n_rows, n_rows)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1.0 - CONFIDENCE_LEVEL) / 2.0, (1.0 + CONFIDENCE_LEVEL) / 2.0])
    return IntervalEstimate(statistic(np.arange(n_rows)), float(low), float(high))


def sample_targets(candidates: AnyArray, most: int | None, rng: np.random.Generator) -> Integers:
    """Return up to ``most`` of the candidates in ascending order, or all of them without a limit."""
    chosen = candidates if most is None or most >= len(candidates) else rng.choice(candidates, most, replace=False)
    return np.sort(np.asarray(chosen, dtype=np.int64))


def auc_estimate(score: Floats, positive: Flags, rng: np.random.Generator) -> IntervalEstimate:
    """Return the AUC with its bootstrap interval."""
    return bootstrap_estimate(lambda rows: roc_auc(score[rows], positive[rows]), len(score), rng)


def rarer_class_mask(labels: AnyArray) -> Flags:
    """Return a mask of the rarer of two classes.

    >>> rarer_class_mask(np.array([3, 3, 7])).tolist()
    [False, False, True]
    """
    kinds, kind, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(kinds) != 2:
        message = f"label inference needs two classes, but there are {len(kinds)}; use one class against the rest"
        raise InputError(message, code="not-binary", classes=len(kinds))
    return np.asarray(kind == int(counts[1] <= counts[0]))
