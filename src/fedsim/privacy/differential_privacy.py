"""Differential privacy of Gaussian noise, and its composition over steps (paper, Theorem 1; Gaussian DP)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from fedsim.errors import SettingError
from fedsim.validation import check_positive, validate_integer

# Differential privacy of noise on similarities: what the paper's Theorem 1 says, and the Gaussian mechanism itself
#
# The paper's sensitivity does not follow from its own definition; it is here to reproduce its figures. Theorem 1 gives
# the least epsilon that could ever be proved, not one that holds; :func:`gaussian_epsilon` gives the one that holds
# (Balle and Wang, 2018).


LOG_SIGMA_RANGE = (math.log(1e-9), math.log(1e12))  # noise for one unit of sensitivity, for any epsilon of use


def paper_sensitivity(*, records: int, mean: float, spread: float) -> float:
    """The paper's Delta_G: ``records`` times the larger of |1 + mean| / spread and |-1 + mean| / spread.

    >>> round(paper_sensitivity(records=141_050, mean=-46237.78, spread=21178.86))
    307948
    """
    check_positive(records=records, spread=spread)
    return records * max(abs(1 + mean), abs(mean - 1)) / spread


def link_sensitivity(*, links: int, changed_bits: int, spread: float) -> float:
    """How far all similarities together move (L2) when one partner's filter changes by ``changed_bits`` bits.

    This does follow from the definition. Each of the ``links`` similarities that name the partner is a distance over
    the spread, and moves by at most ``changed_bits / spread``; the mean is subtracted on both sides and cancels;
    independent changes add up by squares, hence the root where the paper has the number itself. It takes the links and
    the scale as given: which partners a record has also depends on the filter, and no noise on similarities hides that.

    >>> round(link_sensitivity(links=141_050, changed_bits=1, spread=21178.86), 5)
    0.01773
    """
    check_positive(links=links, changed_bits=changed_bits, spread=spread)
    return math.sqrt(links) * changed_bits / spread


def least_epsilon(*, sigma: float, sensitivity: float) -> float:
    """No epsilon below this can be proved for noise of this scale (Theorem 1): a necessary condition, no guarantee.

    >>> f"{least_epsilon(sigma=4.0, sensitivity=307948.0):.3e}"
    '2.963e+09'
    """
    check_positive(sigma=sigma, sensitivity=sensitivity)
    return (sensitivity / sigma) ** 2 / 2


def classic_gaussian_sigma(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """Noise that is enough for (epsilon, delta)-privacy by the classic bound of the appendix; epsilon below 1 only.

    :func:`gaussian_sigma` is the exact amount, always less and for any epsilon.

    >>> round(classic_gaussian_sigma(epsilon=0.5, delta=1e-5, sensitivity=1.0), 3)
    9.69
    """
    check_positive(sensitivity=sensitivity)
    _check_delta(delta)
    if not 0 < epsilon < 1:
        raise SettingError(
            f"epsilon={epsilon}; the appendix's condition needs one between 0 and 1; use the exact noise"
        )
    return sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def gaussian_delta(*, epsilon: float, sigma: float, sensitivity: float) -> float:
    """The delta for which noise of this scale is (epsilon, delta)-private; exact."""
    check_positive(sigma=sigma, sensitivity=sensitivity)
    half, tilt = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return float(ndtr(half - tilt) - math.exp(epsilon + float(log_ndtr(-half - tilt))))


def gaussian_sigma(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """Smallest noise scale that is (epsilon, delta)-private.

    >>> round(gaussian_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0), 5)
    3.73063
    """
    check_positive(epsilon=epsilon, sensitivity=sensitivity)
    _check_delta(delta)

    def excess(log_sigma: float) -> float:
        return gaussian_delta(epsilon=epsilon, sigma=math.exp(log_sigma), sensitivity=1.0) - delta

    return sensitivity * math.exp(brentq(excess, *LOG_SIGMA_RANGE, xtol=1e-13))


def gaussian_epsilon(*, sigma: float, delta: float, sensitivity: float) -> float:
    """Smallest epsilon for which noise of this scale is (epsilon, delta)-private; zero if none is needed.

    >>> round(gaussian_epsilon(sigma=3.73063, delta=1e-5, sensitivity=1.0), 4)
    1.0
    """
    check_positive(sigma=sigma, sensitivity=sensitivity)
    _check_delta(delta)

    def excess(epsilon: float) -> float:
        return gaussian_delta(epsilon=epsilon, sigma=sigma, sensitivity=sensitivity) - delta

    if excess(0.0) <= 0:
        return 0.0
    ratio = sensitivity / sigma
    most = ratio**2 / 2 + ratio * math.sqrt(2 * math.log(1 / delta))  # enough by the classic tail bound
    return float(brentq(excess, 0.0, most, xtol=1e-12))


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise SettingError(f"delta={delta}; a probability between 0 and 1 is needed")


# What many steps of Gaussian noise give away together, exactly (Dong, Roth, Su, "Gaussian differential privacy")
#
# A step with noise sigma on values of sensitivity Delta is mu-GDP with mu = Delta / sigma. Steps, also those chosen by
# what came before, compose to the root of the sum of squares, and mu-GDP is one Gaussian mechanism with sigma = 1 / mu.


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
        return Accountant(
            math.hypot(self.mu, math.sqrt(validate_integer(steps, "steps", least=0)) * sensitivity / sigma)
        )

    @property
    def max_attack_auc(self) -> float:
        """No attack tells two neighbouring secrets, two labels say, apart with an AUC above this.

        >>> round(Accountant(mu=0.358).max_attack_auc, 3)
        0.6
        """
        return float(ndtr(self.mu / math.sqrt(2.0)))

    def epsilon(self, *, delta: float) -> float:
        """The smallest epsilon for this delta; exact."""
        return 0.0 if self.mu == 0 else gaussian_epsilon(sigma=1.0, delta=delta, sensitivity=self.mu)

    def delta(self, *, epsilon: float) -> float:
        """The smallest delta for this epsilon; exact."""
        return 0.0 if self.mu == 0 else gaussian_delta(epsilon=epsilon, sigma=1.0, sensitivity=self.mu)


def sigma_for_steps(*, epsilon: float, delta: float, sensitivity: float, steps: int) -> float:
    """The smallest noise of each step that keeps all of them together (epsilon, delta)-private.

    >>> sigma = sigma_for_steps(epsilon=2.0, delta=1e-5, sensitivity=1.0, steps=50)
    >>> round(Accountant().after(sigma=sigma, sensitivity=1.0, steps=50).epsilon(delta=1e-5), 6)
    2.0
    """
    together = gaussian_sigma(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    return math.sqrt(validate_integer(steps, "steps", least=1)) * together
