"""The attack the paper leaves open (appendix B, "non-greedy"): no distance is guessed, all links are weighed together.

Every identifier the partner's record may have is encoded and compared with the primary's own; the one under which the
noisy similarities of all links are most likely is the guess. More links mean less noise, whatever Theorem 2 says of
the greedy attacker.

Letters: L links of a partner, M possible identifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsim.attack.codebook import Codebook
from fedsim.attack.encoded import EncodedPlaces
from fedsim.attack.finding import Adversary, Finding, drawn_targets, share, timed
from fedsim.attack.multilateration import LEAST_NOISE, PRIOR_REACH
from fedsim.attack.places import Guesses, Truth, located
from fedsim.attack.view import NamedPartners, PrimaryView
from fedsim.linkage.metric import distances
from fedsim.linkage.search.distinct import Records, part
from fedsim.privacy.bounds import success_bound
from fedsim.privacy.plane import checked_places, middle, to_metres, to_places
from fedsim.types import Floats, Integers, Scale

MOST_LINKS = 200  # of one partner; more change little and cost time
GRID = 11  # points a side
ZOOM = 3.0  # how much finer each grid is than the last
ZOOMS = 7  # from the reach of a partner's records to a thousandth of it


def misfit(similarity: Floats, distance: Floats, scale: Scale, sigma: float) -> Floats:
    """Minus twice the log-likelihood of each possible identifier: (L,), (L, M) -> (M,).

    >>> misfit(np.array([0.0, 1.0]), np.array([[5.0, 9.0], [4.0, 9.0]]), Scale(mean=-5.0, deviation=1.0), sigma=1.0)
    array([ 0., 41.])
    """
    expected = (-distance - scale.mean) / scale.deviation  # (L, M)
    return np.asarray((((similarity[:, None] - expected) / max(sigma, LEAST_NOISE)) ** 2).sum(axis=0))


@timed
def likelihood_attack(
    view: PrimaryView, codes: Codebook, *, rng: np.random.Generator, targets: int | None = 500
) -> Finding:
    """Guess the filters of named partners from all links of each."""
    scale, named = view.known_scale(), NamedPartners.of(view)
    codes.check_covers(named.row, len(view))
    chosen = drawn_targets(np.arange(len(named)), targets, rng)
    hits = 0
    for place in chosen:
        links = _some_links(named, int(place), rng)
        records, back = np.unique(named.record[links], return_inverse=True)
        cost = misfit(named.similarity[links], codes.distances(records)[back], scale, view.sigma)
        hits += int(rng.choice(np.flatnonzero(cost == cost.min())) == codes.truth[named.row[place]])
    return Finding(
        "likelihood",
        Adversary.PRIMARY,
        "share of partner filters guessed exactly",
        share(hits, len(chosen)),
        1.0 / len(codes),
        len(chosen),
        "own filters, the key, the list of possible identifiers, the scale and the noise's deviation",
        {"bound tau": success_bound(view.sigma, scale.deviation)},
    )


@timed
def grid_attack(
    view: PrimaryView,
    own: Floats,
    truth: Truth,
    encoded: EncodedPlaces,
    *,
    rng: np.random.Generator,
    targets: int | None = 500,
) -> Finding:
    """Multilateration through any encoding: the most likely place of each target, searched on ever finer grids.

    ``own`` holds the primary's places in degrees.
    """
    scale, origin, fresh = view.known_scale(), middle(checked_places(own)), view.fresh(own)
    named = NamedPartners.of(view.of_records(fresh))
    sight = _Sight(encoded, to_metres(own[fresh], origin), encoded.encode(own[fresh]), origin, scale, view.sigma)
    chosen = drawn_targets(np.arange(len(named)), targets, rng)
    guess = np.array([sight.located(named, _some_links(named, int(place), rng)) for place in chosen])
    knew = "its own places, the key, noisy similarities, their scale and the noise's deviation"
    return located(Guesses("grid likelihood", knew, named.row[chosen], to_places(guess, origin)), truth, own, rng)


@dataclass(frozen=True, eq=False, repr=False)
class _Sight:
    """All that the primary has to locate a partner's record with."""

    encoded: EncodedPlaces
    own: Floats  # (n, 2), metres
    filters: Records
    origin: Floats
    scale: Scale
    sigma: float

    def located(self, named: NamedPartners, links: Integers) -> Floats:
        """The most likely point; the middle of the records that name the partner is a weak prior."""
        records, back = np.unique(named.record[links], return_inverse=True)
        start = self.own[records][back].mean(axis=0)
        reach = max(1.0, float(np.sqrt(((self.own[records][back] - start) ** 2).sum(axis=1).mean())))
        filters, seen = part(self.filters, records), named.similarity[links]

        def cost(points: Floats) -> Floats:
            possible = self.encoded.encode(to_places(points, self.origin))
            apart = distances(self.encoded.metric, filters, possible)[back]  # (L, M)
            away = ((points - start) ** 2).sum(axis=1) / (PRIOR_REACH * reach) ** 2
            return np.asarray(misfit(seen, apart, self.scale, self.sigma) + away)

        return _searched(cost, start, 2.0 * reach)


def _searched(cost: Callable[[Floats], Floats], start: Floats, reach: float) -> Floats:
    """The cheapest point, by grids that close in."""
    side = np.linspace(-1.0, 1.0, GRID)
    square = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    best = start
    for _ in range(ZOOMS):
        points = best + reach * square
        best = points[cost(points).argmin()]
        reach /= ZOOM
    return best


def _some_links(named: NamedPartners, place: int, rng: np.random.Generator) -> Integers:
    here = named.links_of(place)
    every = np.arange(here.start, here.stop)
    return every if len(every) <= MOST_LINKS else rng.choice(every, MOST_LINKS, replace=False)
