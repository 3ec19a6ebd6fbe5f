"""The link-graph attack, made consistent: who is *not* on a list says as much as who is.

Starting from the middles of the link graph, partners move until every record's K nearest are those of its list: one
that is listed but too far is drawn nearer, one that is near but not listed is pushed away. No similarity is looked at.
Lists with dummies mislead it; the link graph's robust middle does better on those.

Letters: n distinct own places, K partners, J named partners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from fedsim.attack.finding import Finding, timed
from fedsim.attack.linkgraph import centroids
from fedsim.attack.places import Guesses, Truth, located
from fedsim.attack.view import NamedPartners, PrimaryView
from fedsim.privacy.plane import checked_places, middle, to_metres, to_places
from fedsim.types import Floats, Integers

ROUNDS = 150
STEP = 0.5  # of the way to where a list would be right


@timed
def membership_attack(
    view: PrimaryView, own: Floats, truth: Truth, *, rng: np.random.Generator, rounds: int = ROUNDS
) -> Finding:
    """Locate every named partner by who lists it and who does not; ``own`` holds the primary's places in degrees."""
    named, origin = NamedPartners.of(view), middle(checked_places(own))
    metres = to_metres(own, origin)
    _, first = np.unique(metres.round(2), axis=0, return_index=True)  # equal places have equal lists
    lists = _Lists.of(view.partner[first], metres[first], named)
    points = centroids(named, metres)
    for _ in range(rounds):
        points = points + STEP * lists.pulls(points)
    knew = "its own places, and which of its records name which partner row; no similarity"
    guesses = Guesses("link graph made consistent", knew, named.row, to_places(points, origin))
    return located(guesses, truth, own, rng)


@dataclass(frozen=True, eq=False, repr=False)
class _Lists:
    """Every own place with its list, partners numbered by their place among the named."""

    own: Floats  # (n, 2)
    place: Integers  # (pairs,)
    partner: Integers  # (pairs,)
    length: Integers  # (n,), of each list
    n_partners: int

    @classmethod
    def of(cls, partner: Integers, own: Floats, named: NamedPartners) -> _Lists:
        place, column = np.nonzero(partner >= 0)
        number = np.searchsorted(named.row, partner[place, column])
        return cls(own, place, number, np.bincount(place, minlength=len(own)), len(named))

    def pulls(self, points: Floats) -> Floats:
        """Mean of what all lists ask of each partner, (J, 2) -> (J, 2)."""
        most = max(1, int(self.length.max()))
        away, near = cKDTree(points).query(self.own, k=np.arange(1, most + 1))  # (n, K)
        reach = away[np.arange(len(away)), np.maximum(self.length - 1, 0)]  # (n,), the K-th distance as it stands
        inside = np.arange(most) < self.length[:, None]
        place, column = np.nonzero(inside & ~self._listed(near))
        partner = np.concatenate([self.partner, near[place, column]])
        place = np.concatenate([self.place, place])
        apart = points[partner] - self.own[place]
        distance = np.maximum(np.hypot(*apart.T), 1e-6)
        excess = distance - reach[place]  # above zero: listed and too far; below: perhaps near and not listed
        excess[: len(self.place)] = np.maximum(excess[: len(self.place)], 0.0)
        asked = np.bincount(partner, weights=excess != 0.0, minlength=self.n_partners)
        moves = -apart * (excess / distance)[:, None]
        total = np.column_stack([np.bincount(partner, weights=move, minlength=self.n_partners) for move in moves.T])
        return np.asarray(total / np.maximum(asked, 1.0)[:, None])

    def _listed(self, near: Integers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Whether each of these partners is on the list of its place."""
        pairs = np.sort(self.place * self.n_partners + self.partner)
        wanted = np.arange(len(near))[:, None] * self.n_partners + near
        found = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
        return np.asarray(pairs[found] == wanted)
