"""Attacks on noisy similarities: the paper's greedy attack, and likelihood attacks that use all links of a partner.

Letters: n records, K partners of each, L links of one partner, M possible identifiers, Q links used per target.
"""

from collections.abc import Mapping

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr

from fedsim.attack.finding import Adversary, AttackFinding, AttackKind, binomial_estimate, sample_targets, timed
from fedsim.attack.location_attacks import MIN_SIGMA, PRIOR_DEVIATION, LocationGuesses, TrueLocations, location_finding
from fedsim.attack.primary_view import Codebook, LinksByPartner, PlaceEncoder, PrimaryView
from fedsim.errors import SettingError
from fedsim.linkage.metrics import distance_matrix
from fedsim.linkage.search.runner import take_records
from fedsim.privacy.bounds import success_bound
from fedsim.privacy.geodesy import mean_place, to_degrees, to_metres, validate_places
from fedsim.types import Floats, Integers, Scale
from fedsim.validation import validate_integer

TARGETS_PER_TILE = 64
GREEDY_KNOWLEDGE = "own filters, the scale of the similarities and the noise's deviation; a normal prior"
EXPECTED_SHARE = "expected share"  # over all draws of the noise
MAX_LINKS = 200  # of one partner; more change little and cost time
GRID_POINTS = 11  # per side
ZOOM_FACTOR = 3.0  # between two grids
ZOOM_LEVELS = 7  # from the extent of a partner's records to a thousandth of it

# The paper's greedy attack (section 5, steps 1 to 3): each similarity of one or a few links is turned into its most
# likely distance, and a filter is drawn from all those at that distance.


def most_likely_distance(similarity: Floats, scale: Scale, sigma: float) -> Floats:
    """Return the most likely integer distance behind noisy similarities with a standard normal prior (steps 1 and 2).

    >>> most_likely_distance(np.array([0.5]), Scale(mean=-100.0, deviation=10.0), sigma=1.0)
    array([98.])
    """
    return np.rint(-scale.deviation * similarity / (1.0 + sigma**2) - scale.mean)


def expected_success_rate(distance: Floats, scale: Scale, sigma: float) -> float:
    """Return the share of distances that the paper's attacker guesses exactly, averaged over all draws of the noise.

    This is what Theorem 2 bounds. A single draw scatters more than the number of links suggests, because records with
    the same identifiers share their noise.

    >>> f"{expected_success_rate(np.array([90.0, 100.0, 100.0, 110.0]), Scale(-100.0, 7.07), sigma=1.0):.3f}"
    '0.077'
    """
    if sigma == 0:
        return 1.0
    whole, times = np.unique(distance, return_counts=True)
    similarity, half, shrink = -(whole + scale.mean) / scale.deviation, 0.5 / scale.deviation, 1.0 + sigma**2
    low, high = (((similarity + step) * shrink - similarity) / sigma for step in (-half, half))
    return float(np.average(ndtr(high) - ndtr(low), weights=times))


@timed
def distance_attack(view: PrimaryView, distance: Floats) -> AttackFinding:
    """Guess the distance of every link (steps 1 and 2 of the greedy attack).

    A filter cannot be guessed more often than its distance, so this is the sharpest test of Theorem 2.
    ``distance`` (n, K) holds the true distances, which are only used to count successes.

    >>> links = np.array([[100.0, 120.0]])
    >>> view = PrimaryView(np.array([[0, 1]]), np.array([[1.0, -1.0]]), Scale(-110.0, 10.0))
    >>> distance_attack(view, links).score.value
    1.0
    """
    scale, linked = view.known_scale(), view.partner >= 0
    right = most_likely_distance(view.similarity[linked], scale, view.sigma) == distance[linked]
    expected = expected_success_rate(distance[linked], scale, view.sigma)
    figures = {"bound tau": success_bound(view.sigma, scale.deviation), EXPECTED_SHARE: expected}
    score, measure = binomial_estimate(int(right.sum()), len(right)), "share of distances guessed exactly"
    blind = float(np.unique(distance[linked], return_counts=True)[1].max() / len(right))  # the most common distance
    kind, who, knew = AttackKind.DISTANCES, Adversary.PRIMARY, GREEDY_KNOWLEDGE
    return AttackFinding("greedy, distances", kind, who, measure, score, blind, len(right), knew, figures)


@timed
def greedy_attack(
    view: PrimaryView, codes: Codebook, *, rng: Generator, queries: int = 1, targets: int | None = 5_000
) -> AttackFinding:
    """Guess the filters of listed partners from ``queries`` links each (|Q| in the paper, where one is best).

    ``figures`` also holds how often all distances were right, and the bound of Theorem 2 on it.
    """
    queries = validate_integer(queries, "queries", least=1)
    scale, named = view.known_scale(), LinksByPartner.of(view)
    codes.check_covers(named.row, len(view))
    chosen = sample_targets(np.flatnonzero(named.degree >= queries), targets, rng)
    if not len(chosen):
        message = f"queries={queries}, but no partner is listed by that many records; use fewer queries"
        raise SettingError(message, code="too-many-queries", queries=queries)
    drawn = [rng.choice(named.degree[place], queries, replace=False) for place in chosen]
    links = np.asarray(named.start[chosen][:, None] + np.array(drawn))  # (targets, Q)
    guessed = most_likely_distance(named.similarity[links].ravel(), scale, view.sigma).reshape(links.shape)
    truth = codes.truth[named.row[chosen]]
    hits, right = np.zeros(len(chosen), np.int64), np.zeros(len(chosen), np.int64)  # filter and all distances right
    for first in range(0, len(chosen), TARGETS_PER_TILE):
        tile = slice(first, first + TARGETS_PER_TILE)
        fits = np.ones((len(truth[tile]), len(codes)), dtype=bool)
        for record, distance in zip(named.record[links[tile]].T, guessed[tile].T, strict=True):
            fits &= codes.distances(record) == distance[:, None]
        ticket = np.where(fits, rng.random(fits.shape), -1.0)
        right[tile] = np.take_along_axis(fits, truth[tile, None], axis=1)[:, 0]
        hits[tile] = right[tile] & (ticket.argmax(axis=1) == truth[tile])
    distances = binomial_estimate(int(right.sum()), len(right))
    figures = {
        "bound tau": success_bound(view.sigma, scale.deviation) ** queries,
        "share of distances guessed": distances.value,
        "share of distances guessed, low": distances.low,
        "links used of each target": float(queries),
    }
    return _filter_finding(AttackKind.GREEDY, int(hits.sum()), (len(hits), len(codes)), GREEDY_KNOWLEDGE, figures)


def _filter_finding(
    kind: AttackKind, hits: int, sizes: tuple[int, int], knew: str, figures: Mapping[str, float]
) -> AttackFinding:
    (targets, possible), measure = sizes, "share of partner filters guessed exactly"
    score = binomial_estimate(hits, targets)
    return AttackFinding(kind.value, kind, Adversary.PRIMARY, measure, score, 1.0 / possible, targets, knew, figures)


# The attack that the paper leaves open (appendix B, "non-greedy"): every possible identifier is encoded and compared
# with the primary's own ones, and the guess is the one under which the noisy similarities of all links are most likely.
# More links mean less noise, whatever Theorem 2 says about the greedy attacker.


def deviance(similarity: Floats, distance: Floats, scale: Scale, sigma: float) -> Floats:
    """Return minus twice the log-likelihood of each possible identifier, (L,) and (L, M) -> (M,).

    >>> deviance(np.array([0.0, 1.0]), np.array([[5.0, 9.0], [4.0, 9.0]]), Scale(mean=-5.0, deviation=1.0), sigma=1.0)
    array([ 0., 41.])
    """
    expected = (-distance - scale.mean) / scale.deviation  # (L, M)
    return np.asarray((((similarity[:, None] - expected) / max(sigma, MIN_SIGMA)) ** 2).sum(axis=0))


@timed
def likelihood_attack(
    view: PrimaryView, codes: Codebook, *, rng: Generator, targets: int | None = 500
) -> AttackFinding:
    """Guess the filters of listed partners from all links of each."""
    scale, named = view.known_scale(), LinksByPartner.of(view)
    codes.check_covers(named.row, len(view))
    chosen = sample_targets(np.arange(len(named)), targets, rng)
    hits = 0
    for place in chosen:
        links = _sample_partner_links(named, int(place), rng)
        records, back = np.unique(named.record[links], return_inverse=True)
        cost = deviance(named.similarity[links], codes.distances(records)[back], scale, view.sigma)
        hits += int(rng.choice(np.flatnonzero(cost == cost.min())) == codes.truth[named.row[place]])
    knew = "own filters, the key, the list of possible identifiers, the scale and the noise's deviation"
    figures = {"bound tau": success_bound(view.sigma, scale.deviation)}
    return _filter_finding(AttackKind.LIKELIHOOD, hits, (len(chosen), len(codes)), knew, figures)


@timed
def grid_attack(
    view: PrimaryView,
    own: Floats,
    truth: TrueLocations,
    encoded: PlaceEncoder,
    *,
    rng: Generator,
    targets: int | None = 500,
) -> AttackFinding:
    """Locate partners through any encoding: search the most likely place of each target on ever finer grids.

    ``own`` holds the primary's places in degrees.
    """
    scale, origin, fresh = view.known_scale(), mean_place(validate_places(own)), view.distinct_records(own)
    named = LinksByPartner.of(view.of_records(fresh))
    metres, filters = to_metres(own[fresh], origin), encoded.encode(own[fresh])
    side = np.linspace(-1.0, 1.0, GRID_POINTS)
    square = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)

    def locate(place: int) -> Floats:
        """Return the most likely point; the centre of the records that list the partner is a weak prior."""
        links = _sample_partner_links(named, place, rng)
        records, back = np.unique(named.record[links], return_inverse=True)
        start = metres[records][back].mean(axis=0)
        extent = max(1.0, float(np.sqrt(((metres[records][back] - start) ** 2).sum(axis=1).mean())))
        own_filters = take_records(filters, records)

        def cost(points: Floats) -> Floats:
            possible = encoded.encode(to_degrees(points, origin))
            distance = distance_matrix(encoded.metric, own_filters, possible)[back]  # (L, M)
            prior = ((points - start) ** 2).sum(axis=1) / (PRIOR_DEVIATION * extent) ** 2
            return np.asarray(deviance(named.similarity[links], distance, scale, view.sigma) + prior)

        best: Floats = start
        reach = 2.0 * extent
        for _ in range(ZOOM_LEVELS):
            points = best + reach * square
            best = points[cost(points).argmin()]
            reach /= ZOOM_FACTOR
        return best

    chosen = sample_targets(np.arange(len(named)), targets, rng)
    guess = to_degrees(np.array([locate(int(place)) for place in chosen]), origin)
    knew = "its own places, the key, noisy similarities, their scale and the noise's deviation"
    return location_finding(LocationGuesses("grid likelihood", knew, named.row[chosen], guess), truth, own, rng)


def _sample_partner_links(named: LinksByPartner, place: int, rng: Generator) -> Integers:
    every = np.arange(named.start[place], named.start[place + 1])
    return every if len(every) <= MAX_LINKS else rng.choice(every, MAX_LINKS, replace=False)
