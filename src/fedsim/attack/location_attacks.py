"""Attacks that locate the secondary's records: from the link graph, its consistency, and multilateration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from fedsim.attack.finding import Adversary, AttackFinding, binomial_estimate, median_estimate, timed
from fedsim.attack.primary_view import LinksByPartner, PrimaryView
from fedsim.errors import SettingError
from fedsim.privacy.geodesy import great_circle_metres, mean_place, to_degrees, to_metres, validate_places
from fedsim.types import Floats, Integers, Scale

# The primary locates a partner's records: common ground of the attacks on places


@dataclass(frozen=True, eq=False, repr=False)
class TrueLocations:
    """The partner's true places (latitude, longitude in degrees), against which guesses are held.

    A record counts as located if the guess is within ``radius`` metres.
    """

    places: Floats
    radius: float = 100.0


@dataclass(frozen=True, eq=False, repr=False)
class LocationGuesses:
    """What an attack says: a place in degrees for each of these partner rows."""

    attack: str
    knew: str
    row: Integers
    places: Floats


def location_finding(
    guesses: LocationGuesses, truth: TrueLocations, own: Floats, rng: np.random.Generator
) -> AttackFinding:
    """What guesses are worth; blind guessing names the middle of the primary's own records for everyone."""
    target = truth.places[guesses.row]
    error = great_circle_metres(guesses.places, target)
    blind = great_circle_metres(np.broadcast_to(mean_place(own), target.shape), target)
    median, nearest = median_estimate(error, rng), _median_nearest_distance(truth.places, guesses.row)
    figures = {
        "median error in metres": median.value,
        "median error, low": median.low,
        "median error, high": median.high,
        "error at the 90th percentile in metres": float(np.quantile(error, 0.9)),
        "median error of blind guessing in metres": float(np.median(blind)),
        "median distance to the nearest other record in metres": nearest,
    }
    hits, by_chance = int((error <= truth.radius).sum()), float((blind <= truth.radius).mean())
    return AttackFinding(
        guesses.attack,
        Adversary.PRIMARY,
        f"share of partner records located within {truth.radius:g} m",
        binomial_estimate(hits, len(error)),
        by_chance,
        len(error),
        guesses.knew,
        figures,
    )


def _median_nearest_distance(places: Floats, row: Integers) -> float:
    """Median distance of these records to the nearest record at another place."""
    points = np.unique(to_metres(places, mean_place(places)), axis=0)
    if len(points) < 2:
        return float("nan")
    return float(np.median(cKDTree(points).query(to_metres(places[row], mean_place(places)), k=2)[0][:, 1]))


# The link-graph attack: that a record is among the top K says where it is; no similarity is looked at
#
# The primary groups its links by partner row and takes the middle of its own records that name it. Noise on the
# similarities cannot help against it. Lists that keep the order of the true distances give the rank away as well, and
# random links among the true ones only change which middle is the right one to take.


CENTROID_ROUNDS = 30  # until the middle of the nearest half no longer moves


def centroids(named: LinksByPartner, own: Floats) -> Floats:
    """Middle of the records that name each partner, (n, 2) -> (J, 2).

    >>> named = LinksByPartner.of(PrimaryView(np.array([[0], [0], [1]]), np.zeros((3, 1))))
    >>> centroids(named, np.array([[0.0, 0.0], [0.0, 2.0], [5.0, 5.0]])).tolist()
    [[0.0, 1.0], [5.0, 5.0]]
    """
    return named.means(own[named.record])


def ranked_centroids(named: LinksByPartner, own: Floats) -> Floats:
    """The same, where a record counts by the inverse square of the place it gives the partner in its list."""
    weight: Floats = (1.0 + named.rank[:, None].astype(np.float64)) ** -2.0
    return named.sums(weight * own[named.record]) / named.sums(weight)


def robust_centroids(named: LinksByPartner, own: Floats) -> Floats:
    """The same for lists with dummies: records far from most others that name the partner hardly count."""
    places = own[named.record]
    points = np.column_stack([named.medians(column) for column in places.T])
    for _ in range(CENTROID_ROUNDS):
        away = np.hypot(*(places - points[named.owner]).T)
        reach = np.maximum(named.medians(away), 1e-9)
        weight = ((1.0 + (away / reach[named.owner]) ** 2) ** -2.0)[:, None]
        points = named.sums(weight * places) / named.sums(weight)
    return points


@dataclass(frozen=True)
class CentroidRule:
    """One way to place a partner among the records that name it."""

    attack: str
    knew: str
    locate: Callable[[LinksByPartner, Floats], Floats]


_LINK_KNOWLEDGE = "its own places and which of its records name which partner row; no similarity"
PLAIN_CENTROID = CentroidRule("link graph", _LINK_KNOWLEDGE, centroids)
RANKED_CENTROID = CentroidRule(
    "link graph with ranks", f"{_LINK_KNOWLEDGE}, but the order of the lists", ranked_centroids
)
ROBUST_CENTROID = CentroidRule(
    "link graph with dummies", f"{_LINK_KNOWLEDGE}, and that some links are dummies", robust_centroids
)


@timed
def link_graph_attack(
    view: PrimaryView,
    own: Floats,
    truth: TrueLocations,
    *,
    rng: np.random.Generator,
    way: CentroidRule = PLAIN_CENTROID,
) -> AttackFinding:
    """Locate every named partner by the records that name it; ``own`` holds the primary's places in degrees."""
    named, origin = LinksByPartner.of(view), mean_place(validate_places(own))
    guess = to_degrees(way.locate(named, to_metres(own, origin)), origin)
    return location_finding(LocationGuesses(way.attack, way.knew, named.row, guess), truth, own, rng)


# The link-graph attack, made consistent: who is *not* on a list says as much as who is
#
# Starting from the middles of the link graph, partners move until every record's K nearest are those of its list: one
# that is listed but too far is drawn nearer, one that is near but not listed is pushed away. No similarity is looked
# at. Lists with dummies mislead it; the link graph's robust middle does better on those.
#
# Letters: n distinct own places, K partners, J named partners.


CONSISTENCY_ROUNDS = 150
CONSISTENCY_STEP = 0.5  # of the way to where a list would be right


@timed
def consistency_attack(
    view: PrimaryView, own: Floats, truth: TrueLocations, *, rng: np.random.Generator, rounds: int = CONSISTENCY_ROUNDS
) -> AttackFinding:
    """Locate every named partner by who lists it and who does not; ``own`` holds the primary's places in degrees."""
    named, origin = LinksByPartner.of(view), mean_place(validate_places(own))
    metres = to_metres(own, origin)
    _, first = np.unique(metres.round(2), axis=0, return_index=True)  # equal places have equal lists
    lists = _PartnerLists.of(view.partner[first], metres[first], named)
    points = centroids(named, metres)
    for _ in range(rounds):
        points = points + CONSISTENCY_STEP * lists.mean_displacements(points)
    knew = "its own places, and which of its records name which partner row; no similarity"
    guesses = LocationGuesses("link graph made consistent", knew, named.row, to_degrees(points, origin))
    return location_finding(guesses, truth, own, rng)


@dataclass(frozen=True, eq=False, repr=False)
class _PartnerLists:
    """Every own place with its list, partners numbered by their place among the named."""

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


# Multilateration: the most likely place of a partner's record, from all links that name it
#
# The primary knows where its own records are and gets a noisy distance from each to the same partner; over many links
# the noise averages out. A similarity is ``top - slope * distance`` plus noise; the primary knows both numbers if it
# knows the scale, and finds them along with the places if not. Distances must be straight lines on the plane the
# places lie on, great circles over a city for instance.
#
# Letters: J partners, L links.


DESCENT_ROUNDS = 60  # of descent; half of them suffice on Beijing's listings
LINE_ROUNDS = 40
MIN_SIGMA = 1e-6  # of similarities: rounding, where no noise was laid on
PRIOR_DEVIATION = 0.5  # deviation of a partner from the middle of its records, in root mean squares of theirs
START_DIRECTIONS = np.array([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])


@dataclass(frozen=True)
class SimilarityLine:
    """How similarity falls with distance: ``top - slope * distance``, with noise of deviation ``sigma`` around it."""

    top: float
    slope: float
    sigma: float

    @classmethod
    def of(cls, scale: Scale, sigma: float) -> SimilarityLine:
        """The line of a known scale."""
        return cls(-scale.mean / scale.deviation, 1.0 / scale.deviation, max(sigma, MIN_SIGMA))


def multilaterate(named: LinksByPartner, own: Floats, line: SimilarityLine) -> Floats:
    """Most likely places of all named partners, (n, 2) -> (J, 2), on the plane and in the unit of ``own``.

    Searched from the middle of the records that name a partner and from three points around it, because records along
    one street leave two places equally likely. The middle also serves as a weak prior: under endless noise it stays.
    """
    sight = _PartnerLinks.of(named, own)
    places, cost = _descend(sight, sight.centre, line)
    for direction in START_DIRECTIONS:
        other, other_cost = _descend(sight, sight.centre + sight.reach[:, None] * direction, line)
        better = other_cost < cost
        places[better], cost[better] = other[better], other_cost[better]
    return places


def fit_similarity_line(named: LinksByPartner, own: Floats, sigma: float) -> SimilarityLine:
    """The line, found together with the places, when the scale is not known.

    A change of the line that a move of the places would make up for must not count, so those moves are taken out of
    every link before the line is fitted (variable projection).
    """
    sight = _PartnerLinks.of(named, own)
    places, distance = sight.centre, sight.distances(sight.centre)
    slope = named.similarity.std() / distance.std()
    line = SimilarityLine(float(named.similarity.mean() + slope * distance.mean()), float(slope), max(sigma, MIN_SIGMA))
    for _ in range(LINE_ROUNDS):
        places, cost = _descend(sight, places, line, rounds=5)
        line = _project_line(sight, places, line, _partner_weights(cost / named.degree))
    return line


@timed
def multilateration_attack(
    view: PrimaryView, own: Floats, truth: TrueLocations, *, rng: np.random.Generator
) -> AttackFinding:
    """Locate every named partner from noisy similarities that fall with the distance in metres.

    ``own`` holds the primary's places in degrees. A view without a scale makes the primary find it out.
    """
    origin, fresh = mean_place(validate_places(own)), view.distinct_records(own)
    named, metres = LinksByPartner.of(view.of_records(fresh)), to_metres(own[fresh], origin)
    known = view.scale is not None
    line = (
        SimilarityLine.of(view.scale, view.sigma)
        if view.scale is not None
        else fit_similarity_line(named, metres, view.sigma)
    )
    guess = to_degrees(multilaterate(named, metres, line), origin)
    knew = f"its own places, noisy similarities and {'their scale' if known else 'not their scale'}"
    return location_finding(LocationGuesses("multilateration", knew, named.row, guess), truth, own, rng)


@dataclass(frozen=True, eq=False, repr=False)
class _PartnerLinks:
    """What is seen of every partner: links with the places they come from, and where those are on average."""

    named: LinksByPartner
    origin: Floats  # (L, 2)
    centre: Floats  # (J, 2)
    reach: Floats  # (J,)

    @classmethod
    def of(cls, named: LinksByPartner, own: Floats) -> _PartnerLinks:
        if own.shape[1:] != (2,):
            raise SettingError(f"own places have shape {own.shape}; multilateration needs two columns on a plane")
        centre, origin = centroids(named, own), own[named.record]
        spread = ((origin - centre[named.owner]) ** 2).sum(axis=1)
        return cls(named, origin, centre, np.maximum(np.sqrt(named.means(spread)), 1e-9))

    def distances(self, places: Floats) -> Floats:
        return np.asarray(np.hypot(*(places[self.named.owner] - self.origin).T))


def _descend(
    sight: _PartnerLinks, places: Floats, line: SimilarityLine, rounds: int = DESCENT_ROUNDS
) -> tuple[Floats, Floats]:
    """Gauss-Newton steps with a damping of each partner's own; a step that costs more is taken back."""
    damping = np.full(len(places), 1e-3)
    cost, slope, curve = _cost(sight, places, line)
    for _ in range(rounds):
        trial = places - _solve_damped(curve, slope, damping)
        trial_cost, trial_slope, trial_curve = _cost(sight, trial, line)
        better = trial_cost <= cost
        places = np.where(better[:, None], trial, places)
        cost = np.where(better, trial_cost, cost)
        slope = np.where(better[:, None], trial_slope, slope)
        curve = np.where(better[:, None], trial_curve, curve)
        damping = np.clip(np.where(better, damping / 3.0, damping * 5.0), 1e-9, 1e9)
    return places, cost


def _cost(sight: _PartnerLinks, places: Floats, line: SimilarityLine) -> tuple[Floats, Floats, Floats]:
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
    prior = (PRIOR_DEVIATION * sight.reach) ** -2.0  # (J,)
    away = places - sight.centre
    cost = total[:, 0] + prior * (away**2).sum(axis=1)
    slope = total[:, 1:3] + prior[:, None] * away
    return cost, slope, total[:, 3:6] + prior[:, None] * np.array([1.0, 1.0, 0.0])


def _solve_damped(curve: Floats, slope: Floats, damping: Floats) -> Floats:
    """Solution of the damped 2 x 2 systems."""
    extra = damping * (curve[:, 0] + curve[:, 1])
    a, b, c = curve[:, 0] + extra, curve[:, 1] + extra, curve[:, 2]
    inverse = 1.0 / (a * b - c * c)
    return np.column_stack([b * slope[:, 0] - c * slope[:, 1], a * slope[:, 1] - c * slope[:, 0]]) * inverse[:, None]


def _partner_weights(cost: Floats) -> Floats:
    """Weight of every partner in the line: one that stands at the wrong place of two must not bend it."""
    return 1.0 / (1.0 + (cost / np.median(cost)) ** 2)


def _project_line(sight: _PartnerLinks, places: Floats, line: SimilarityLine, trust: Floats) -> SimilarityLine:
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
    return SimilarityLine(line.top + float(change[0]), line.slope + float(change[1]), line.sigma)
