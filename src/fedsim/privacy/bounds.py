"""Success of attacks on one noisy similarity: the bound of the paper's Theorem 2, and exact values for given links.

``spread`` is the standard deviation of the distances (sigma_0 in the paper), ``sigma`` the standard deviation of the
noise on the scaled similarities, and ``tau`` the bound on the success of the greedy attack on one record. The bound
holds for integer distances (Hamming); for kilometres or degrees it would depend on the unit and be meaningless. It
assumes normal similarities and an attacker who assumes them, too. Distances of real tables have peaks, such as those of
equal names, and an attacker who knows where they are guesses more: :func:`bayes_success` is what the best attacker
reaches who knows how often each distance occurs, but nothing else about a pair.

There is no such formula for distances whose step differs from pair to pair. Dice distances between filters with a and b
ones are multiples of 2 / (a + b), and an attacker who knows a and b and guesses a distance exactly knows how many ones
the filters share. For such distances, the success of the attack is computed from the links themselves
(:func:`expected_success`). This requires no assumption about the distribution of distances, but it holds for these
links on average, not for each of them.
"""

import math

import numpy as np
from scipy.special import erfinv, ndtr

from fedsim.errors import SettingError
from fedsim.types import Floats
from fedsim.validation import validate_integer, validate_number, validate_positive


def success_bound(sigma: float, spread: float, *, queries: int = 1) -> float:
    """Return the upper bound tau on the success of the greedy attack (paper, Theorem 2); without noise it is one.

    It holds if the scaled similarities are standard normal and the attacker guesses the most likely distance under that
    assumption. For the distances at hand, compare it with :func:`bayes_success`.

    ``queries`` is |Q|, the number of links of one partner that the greedy attacker uses. The attacker must guess all of
    their distances correctly, so more links lower the bound; an attacker who weights links gains with every link
    instead.

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
    _check_tau(tau)
    ratio = 2.0 * math.sqrt(2.0) * spread * float(erfinv(tau))  # sqrt(sigma^2 + 1) / sigma
    if ratio <= 1:
        raise _unreachable_tau(tau, lowest_bound(spread), f"spread {spread:g}")
    return 1.0 / math.sqrt((ratio - 1.0) * (ratio + 1.0))


def lowest_bound(spread: float) -> float:
    """Return the bound under infinite noise; no tau at or below it can be guaranteed.

    >>> f"{lowest_bound(spread=21178.86):.4e}"
    '1.8837e-05'
    """
    validate_positive(spread=spread)
    return math.erf(1.0 / (2.0 * math.sqrt(2.0) * spread))


def bayes_success(sigma: float, spread: float, distance: Floats) -> float:
    """Return the exact share of distances that the best attacker guesses who knows the histogram of the distances.

    After a noisy similarity s, each distance d has a probability proportional to its frequency times the density of the
    noise between d and s, and the attacker guesses the most probable one. No guess from one similarity is right more
    often without knowledge about the pair itself, so this bounds the greedy attack for any distribution of distances.

    Parameters
    ----------
    sigma
        Standard deviation of the noise on the scaled similarities.
    spread
        Standard deviation of the distances of the training links, by which similarities are scaled.
    distance
        The distances of all links, of any shape.

    Examples
    --------
    >>> distance = np.array([0.0] * 7 + [40.0, 50.0, 60.0])
    >>> round(bayes_success(2.0, distance.std(), distance), 3), round(success_bound(2.0, distance.std()), 3)
    (0.708, 0.019)
    """
    validate_positive(spread=spread)
    check_sigma(sigma)
    value, count = np.unique(np.asarray(distance) / spread, return_counts=True)
    if sigma == 0 or len(value) == 1:
        return 1.0
    share = count / count.sum()
    # Up to what all distances have in common, sigma^2 times the log posterior of a distance is a line in s.
    height = sigma**2 * np.log(share) - value**2 / 2
    best, start = [0], [-math.inf]  # the upper envelope: distances that are guessed at all, each from its start on
    for place in range(1, len(value)):
        while True:
            last = best[-1]
            crossing = (height[last] - height[place]) / (value[place] - value[last])
            if crossing > start[-1]:
                break
            best.pop()
            start.pop()
        best.append(place)
        start.append(crossing)
    low, high = np.array(start), np.array([*start[1:], math.inf])
    right = ndtr((high - value[best]) / sigma) - ndtr((low - value[best]) / sigma)
    return float(share[best] @ right)


def expected_success(sigma: float, similarity: Floats, half_step: Floats) -> float:
    """Return the expected share of links whose distance the greedy attacker guesses exactly.

    ``similarity`` holds scaled similarities without noise, ``half_step`` half the step between possible distances of
    each pair on the same scale. The attacker knows both scale and step. The result is the better of two attackers: one
    who assumes standard normal similarities, as in the paper, and one who ignores the noise.

    >>> round(expected_success(0.5, np.array([-1.0, 0.0, 1.0]), np.full(3, 0.05)), 3)
    0.092
    """
    if sigma == 0:
        return 1.0
    shrink = 1.0 + sigma**2
    low, high = (((similarity + step) * shrink - similarity) / sigma for step in (-half_step, half_step))
    naive = ndtr(half_step / sigma) - ndtr(-half_step / sigma)
    return float(max((ndtr(high) - ndtr(low)).mean(), naive.mean()))


def sigma_for_expected_success(tau: float, similarity: Floats, half_step: Floats) -> float:
    """Return the smallest noise scale, to a quarter of a percent, with an expected success of at most ``tau``.

    More noise does not always help: an attacker who guesses the mean is right whenever the distance is the mean.

    >>> links = np.linspace(-2, 2, 101), np.full(101, 0.05)
    >>> round(sigma_for_expected_success(0.05, *links), 2)
    0.93
    """
    _check_tau(tau)
    grid = 1e-6 * 1.25 ** np.arange(130)  # up to 4 million
    reached = [expected_success(sigma, similarity, half_step) for sigma in grid]
    place = next((place for place, success in enumerate(reached) if success <= tau), None)
    if place is None:
        raise _unreachable_tau(tau, min(reached), "these links")
    low, high = grid[max(0, place - 1)], grid[place]
    for _ in range(8):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if expected_success(middle, similarity, half_step) <= tau else (middle, high)
    return float(high)


def _check_tau(tau: float) -> None:
    if not 0 < tau <= 1:
        raise SettingError(f"tau={tau}; choose a probability above 0 and at most 1", code="bad-tau", tau=tau)


def _unreachable_tau(tau: float, limit: float, where: str) -> SettingError:
    message = (
        f"tau={tau}, but with {where} no noise brings the bound below {limit:.4e}; choose a larger tau, give sigma "
        "instead, or displace places (longer filters lower the number but do not protect better)"
    )
    return SettingError(message, code="tau-too-small", tau=tau, limit=limit)


def check_sigma(sigma: float) -> None:
    """Check that a noise scale is a finite number of at least zero."""
    validate_number(sigma, "sigma", least=0)
