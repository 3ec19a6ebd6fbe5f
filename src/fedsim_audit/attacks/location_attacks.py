"""Attacks that locate the secondary's records: by link graph, consistency, multilateration and grid search.

Letters: n own records, K partners of each, J listed partners, L links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.spatial import cKDTree

from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.errors import SettingError
from fedsim.privacy.geodesy import great_circle_metres, mean_place, to_degrees, to_metres, validate_places
from fedsim.types import Floats, Integers, Scale
from fedsim_audit.attacks import attack_finding
from fedsim_audit.attacks.attack_finding import AttackFinding
from fedsim_audit.attacks.similarity_attacks import (
    MIN_SIGMA,
    LinksByPartner,
    PrimaryView,
)

CONSISTENCY_ROUNDS = 150
CONSISTENCY_STEP = 0.5  # of the distance to where a list would be correct
DESCENT_ROUNDS = 60  # half of them are enough for the Beijing listings
LINE_ROUNDS = 40
PRIOR_DEVIATION = 0.5  # of a partner from the centre of its records, relative to their root mean square distance
GRID_POINTS = 11  # per side
ZOOM_FACTOR = 3.0  # between two grids
ZOOM_LEVELS = 7  # from the extent of a partner's records to a thousandth of it
START_DIRECTIONS = np.array([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])


@dataclass(frozen=True, eq=False, repr=False)
class TrueLocations:
    """The true places of the partner records, to evaluate guesses.

    Parameters
    ----------
    places
        Latitude and longitude of every partner row, in degrees.
    radius
        A record counts as located if the guess is within this many metres.
    """

    places: Floats
    radius: float = 100.0


@dataclass(frozen=True, eq=False, repr=False)
class LocationGuesses:
    """The guesses of an attack: a place in degrees for each partner row."""

    attack: str
    knew: str
    row: Integers
    places: Floats


def location_finding(guesses: LocationGuesses, truth: TrueLocations, own: Floats, rng: Generator) -> AttackFinding:
    """Evaluate guesses; blind guessing uses the centre of the primary's own records for every target."""
    target = truth.places[guesses.row]
    error = great_circle_metres(guesses.places, target)
    blind = great_circle_metres(np.broadcast_to(mean_place(own), target.shape), target)
    median = attack_finding.bootstrap_estimate(lambda rows: float(np.median(error[rows])), len(error), rng)
    points, nearest = np.unique(to_metres(truth.places, mean_place(truth.places)), axis=0), float("nan")
    if len(points) > 1:  # the distance of every target to the nearest record at another place
        targets = to_metres(target, mean_place(truth.places))
        nearest = float(np.median(cKDTree(points).query(targets, k=2)[0][:, 1]))
    figures = {
        attack_finding.MEDIAN_ERROR_METRES: median.value,
        "median error, low": median.low,
        "median error, high": median.high,
        "error at the 90th percentile in metres": float(np.quantile(error, 0.9)),
        "median error of blind guessing in metres": float(np.median(blind)),
        "median distance to the nearest other record in metres": nearest,
        attack_finding.RADIUS_METRES: truth.radius,
    }
    score = attack_finding.binomial_estimate(int((error <= truth.radius).sum()), len(error))
    luck, measure = float((blind <= truth.radius).mean()), f"share of partner records located within {truth.radius:g} m"
    kind, who = AttackKind.LOCATION, Adversary.PRIMARY
    return AttackFinding(guesses.attack, kind, who, measure, score, luck, len(error), guesses.knew, figures)


# The link-graph attack uses no similarities: being among the top K already reveals where a partner is. The primary
# takes the centre of its own records that list a partner. Noise on the similarities does not help. Lists in the order
# of the true distances also reveal the rank, and random links only require a more robust centre.


def centroids(named: LinksByPartner, own: Floats) -> Floats:
    """Return the centre of the records that list each partner, (n, 2) -> (J, 2).

    >>> named = LinksByPartner.of(PrimaryView(np.array([[0], [0], [1]]), np.zeros((3, 1))))
    >>> centroids(named, np.array([[0.0, 0.0], [0.0, 2.0], [5.0, 5.0]])).tolist()
    [[0.0, 1.0], [5.0, 5.0]]
    """
    return named.means(own[named.record])


def ranked_centroids(named: LinksByPartner, own: Floats) -> Floats:
    """Return the centre weighted by the inverse square of the partner's rank in each list."""
    weight: Floats = (1.0 + named.rank[:, None].astype(np.float64)) ** -2.0
    return named.sums(weight * own[named.record]) / named.sums(weight)


@dataclass(frozen=True)
class CentroidRule:
    """A way to place a partner among the records that list it."""

    attack: str
    knew: str
    locate: Callable[[LinksByPartner, Floats], Floats]


_LINKS = "its own places and which of its records list which partner row"
PLAIN_CENTROID = CentroidRule("link graph", f"{_LINKS}; no similarity", centroids)
RANKED_CENTROID = CentroidRule("link graph with ranks", f"{_LINKS}, in which order; no similarity", ranked_centroids)


def link_graph_attack(
    view: PrimaryView, own: Floats, truth: TrueLocations, *, rng: Generator, way: CentroidRule = PLAIN_CENTROID
) -> AttackFinding:
    """Locate every listed partner by the records that list it.

    Parameters
    ----------
    view
        What the primary received from the linkage.
    own
        The primary's places, latitude and longitude in degrees, (n, 2).
    truth
        The true places of the partner records; only used to evaluate the guesses.
    rng
        Random generator for the interval.
    way
        How to place a partner among the records that list it.
    """
    named, origin = LinksByPartner.of(view), mean_place(validate_places(own))
    guess = to_degrees(way.locate(named, to_metres(own, origin)), origin)
    return location_finding(LocationGuesses(way.attack, way.knew, named.row, guess), truth, own, rng)


# The consistency attack: a partner's absence from a list reveals as much as its presence. Starting from the centroids,
# partners move until the K nearest of every record match its list: a listed partner that is too far is pulled closer,
# a near one that is not listed is pushed away.


def consistency_attack(
    view: PrimaryView, own: Floats, truth: TrueLocations, *, rng: Generator, rounds: int = CONSISTENCY_ROUNDS
) -> AttackFinding:
    """Locate every listed partner by which records list it and which do not.

    Parameters
    ----------
    view
        What the primary received of the linkage.
    own
        The primary's places, latitude and longitude in degrees, (n, 2).
    truth
        The true places of the partner records; only used to evaluate the guesses.
    rng
        Random generator for the interval.
    rounds
        How often all partners are moved.
    """
    named, origin = LinksByPartner.of(view), mean_place(validate_places(own))
    metres = to_metres(own, origin)
    _, first = np.unique(metres.round(2), axis=0, return_index=True)  # equal places have equal lists
    lists = _PartnerLists.of(view.partner[first], metres[first], named)
    points = centroids(named, metres)
    for _ in range(rounds):
        points = points + CONSISTENCY_STEP * lists.mean_displacements(points)
    knew, guess = f"{_LINKS}; no similarity", to_degrees(points, origin)
    return location_finding(LocationGuesses("link graph made consistent", knew, named.row, guess), truth, own, rng)


@dataclass(frozen=True, eq=False, repr=False)
class _PartnerLists:
    """Every own place with its list; partners are numbered as in LinksByPartner."""

    own: Floats  # (n, 2)
    place: Integers  # (pairs,)
    partner: Integers  # (pairs,)
    length: Integers  # (n,), of each list
    n_partners: int

    @classmethod
    def of(cls, partner: Integers, own: Floats, named: LinksByPartner) -> _PartnerLists:
        place, column = np.nonzero(partner >= 0)
        number = np.searchsorted(named.row, partner[place, column])
        return cls(own, place, number, np.bincount(place, minlength=len(own)), len(named))

    def mean_displacements(self, points: Floats) -> Floats:
        """Return the mean move that the lists require of each partner, (J, 2) -> (J, 2)."""
        most = max(1, int(self.length.max()))
        away, near = cKDTree(points).query(self.own, k=np.arange(1, most + 1))  # (n, K)
        reach = away[np.arange(len(away)), np.maximum(self.length - 1, 0)]  # (n,), the current K-th distance
        inside = np.arange(most) < self.length[:, None]
        pairs = np.sort(self.place * self.n_partners + self.partner)
        wanted = np.arange(len(near))[:, None] * self.n_partners + near
        listed = pairs[np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)] == wanted
        place, column = np.nonzero(inside & ~listed)
        partner = np.concatenate([self.partner, near[place, column]])
        place = np.concatenate([self.place, place])
        apart = points[partner] - self.own[place]
        distance = np.maximum(np.hypot(*apart.T), 1e-6)
        excess = distance - reach[place]  # above zero: listed and too far; below: perhaps near and not listed
        excess[: len(self.place)] = np.maximum(excess[: len(self.place)], 0.0)
        count = np.bincount(partner, weights=excess != 0.0, minlength=self.n_partners)
        moves = -apart * (excess / distance)[:, None]
        total = np.column_stack([np.bincount(partner, weights=move, minlength=self.n_partners) for move in moves.T])
        return np.asarray(total / np.maximum(count, 1.0)[:, None])


# Multilateration: the primary knows where its own records are and gets a noisy distance from each to the same partner;
# over many links the noise averages out. A similarity is ``top - slope * distance`` plus noise; both coefficients
# follow from the scale, or are estimated together with the places. Distances must be nearly planar, as great-circle
# distances within a city are.


@dataclass(frozen=True)
class SimilarityLine:
    """How similarity falls with distance: ``top - slope * distance``, with noise of deviation ``sigma``."""

    top: float
    slope: float
    sigma: float

    @classmethod
    def of(cls, scale: Scale, sigma: float) -> SimilarityLine:
        """Return the line for a known scale."""
        return cls(-scale.mean / scale.deviation, 1.0 / scale.deviation, max(sigma, MIN_SIGMA))


def multilaterate(named: LinksByPartner, own: Floats, line: SimilarityLine) -> Floats:
    """Return the most likely places of all listed partners, (n, 2) -> (J, 2), on the plane and in the unit of ``own``.

    The search starts from the centre of the records that list a partner and from three points around it, because
    records along one street leave two places equally likely. The centre is also a weak prior.
    """
    links = _PartnerLinks.of(named, own)
    places, cost = _descend(links, links.centre, line)
    for direction in START_DIRECTIONS:
        other, other_cost = _descend(links, links.centre + links.reach[:, None] * direction, line)
        better = other_cost < cost
        places[better], cost[better] = other[better], other_cost[better]
    return places


def fit_similarity_line(named: LinksByPartner, own: Floats, sigma: float) -> SimilarityLine:
    """Estimate the line together with the places, for an unknown scale.

    A change of the line that moving the places could compensate for must not count, so such moves are projected out of
    every link before the line is fitted (variable projection).
    """
    links = _PartnerLinks.of(named, own)
    places, distance = links.centre, links.distances(links.centre)
    slope = named.similarity.std() / distance.std()
    line = SimilarityLine(float(named.similarity.mean() + slope * distance.mean()), float(slope), max(sigma, MIN_SIGMA))
    for _ in range(LINE_ROUNDS):
        places, cost = _descend(links, places, line, rounds=5)
        cost /= named.degree
        # A partner that was placed at the wrong one of two likely places must not distort the line.
        trust = 1.0 / (1.0 + (cost / np.median(cost)) ** 2)
        apart = places[named.owner] - links.origin
        distance = np.maximum(np.hypot(*apart.T), 1e-9)
        gradient = apart / distance[:, None]  # (L, 2), of the distance
        residual = named.similarity - line.top + line.slope * distance  # (L,)
        columns = np.column_stack([np.ones_like(distance), -distance, residual])  # (L, 3)
        square = named.sums(gradient[:, :, None] * gradient[:, None, :])  # (J, 2, 2)
        shared = named.sums(gradient[:, :, None] * columns[:, None, :])  # (J, 2, 3)
        moves = np.linalg.solve(square + 1e-6 * named.degree[:, None, None] * np.eye(2), shared)  # (J, 2, 3)
        free = columns - np.einsum("lx,lxc->lc", gradient, moves[named.owner])  # (L, 3)
        free *= np.sqrt(trust)[named.owner, None]
        change, *_ = np.linalg.lstsq(free[:, :2], free[:, 2])
        line = SimilarityLine(line.top + float(change[0]), line.slope + float(change[1]), line.sigma)
    return line


def multilateration_attack(view: PrimaryView, own: Floats, truth: TrueLocations, *, rng: Generator) -> AttackFinding:
    """Locate every listed partner from noisy similarities that fall with the distance in metres.

    Parameters
    ----------
    view
        What the primary received of the linkage; if it has no scale, the scale is estimated.
    own
        The primary's places, latitude and longitude in degrees, (n, 2).
    truth
        The true places of the partner records; only used to evaluate the guesses.
    rng
        Random generator for the interval.
    """
    origin, fresh = mean_place(validate_places(own)), view.distinct_records(own)
    named, metres = LinksByPartner.of(view.of_records(fresh)), to_metres(own[fresh], origin)
    if view.scale is None:
        line, scale = fit_similarity_line(named, metres, view.sigma), "but not their scale"
    else:
        line, scale = SimilarityLine.of(view.scale, view.sigma), "and their scale"
    guess, knew = to_degrees(multilaterate(named, metres, line), origin), f"its own places, noisy similarities, {scale}"
    return location_finding(LocationGuesses("multilateration", knew, named.row, guess), truth, own, rng)


@dataclass(frozen=True, eq=False, repr=False)
class _PartnerLinks:
    """The links of every partner, the places they come from, and the centre of these places."""

    named: LinksByPartner
    origin: Floats  # (L, 2)
    centre: Floats  # (J, 2)
    reach: Floats  # (J,)

    @classmethod
    def of(cls, named: LinksByPartner, own: Floats) -> _PartnerLinks:
        if own.shape[1:] != (2,):
            message = f"own places have shape {own.shape}, but multilateration needs two columns"
            raise SettingError(message, code="shape-mismatch")
        centre, origin = centroids(named, own), own[named.record]
        spread = ((origin - centre[named.owner]) ** 2).sum(axis=1)
        return cls(named, origin, centre, np.maximum(np.sqrt(named.means(spread)), 1e-9))

    def distances(self, places: Floats) -> Floats:
        return np.asarray(np.hypot(*(places[self.named.owner] - self.origin).T))


def _descend(
    links: _PartnerLinks, places: Floats, line: SimilarityLine, rounds: int = DESCENT_ROUNDS
) -> tuple[Floats, Floats]:
    """Take Gauss-Newton steps with a damping per partner; a step that raises the cost is undone."""
    damping = np.full(len(places), 1e-3)
    cost, slope, curve = _cost(links, places, line)
    for _ in range(rounds):
        # The damped 2 x 2 systems, solved in closed form.
        extra = damping * (curve[:, 0] + curve[:, 1])
        a, b, c = curve[:, 0] + extra, curve[:, 1] + extra, curve[:, 2]
        move = np.column_stack([b * slope[:, 0] - c * slope[:, 1], a * slope[:, 1] - c * slope[:, 0]])
        trial = places - move * (1.0 / (a * b - c * c))[:, None]
        trial_cost, trial_slope, trial_curve = _cost(links, trial, line)
        better = trial_cost <= cost
        places = np.where(better[:, None], trial, places)
        cost = np.where(better, trial_cost, cost)
        slope = np.where(better[:, None], trial_slope, slope)
        curve = np.where(better[:, None], trial_curve, curve)
        damping = np.clip(np.where(better, damping / 3.0, damping * 5.0), 1e-9, 1e9)
    return places, cost


def _cost(links: _PartnerLinks, places: Floats, line: SimilarityLine) -> tuple[Floats, Floats, Floats]:
    """Return each partner's negative log-likelihood with prior, its gradient (J, 2) and its curvature (J, 3)."""
    named = links.named
    apart = places[named.owner] - links.origin  # (L, 2)
    distance = np.maximum(np.hypot(*apart.T), 1e-9)  # (L,)
    residual = (named.similarity - line.top + line.slope * distance) / line.sigma  # (L,)
    gradient = apart * (line.slope / line.sigma / distance)[:, None]  # (L, 2), of the residual
    products = [residual**2, residual[:, None] * gradient, gradient**2, gradient[:, 0] * gradient[:, 1]]
    total = named.sums(np.column_stack(products))  # (J, 6)
    prior = (PRIOR_DEVIATION * links.reach) ** -2.0  # (J,)
    away = places - links.centre
    cost = total[:, 0] + prior * (away**2).sum(axis=1)
    slope = total[:, 1:3] + prior[:, None] * away
    return cost, slope, total[:, 3:6] + prior[:, None] * np.array([1.0, 1.0, 0.0])


# The grid attack: the most likely place through any encoding that the primary can apply itself.
