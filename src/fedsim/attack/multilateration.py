"""Multilateration: the most likely place of a partner's record, from all links that name it.

The primary knows where its own records are and gets a noisy distance from each to the same partner; over many links the
noise averages out. A similarity is ``top - slope * distance`` plus noise; the primary knows both numbers if it knows
the scale, and finds them along with the places if not. Distances must be straight lines on the plane the places lie
on, great circles over a city for instance.

Letters: J partners, L links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.attack.finding import Finding, timed
from fedsim.attack.linkgraph import centroids
from fedsim.attack.places import Guesses, Truth, located
from fedsim.attack.view import NamedPartners, PrimaryView
from fedsim.errors import SettingError
from fedsim.privacy.plane import checked_places, middle, to_metres, to_places
from fedsim.types import Floats, Scale

ROUNDS = 60  # of descent; half of them suffice on Beijing's listings
ROUNDS_OF_THE_LINE = 40
LEAST_NOISE = 1e-6  # of similarities: rounding, where no noise was laid on
PRIOR_REACH = 0.5  # deviation of a partner from the middle of its records, in root mean squares of theirs
DIRECTIONS = np.array([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])


@dataclass(frozen=True)
class Line:
    """How similarity falls with distance: ``top - slope * distance``, with noise of deviation ``sigma`` around it."""

    top: float
    slope: float
    sigma: float

    @classmethod
    def of(cls, scale: Scale, sigma: float) -> Line:
        """The line of a known scale."""
        return cls(-scale.mean / scale.deviation, 1.0 / scale.deviation, max(sigma, LEAST_NOISE))


def multilaterate(named: NamedPartners, own: Floats, line: Line) -> Floats:
    """Most likely places of all named partners, (n, 2) -> (J, 2), on the plane and in the unit of ``own``.

    Searched from the middle of the records that name a partner and from three points around it, because records along
    one street leave two places equally likely. The middle also serves as a weak prior: under endless noise it stays.
    """
    sight = _Sight.of(named, own)
    places, cost = _descend(sight, sight.centre, line)
    for direction in DIRECTIONS:
        other, other_cost = _descend(sight, sight.centre + sight.reach[:, None] * direction, line)
        better = other_cost < cost
        places[better], cost[better] = other[better], other_cost[better]
    return places


def fitted_line(named: NamedPartners, own: Floats, sigma: float) -> Line:
    """The line, found together with the places, when the scale is not known.

    A change of the line that a move of the places would make up for must not count, so those moves are taken out of
    every link before the line is fitted (variable projection).
    """
    sight = _Sight.of(named, own)
    places, distance = sight.centre, sight.distances(sight.centre)
    slope = named.similarity.std() / distance.std()
    line = Line(float(named.similarity.mean() + slope * distance.mean()), float(slope), max(sigma, LEAST_NOISE))
    for _ in range(ROUNDS_OF_THE_LINE):
        places, cost = _descend(sight, places, line, rounds=5)
        line = _projected_line(sight, places, line, _trust(cost / named.degree))
    return line


@timed
def multilateration_attack(view: PrimaryView, own: Floats, truth: Truth, *, rng: np.random.Generator) -> Finding:
    """Locate every named partner from noisy similarities that fall with the distance in metres.

    ``own`` holds the primary's places in degrees. A view without a scale makes the primary find it out.
    """
    origin, fresh = middle(checked_places(own)), view.fresh(own)
    named, metres = NamedPartners.of(view.of_records(fresh)), to_metres(own[fresh], origin)
    known = view.scale is not None
    line = Line.of(view.scale, view.sigma) if view.scale is not None else fitted_line(named, metres, view.sigma)
    guess = to_places(multilaterate(named, metres, line), origin)
    knew = f"its own places, noisy similarities and {'their scale' if known else 'not their scale'}"
    return located(Guesses("multilateration", knew, named.row, guess), truth, own, rng)


@dataclass(frozen=True, eq=False, repr=False)
class _Sight:
    """What is seen of every partner: links with the places they come from, and where those are on average."""

    named: NamedPartners
    origin: Floats  # (L, 2)
    centre: Floats  # (J, 2)
    reach: Floats  # (J,)

    @classmethod
    def of(cls, named: NamedPartners, own: Floats) -> _Sight:
        if own.shape[1:] != (2,):
            raise SettingError(f"own places have shape {own.shape}; multilateration needs two columns on a plane")
        centre, origin = centroids(named, own), own[named.record]
        spread = ((origin - centre[named.owner]) ** 2).sum(axis=1)
        return cls(named, origin, centre, np.maximum(np.sqrt(named.means(spread)), 1e-9))

    def distances(self, places: Floats) -> Floats:
        return np.asarray(np.hypot(*(places[self.named.owner] - self.origin).T))


def _descend(sight: _Sight, places: Floats, line: Line, rounds: int = ROUNDS) -> tuple[Floats, Floats]:
    """Gauss-Newton steps with a damping of each partner's own; a step that costs more is taken back."""
    damping = np.full(len(places), 1e-3)
    cost, slope, curve = _cost(sight, places, line)
    for _ in range(rounds):
        trial = places - _solved(curve, slope, damping)
        trial_cost, trial_slope, trial_curve = _cost(sight, trial, line)
        better = trial_cost <= cost
        places = np.where(better[:, None], trial, places)
        cost = np.where(better, trial_cost, cost)
        slope = np.where(better[:, None], trial_slope, slope)
        curve = np.where(better[:, None], trial_curve, curve)
        damping = np.clip(np.where(better, damping / 3.0, damping * 5.0), 1e-9, 1e9)
    return places, cost


def _cost(sight: _Sight, places: Floats, line: Line) -> tuple[Floats, Floats, Floats]:
    """Negative log-likelihood and prior of every partner, its gradient (J, 2) and its curvature (J, 3)."""
    named = sight.named
    apart = places[named.owner] - sight.origin  # (L, 2)
    distance = np.maximum(np.hypot(*apart.T), 1e-9)  # (L,)
    miss = (named.similarity - line.top + line.slope * distance) / line.sigma  # (L,)
    lean = apart * (line.slope / line.sigma / distance)[:, None]  # (L, 2), of the miss
    products = np.column_stack(
        [miss**2, miss[:, None] * lean, lean[:, 0] ** 2, lean[:, 1] ** 2, lean[:, 0] * lean[:, 1]]
    )
    total = named.sums(products)  # (J, 6)
    prior = (PRIOR_REACH * sight.reach) ** -2.0  # (J,)
    away = places - sight.centre
    cost = total[:, 0] + prior * (away**2).sum(axis=1)
    slope = total[:, 1:3] + prior[:, None] * away
    return cost, slope, total[:, 3:6] + prior[:, None] * np.array([1.0, 1.0, 0.0])


def _solved(curve: Floats, slope: Floats, damping: Floats) -> Floats:
    """Solution of the damped 2 x 2 systems."""
    extra = damping * (curve[:, 0] + curve[:, 1])
    a, b, c = curve[:, 0] + extra, curve[:, 1] + extra, curve[:, 2]
    inverse = 1.0 / (a * b - c * c)
    return np.column_stack([b * slope[:, 0] - c * slope[:, 1], a * slope[:, 1] - c * slope[:, 0]]) * inverse[:, None]


def _trust(cost: Floats) -> Floats:
    """Weight of every partner in the line: one that stands at the wrong place of two must not bend it."""
    return 1.0 / (1.0 + (cost / np.median(cost)) ** 2)


def _projected_line(sight: _Sight, places: Floats, line: Line, trust: Floats) -> Line:
    """The line after one Gauss-Newton step for line and places together."""
    named, apart = sight.named, places[sight.named.owner] - sight.origin
    distance = np.maximum(np.hypot(*apart.T), 1e-9)
    lean = apart / distance[:, None]  # (L, 2), of the distance
    known = named.similarity - line.top + line.slope * distance  # (L,)
    columns = np.column_stack([np.ones_like(distance), -distance, known])  # (L, 3)
    square = named.sums(lean[:, :, None] * lean[:, None, :])  # (J, 2, 2)
    shared = named.sums(lean[:, :, None] * columns[:, None, :])  # (J, 2, 3)
    moves = np.linalg.solve(square + 1e-6 * named.degree[:, None, None] * np.eye(2), shared)  # (J, 2, 3)
    free = columns - np.einsum("lx,lxc->lc", lean, moves[named.owner])  # (L, 3)
    free *= np.sqrt(trust)[named.owner, None]
    change, *_ = np.linalg.lstsq(free[:, :2], free[:, 2])
    return Line(line.top + float(change[0]), line.slope + float(change[1]), line.sigma)
