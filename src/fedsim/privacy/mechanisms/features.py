"""Noise on features before any network sees them: whatever is learnt from them later can give no more away."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsim.privacy.accountant import Accountant
from fedsim.privacy.checks import check_positive
from fedsim.types import Floats, Integers
from fedsim.whole import whole_number

WIDEST = 3.0  # deviations from the mean; what lies beyond counts as lying there


@dataclass(frozen=True)
class NoisyFeatures:
    """Numbers within three deviations of their column's mean, with Gaussian noise of ``noise`` deviations on each.

    A category stays with the chance that leaves as much of it as noise leaves of a number, and is any of them else.
    The noise is drawn once for a table in a job: nothing averages it away, however often a record is used there.
    """

    noise: float

    def __post_init__(self) -> None:
        check_positive(noise=self.noise)

    @property
    def kept(self) -> float:
        """Chance that a category stays.

        >>> round(NoisyFeatures(noise=3.0).kept, 4)
        0.3162
        """
        return 1.0 / math.sqrt(1.0 + self.noise**2)

    @property
    def spent(self) -> Accountant:
        """What one number of one record gives away, once and for all."""
        return Accountant().after(sigma=self.noise, sensitivity=2.0 * WIDEST)

    def category_epsilon(self, values: int) -> float:
        """Differential privacy of a category with so many possible values: the more there are, the less it hides.

        >>> round(NoisyFeatures(noise=4.0).category_epsilon(2), 3)
        0.495
        """
        drawn = 1.0 - self.kept
        return math.log1p(whole_number(values, "values", least=2) * self.kept / drawn) if drawn > 0 else math.inf

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        few, some, many = (f"{self.category_epsilon(values):.3g}" for values in (2, 10, 100))
        return (
            "Given the mean and deviation of its column, whatever is computed from a record, and however often, one "
            f"of its numbers is ({self.spent.epsilon(delta=1e-5):.3g}, 1e-5)-private ({self.spent.mu:.3g}-GDP), d "
            f"numbers together {self.spent.mu:.3g} * sqrt(d)-GDP; a category is kept with a chance of {self.kept:.0%} "
            f"and drawn at random else, which is {few}-private with 2 possible values, {some} with 10 and {many} with "
            "100; drawing the noise afresh spends the same again."
        )

    def apply(self, values: Floats, rng: np.random.Generator) -> Floats:
        """Noisy numbers, a column each."""
        return self.laid_on(values, rng.normal(size=values.shape))

    def laid_on(self, values: NDArray[np.floating], standard: Floats) -> Floats:
        """The same with noise that was drawn before, of deviation 1."""
        numbers = np.asarray(values, dtype=np.float64)
        middle, deviation = numbers.mean(axis=0), numbers.std(axis=0)
        scaled = np.clip((numbers - middle) / np.where(deviation > 0, deviation, 1.0), -WIDEST, WIDEST)
        return np.asarray(middle + deviation * (scaled + self.noise * standard))

    def replaced(self, codes: Integers, cardinalities: tuple[int, ...], coins: Floats) -> Integers:
        """Noisy categories, from two coins in [0, 1) for each, (n, e) and (n, e, 2)."""
        drawn = (coins[..., 1] * np.asarray(cardinalities, dtype=np.int64)).astype(np.int64)
        return np.where(coins[..., 0] < self.kept, codes, drawn)
