"""The most that a partner's records can tell about the neighbourhood a primary record stands in.

Every neighbourhood has a signal, a standard normal number. The partner's records stand around their neighbourhood and
show its signal with errors; whoever is linked to them sees distances and what they show, but not whose they are. Bayes'
rule then gives the best estimate of the signal; there is nothing to train, so it has no error of training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from fedsim.types import Floats, Integers

GRID = np.linspace(-4.5, 4.5, 91)
PAIRS_PER_BIN = 400


@dataclass(frozen=True, eq=False)
class Sights:
    """A partner's records: whose they are (``home``), their ``place``, and the signal as ``seen`` with error ``blur``.

    ``blur`` is a variance, the signal's own being one.
    """

    home: Integers
    place: Floats
    seen: Floats
    blur: float


def best_estimate(centres: Floats, sights: Sights, k: int) -> Floats:
    """Mean of each neighbourhood's signal, given distances and sights of the K records nearest to its centre.

    How likely a record at some distance is to be of this neighbourhood is counted over the whole city; records of
    other neighbourhoods count as strangers to each other, although some share one.
    """
    distance, near = KDTree(sights.place).query(centres, k=range(1, k + 1))
    chance = _chance_of_home(distance, sights.home[near] == np.arange(len(centres))[:, np.newaxis])
    weight = np.tile(_log_normal(GRID, 1.0), (len(centres), 1))
    for column in range(k):
        seen, own = sights.seen[near[:, column], np.newaxis], chance[:, column, np.newaxis]
        here = np.exp(_log_normal(seen - GRID, sights.blur))
        elsewhere = np.exp(_log_normal(seen, 1.0 + sights.blur))
        weight += np.log(own * here + (1.0 - own) * elsewhere + 1e-300)
    weight = np.exp(weight - weight.max(axis=1, keepdims=True))
    return np.asarray(weight @ GRID / weight.sum(axis=1), dtype=np.float64)


def reach(signal: Floats, estimate: Floats) -> float:
    """Share of the signals' variance that the estimate tells; the variance is one."""
    return max(0.0, 1.0 - float(np.mean((signal - estimate) ** 2)))


def _chance_of_home(distance: Floats, home: NDArray[np.bool_]) -> Floats:
    chance, order = np.empty(distance.size), np.argsort(distance, axis=None)
    for pairs in np.array_split(order, max(1, distance.size // PAIRS_PER_BIN)):
        chance[pairs] = home.ravel()[pairs].mean()
    return chance.reshape(distance.shape)


def _log_normal(deviation: Floats, variance: float) -> Floats:
    return np.asarray(-0.5 * deviation**2 / variance - 0.5 * np.log(variance))
