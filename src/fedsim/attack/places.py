"""The primary locates a partner's records: common ground of the attacks on places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from fedsim.attack.finding import Adversary, Finding, median_of, share
from fedsim.privacy.plane import metres_between, middle, to_metres
from fedsim.types import Floats, Integers


@dataclass(frozen=True, eq=False, repr=False)
class Truth:
    """The partner's true places (latitude, longitude in degrees), against which guesses are held.

    A record counts as located if the guess is within ``radius`` metres.
    """

    places: Floats
    radius: float = 100.0


@dataclass(frozen=True, eq=False, repr=False)
class Guesses:
    """What an attack says: a place in degrees for each of these partner rows."""

    attack: str
    knew: str
    row: Integers
    places: Floats


def located(guesses: Guesses, truth: Truth, own: Floats, rng: np.random.Generator) -> Finding:
    """What guesses are worth; blind guessing names the middle of the primary's own records for everyone."""
    target = truth.places[guesses.row]
    error = metres_between(guesses.places, target)
    blind = metres_between(np.broadcast_to(middle(own), target.shape), target)
    median, nearest = median_of(error, rng), _nearest(truth.places, guesses.row)
    figures = {
        "median error in metres": median.value,
        "median error, low": median.low,
        "median error, high": median.high,
        "error at the 90th percentile in metres": float(np.quantile(error, 0.9)),
        "median error of blind guessing in metres": float(np.median(blind)),
        "median distance to the nearest other record in metres": nearest,
    }
    hits, by_chance = int((error <= truth.radius).sum()), float((blind <= truth.radius).mean())
    return Finding(
        guesses.attack,
        Adversary.PRIMARY,
        f"share of partner records located within {truth.radius:g} m",
        share(hits, len(error)),
        by_chance,
        len(error),
        guesses.knew,
        figures,
    )


def _nearest(places: Floats, row: Integers) -> float:
    """Median distance of these records to the nearest record at another place."""
    points = np.unique(to_metres(places, middle(places)), axis=0)
    if len(points) < 2:
        return float("nan")
    return float(np.median(cKDTree(points).query(to_metres(places[row], middle(places)), k=2)[0][:, 1]))
