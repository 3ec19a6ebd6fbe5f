"""The link-graph attack: that a record is among the top K says where it is; no similarity is looked at.

The primary groups its links by partner row and takes the middle of its own records that name it. Noise on the
similarities cannot help against it. Lists that keep the order of the true distances give the rank away as well, and
random links among the true ones only change which middle is the right one to take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsim.attack.finding import Finding, timed
from fedsim.attack.places import Guesses, Truth, located
from fedsim.attack.view import NamedPartners, PrimaryView
from fedsim.privacy.plane import checked_places, middle, to_metres, to_places
from fedsim.types import Floats

ROUNDS = 30  # until the middle of the nearest half no longer moves


def centroids(named: NamedPartners, own: Floats) -> Floats:
    """Middle of the records that name each partner, (n, 2) -> (J, 2).

    >>> named = NamedPartners.of(PrimaryView(np.array([[0], [0], [1]]), np.zeros((3, 1))))
    >>> centroids(named, np.array([[0.0, 0.0], [0.0, 2.0], [5.0, 5.0]])).tolist()
    [[0.0, 1.0], [5.0, 5.0]]
    """
    return named.means(own[named.record])


def ranked_centroids(named: NamedPartners, own: Floats) -> Floats:
    """The same, where a record counts by the inverse square of the place it gives the partner in its list."""
    weight: Floats = (1.0 + named.rank[:, None].astype(np.float64)) ** -2.0
    return named.sums(weight * own[named.record]) / named.sums(weight)


def robust_centroids(named: NamedPartners, own: Floats) -> Floats:
    """The same for lists with dummies: records far from most others that name the partner hardly count."""
    places = own[named.record]
    points = np.column_stack([named.medians(column) for column in places.T])
    for _ in range(ROUNDS):
        away = np.hypot(*(places - points[named.owner]).T)
        reach = np.maximum(named.medians(away), 1e-9)
        weight = ((1.0 + (away / reach[named.owner]) ** 2) ** -2.0)[:, None]
        points = named.sums(weight * places) / named.sums(weight)
    return points


@dataclass(frozen=True)
class Way:
    """One way to place a partner among the records that name it."""

    attack: str
    knew: str
    placed: Callable[[NamedPartners, Floats], Floats]


_MEMBERS = "its own places and which of its records name which partner row; no similarity"
BY_MIDDLE = Way("link graph", _MEMBERS, centroids)
BY_RANK = Way("link graph with ranks", f"{_MEMBERS}, but the order of the lists", ranked_centroids)
BY_CROWD = Way("link graph with dummies", f"{_MEMBERS}, and that some links are dummies", robust_centroids)


@timed
def link_graph_attack(
    view: PrimaryView, own: Floats, truth: Truth, *, rng: np.random.Generator, way: Way = BY_MIDDLE
) -> Finding:
    """Locate every named partner by the records that name it; ``own`` holds the primary's places in degrees."""
    named, origin = NamedPartners.of(view), middle(checked_places(own))
    guess = to_places(way.placed(named, to_metres(own, origin)), origin)
    return located(Guesses(way.attack, way.knew, named.row, guess), truth, own, rng)
