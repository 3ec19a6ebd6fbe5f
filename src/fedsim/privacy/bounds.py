"""Bounds on the success of the greedy attack, given the noise on similarities (paper, Theorem 2).

``spread`` is the standard deviation of the distances (sigma_0 of the paper), ``sigma`` that of the noise on the scaled
similarities, ``tau`` the bound on the success of the greedy attack on one record. The bound speaks of distances that
are whole numbers (Hamming): for kilometres or degrees it changes with the unit and means nothing.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfinv

from fedsim.errors import SettingError
from fedsim.validation import validate_integer


def success_bound(sigma: float, spread: float, *, queries: int = 1) -> float:
    """Upper bound tau on the attack's success; without noise it is one.

    ``queries`` is |Q|, the links of one partner that the greedy attacker uses. All of their distances must be right,
    so more links lower its bound; an attacker who weighs links instead of guessing distances gains by each.

    >>> f"{success_bound(sigma=4.0, spread=21178.86):.4e}"
    '1.9417e-05'
    >>> f"{success_bound(sigma=4.0, spread=21178.86, queries=2):.4e}"
    '3.7700e-10'
    """
    _check_spread(spread)
    check_sigma(sigma)
    queries = validate_integer(queries, "queries", least=1)
    if sigma == 0:
        return 1.0
    return math.erf(math.hypot(1.0, 1.0 / sigma) / (2.0 * math.sqrt(2.0) * spread)) ** queries


def expected_disclosed(records: int, tau: float) -> float:
    """How many of the partner's ``records`` filters the greedy attack is expected to disclose at most.

    >>> round(expected_disclosed(records=19_479, tau=1.9417e-05), 3)
    0.378
    """
    if not 0 <= tau <= 1:
        raise SettingError(f"tau={tau}; a probability from 0 to 1 is needed")
    return validate_integer(records, "records", least=0) * tau


def sigma_for_bound(tau: float, spread: float) -> float:
    """Smallest noise scale sigma whose success bound is ``tau``.

    >>> round(sigma_for_bound(tau=0.01, spread=21178.86), 6)
    0.001884
    """
    _check_spread(spread)
    if not 0 < tau <= 1:
        raise SettingError(f"tau={tau}; a probability above 0 and up to 1 is needed")
    ratio = 2.0 * math.sqrt(2.0) * spread * float(erfinv(tau))  # sqrt(sigma^2 + 1) / sigma
    if ratio <= 1:
        raise SettingError(
            f"tau={tau} cannot be reached: with spread {spread:g} no noise brings the bound below its floor "
            f"{lowest_bound(spread):.4e}; ask for a larger tau, give sigma instead, or blur places (longer filters only lower "
            "the number, and protect no better)"
        )
    return 1.0 / math.sqrt((ratio - 1.0) * (ratio + 1.0))


def lowest_bound(spread: float) -> float:
    """The bound under endless noise; no tau at or below it can be promised.

    >>> f"{lowest_bound(spread=21178.86):.4e}"
    '1.8837e-05'
    """
    _check_spread(spread)
    return math.erf(1.0 / (2.0 * math.sqrt(2.0) * spread))


def check_sigma(sigma: float) -> None:
    """A noise scale is a finite number, and not negative."""
    if not (isinstance(sigma, int | float | np.number) and math.isfinite(sigma) and sigma >= 0):
        raise SettingError(f"sigma={sigma}; the noise scale is a number of at least 0")


def _check_spread(spread: float) -> None:
    if not (math.isfinite(spread) and spread > 0):
        raise SettingError(f"spread={spread}; the standard deviation of the distances is a number above 0")
