"""Differential privacy of noise on similarities (paper, Theorem 1).

The paper's sensitivity does not follow from its own definition; it is included to reproduce its figures. Theorem 1
states the smallest epsilon that could ever be proved, not one that holds;
:func:`fedsim.privacy.mechanisms.gaussian_epsilon` returns the one that holds (Balle and Wang, 2018).
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr

from fedsim.errors import SettingError
from fedsim.validation import validate_positive

PAPER_DELTA = 1e-5  # in the paper's figures


def paper_sensitivity(*, records: int, mean: float, spread: float) -> float:
    """Return the paper's Delta_G: ``records`` times the larger of |1 + mean| / spread and |-1 + mean| / spread.

    >>> round(paper_sensitivity(records=141_050, mean=-46237.78, spread=21178.86))
    307948
    """
    validate_positive(records=records, spread=spread)
    return records * max(abs(1 + mean), abs(mean - 1)) / spread


def link_sensitivity(*, links: int, changed_bits: int, spread: float) -> float:
    """Return how far all similarities together move (L2) when ``changed_bits`` bits of one partner's filter change.

    This follows from the definition. Each of the partner's ``links`` similarities is a distance divided by the spread
    and changes by at most ``changed_bits / spread``; the mean is subtracted on both sides and cancels. Independent
    changes add up by squares, hence the square root where the paper has the number itself. Links and scale are taken as
    given: which partners a record has also depends on the filter, and noise on similarities does not hide that.

    >>> round(link_sensitivity(links=141_050, changed_bits=1, spread=21178.86), 5)
    0.01773
    """
    validate_positive(links=links, changed_bits=changed_bits, spread=spread)
    return math.sqrt(links) * changed_bits / spread


def largest_delta(epsilon: float) -> float:
    """Return the delta below which Theorem 1 holds at this epsilon.

    Noise of the theorem's least scale, the sensitivity divided by sqrt(2 epsilon), is private for exactly this delta.
    The paper requires a delta below 1/2 - exp(-3 epsilon) / sqrt(2 pi epsilon) instead. From epsilon .3 on that is too
    lenient: at epsilon 1 it admits .48, but noise of .6 times the sensitivity is (1, .386)-private already, where
    Theorem 1 asks for .71 times. Below .3 it is needlessly strict; below .19 no delta at all meets it.

    >>> round(largest_delta(1.0), 4)
    0.2862
    """
    validate_positive(epsilon=epsilon)
    return 0.5 - math.exp(epsilon + float(log_ndtr(-math.sqrt(2 * epsilon))))


def least_epsilon(*, sigma: float, sensitivity: float, delta: float) -> float:
    """Return the epsilon below which nothing can be proved (Theorem 1): a necessary condition, not a guarantee.

    >>> f"{least_epsilon(sigma=4.0, sensitivity=307948.0, delta=1e-5):.3e}"
    '2.963e+09'
    """
    validate_positive(sigma=sigma, sensitivity=sensitivity)
    epsilon = (sensitivity / sigma) ** 2 / 2
    limit = largest_delta(epsilon)
    if not 0 < delta < limit:
        message = (
            f"delta={delta}, but at epsilon {epsilon:.4g} Theorem 1 holds for a delta above 0 and below {limit:.4g}"
        )
        raise SettingError(f"{message}; choose such a delta, or less noise", code="delta-out-of-range", limit=limit)
    return epsilon
