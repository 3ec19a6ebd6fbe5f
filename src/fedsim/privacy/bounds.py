"""Bounds on the success of the greedy attack, given the noise on similarities (paper, Theorem 2).

``spread`` is the standard deviation of the distances (sigma_0 of the paper), ``sigma`` that of the noise on the scaled
similarities, ``tau`` the bound on the success of the greedy attack on one record. The bound holds for integer distances
(Hamming); for kilometres or degrees it would depend on the unit and mean nothing.

Dice distances of filters with a and b ones are multiples of the step 2 / (a + b): whoever knows a and b and guesses a
distance exactly knows how many ones the filters share. With ``spread`` in such steps the bound holds for Dice, too. The
step differs from pair to pair, so the mean step is used: as the error function is concave, the bound then holds for the
*average* link; the filters of short texts, with longer steps, are guessed more often than that.
"""

import math

from scipy.special import erfinv

from fedsim.errors import SettingError
from fedsim.validation import validate_integer, validate_number, validate_positive


def success_bound(sigma: float, spread: float, *, queries: int = 1) -> float:
    """Return the upper bound tau on the success of the attack; it is one without noise.

    ``queries`` is |Q|, the number of links of one partner that the greedy attacker uses. It needs all of their
    distances right, so more links lower its bound; an attacker who weighs links gains with every link instead.

    >>> f"{success_bound(sigma=4.0, spread=21178.86):.4e}"
    '1.9417e-05'
    >>> f"{success_bound(sigma=4.0, spread=21178.86, queries=2):.4e}"
    '3.7700e-10'
    """
    validate_positive(spread=spread)
    check_sigma(sigma)
    queries = validate_integer(queries, "queries", least=1)
    if sigma == 0:
        return 1.0
    return math.erf(math.hypot(1.0, 1.0 / sigma) / (2.0 * math.sqrt(2.0) * spread)) ** queries


def sigma_for_bound(tau: float, spread: float) -> float:
    """Return the smallest noise scale sigma whose success bound is ``tau``.

    >>> round(sigma_for_bound(tau=0.01, spread=21178.86), 6)
    0.001884
    """
    validate_positive(spread=spread)
    if not 0 < tau <= 1:
        raise SettingError(f"tau={tau}; choose a probability above 0 and at most 1", code="bad-tau", tau=tau)
    ratio = 2.0 * math.sqrt(2.0) * spread * float(erfinv(tau))  # sqrt(sigma^2 + 1) / sigma
    if ratio <= 1:
        limit = lowest_bound(spread)
        message = (
            f"tau={tau}, but with spread {spread:g} no noise brings the bound below {limit:.4e}; choose a larger tau, "
            "give sigma instead, or displace places (longer filters lower the number but do not protect better)"
        )
        raise SettingError(message, code="tau-too-small", tau=tau, limit=limit)
    return 1.0 / math.sqrt((ratio - 1.0) * (ratio + 1.0))


def lowest_bound(spread: float) -> float:
    """Return the bound under infinite noise; no tau at or below it can be guaranteed.

    >>> f"{lowest_bound(spread=21178.86):.4e}"
    '1.8837e-05'
    """
    validate_positive(spread=spread)
    return math.erf(1.0 / (2.0 * math.sqrt(2.0) * spread))


def check_sigma(sigma: float) -> None:
    """Check that a noise scale is a finite number of at least zero."""
    validate_number(sigma, "sigma", least=0)
