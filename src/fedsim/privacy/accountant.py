"""What many steps of Gaussian noise give away together, exactly (Dong, Roth, Su, "Gaussian differential privacy").

A step with noise sigma on values of sensitivity Delta is mu-GDP with mu = Delta / sigma. Steps, also those chosen by
what came before, compose to the root of the sum of squares, and mu-GDP is one Gaussian mechanism with sigma = 1 / mu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtr

from fedsim.privacy.checks import check_positive
from fedsim.privacy.dp import gaussian_delta, gaussian_epsilon, gaussian_sigma
from fedsim.whole import whole_number


@dataclass(frozen=True)
class Accountant:
    """What has been spent so far, as ``mu``.

    >>> spent = Accountant().after(sigma=4.0, sensitivity=1.0, steps=100)
    >>> spent.mu, round(spent.epsilon(delta=1e-5), 2)
    (2.5, 13.21)
    """

    mu: float = 0.0

    def after(self, *, sigma: float, sensitivity: float, steps: int = 1) -> Accountant:
        """The account after so many more steps."""
        check_positive(sigma=sigma, sensitivity=sensitivity)
        return Accountant(math.hypot(self.mu, math.sqrt(whole_number(steps, "steps", least=0)) * sensitivity / sigma))

    @property
    def most_auc(self) -> float:
        """No attack tells two neighbouring secrets, two labels say, apart with an AUC above this.

        >>> round(Accountant(mu=0.358).most_auc, 3)
        0.6
        """
        return float(ndtr(self.mu / math.sqrt(2.0)))

    def epsilon(self, *, delta: float) -> float:
        """The smallest epsilon for this delta; exact."""
        return 0.0 if self.mu == 0 else gaussian_epsilon(sigma=1.0, delta=delta, sensitivity=self.mu)

    def delta(self, *, epsilon: float) -> float:
        """The smallest delta for this epsilon; exact."""
        return 0.0 if self.mu == 0 else gaussian_delta(epsilon=epsilon, sigma=1.0, sensitivity=self.mu)


def noise_for_steps(*, epsilon: float, delta: float, sensitivity: float, steps: int) -> float:
    """The smallest noise of each step that keeps all of them together (epsilon, delta)-private.

    >>> sigma = noise_for_steps(epsilon=2.0, delta=1e-5, sensitivity=1.0, steps=50)
    >>> round(Accountant().after(sigma=sigma, sensitivity=1.0, steps=50).epsilon(delta=1e-5), 6)
    2.0
    """
    together = gaussian_sigma(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    return math.sqrt(whole_number(steps, "steps", least=1)) * together
