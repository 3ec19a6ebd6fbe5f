"""Attacks on noisy similarities: the paper's greedy attack, and likelihood attacks that weigh all links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from fedsim.attack.finding import Adversary, AttackFinding, binomial_estimate, sample_targets, timed
from fedsim.attack.location_attacks import MIN_SIGMA, PRIOR_DEVIATION, LocationGuesses, TrueLocations, location_finding
from fedsim.attack.primary_view import Codebook, LinksByPartner, PlaceEncoder, PrimaryView
from fedsim.errors import SettingError
from fedsim.linkage.metrics import distance_matrix
from fedsim.linkage.search.runner import Records, take_records
from fedsim.privacy.bounds import success_bound
from fedsim.privacy.geodesy import mean_place, to_degrees, to_metres, validate_places
from fedsim.types import Floats, Integers, Scale
from fedsim.validation import validate_integer

# The paper's greedy attack on noisy similarities (section 5, steps 1 to 3), and with a better prior (appendix B)
#
# One or a few links of a partner are chosen; each similarity is turned into its most likely distance; a filter is drawn
# from all those which are that far from the primary's own.


TARGETS_PER_TILE = 64
LIKELIHOODS_PER_TILE = 1 << 22
EXPECTED_SHARE = "expected share"  # over all draws of the noise


class DistancePrior(Protocol):
    """What the attacker believes of distances before it sees a similarity."""

    @property
    def knew(self) -> str: ...

    def most_likely_distance(self, similarity: Floats, scale: Scale, sigma: float) -> Floats:
        """The most likely whole distance behind every noisy similarity."""


@dataclass(frozen=True)
class GaussianPrior:
    """The paper's attacker: scaled similarities have a standard normal distribution.

    >>> GaussianPrior().most_likely_distance(np.array([0.5]), Scale(mean=-100.0, deviation=10.0), sigma=1.0)
    array([98.])
    """

    knew: str = "own filters, the scale of the similarities and the noise's deviation; a normal prior"

    def most_likely_distance(self, similarity: Floats, scale: Scale, sigma: float) -> Floats:
        shrunk = similarity / (1.0 + sigma**2)  # steps 1 and 2
        return np.rint(-scale.deviation * shrunk - scale.mean)


@dataclass(frozen=True, eq=False, repr=False)
class EmpiricalPrior:
    """An attacker who knows how distances are distributed, from a linkage of its own say; a histogram smooths them."""

    distance: Floats
    bins: int = 200
    knew: str = "own filters, the scale of the similarities, the noise's deviation and the distribution of distances"

    def most_likely_distance(self, similarity: Floats, scale: Scale, sigma: float) -> Floats:
        observed = np.rint(-scale.deviation * similarity - scale.mean)
        if sigma == 0:
            return observed
        first, last, log_density = self._bins()
        step = max(1, LIKELIHOODS_PER_TILE // len(first))
        best = [
            self._best(observed[here : here + step], (first, last), log_density, sigma * scale.deviation)
            for here in range(0, len(observed), step)
        ]
        return np.concatenate(best) if best else observed

    def _best(self, observed: Floats, bins: tuple[Floats, Floats], log_density: Floats, deviation: float) -> Floats:
        """The best distance of each bin is the one nearest to what was observed; then the best bin."""
        nearest = np.clip(observed[:, None], *bins)  # (links, bins)
        gain = log_density - ((observed[:, None] - nearest) / deviation) ** 2 / 2.0
        return np.asarray(np.take_along_axis(nearest, gain.argmax(axis=1)[:, None], axis=1)[:, 0])

    def _bins(self) -> tuple[Floats, Floats, Floats]:
        """First and last whole distance of every bin that is not empty, and the logarithm of how common each is."""
        low, high = np.floor(self.distance.min()), np.ceil(self.distance.max())
        edges = np.unique(np.rint(np.linspace(low, high + 1.0, self.bins + 1)))
        counts = np.histogram(self.distance, bins=edges)[0]
        found = counts > 0
        return edges[:-1][found], edges[1:][found] - 1.0, np.log(counts[found] / np.diff(edges)[found])


def expected_success_rate(distance: Floats, scale: Scale, sigma: float) -> float:
    """Which share of these distances the paper's attacker guesses exactly, on average over all draws of the noise.

    This is what Theorem 2 bounds, without the luck of one draw; records that share their identifiers share their draw,
    so that counts of hits scatter far more than their number suggests.

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
def distance_attack(view: PrimaryView, distance: Floats, *, prior: DistancePrior | None = None) -> AttackFinding:
    """Steps 1 and 2 alone, on every link: how often the distance is guessed exactly.

    The filter cannot be guessed more often than that, whichever filters are possible, so this is the sharpest test of
    Theorem 2. ``distance`` holds the true distances and only serves to count.

    >>> links = np.array([[100.0, 120.0]])
    >>> view = PrimaryView(np.array([[0, 1]]), np.array([[1.0, -1.0]]), Scale(-110.0, 10.0))
    >>> distance_attack(view, links).score.value
    1.0
    """
    scale, prior = view.known_scale(), prior or GaussianPrior()
    linked = view.partner >= 0
    right = prior.most_likely_distance(view.similarity[linked], scale, view.sigma) == distance[linked]
    measure, blind = "share of distances guessed exactly", _mode_frequency(distance[linked])
    found, figures = (
        binomial_estimate(int(right.sum()), len(right)),
        {"bound tau": success_bound(view.sigma, scale.deviation)},
    )
    if isinstance(prior, GaussianPrior):
        figures[EXPECTED_SHARE] = expected_success_rate(distance[linked], scale, view.sigma)
    return AttackFinding("greedy, distances", Adversary.PRIMARY, measure, found, blind, len(right), prior.knew, figures)


@timed
def greedy_attack(
    view: PrimaryView,
    codes: Codebook,
    *,
    rng: np.random.Generator,
    queries: int = 1,
    targets: int | None = 5_000,
    prior: DistancePrior | None = None,
) -> AttackFinding:
    """Guess the filters of named partners from ``queries`` links each, the paper's |Q|; one is the paper's best choice.

    Without ``prior`` it is the paper's attacker. ``figures`` also holds how often all distances were right, which is
    what Theorem 2 bounds, and the bound itself.
    """
    queries, prior = validate_integer(queries, "queries", least=1), prior or GaussianPrior()
    scale, named = view.known_scale(), LinksByPartner.of(view)
    codes.check_covers(named.row, len(view))
    chosen = sample_targets(np.flatnonzero(named.degree >= queries), targets, rng)
    links = _sample_links(named, chosen, queries, rng)  # (targets, Q)
    guessed = prior.most_likely_distance(named.similarity[links].ravel(), scale, view.sigma).reshape(links.shape)
    hits, right = _score_guesses(codes, named, chosen, links, guessed, rng)
    bound = success_bound(view.sigma, scale.deviation) ** queries
    distances = binomial_estimate(int(right.sum()), len(right))
    figures = {
        "bound tau": bound,
        "share of distances guessed": distances.value,
        "share of distances guessed, low": distances.low,
        "links used of each target": float(queries),
    }
    measure = "share of partner filters guessed exactly"
    found, blind = binomial_estimate(int(hits.sum()), len(hits)), 1.0 / len(codes)
    return AttackFinding("greedy", Adversary.PRIMARY, measure, found, blind, len(hits), prior.knew, figures)


def _mode_frequency(distance: Floats) -> float:
    """Success of always naming the commonest distance."""
    return float(np.unique(distance, return_counts=True)[1].max() / len(distance))


def _sample_links(named: LinksByPartner, chosen: Integers, queries: int, rng: np.random.Generator) -> Integers:
    """For every target ``queries`` of its links, (targets, Q), each link at most once."""
    if not len(chosen):
        raise SettingError(f"queries={queries}, but no partner is named by so many records; ask for fewer")
    drawn = [rng.choice(named.degree[place], queries, replace=False) for place in chosen]
    return np.asarray(named.start[chosen][:, None] + np.array(drawn))


def _score_guesses(
    codes: Codebook, named: LinksByPartner, chosen: Integers, links: Integers, guessed: Floats, rng: np.random.Generator
) -> tuple[Integers, Integers]:
    """Step 3 for all targets: whether the filter drawn is the true one, and whether all distances were right."""
    truth = codes.truth[named.row[chosen]]
    hits, right = np.zeros(len(chosen), np.int64), np.zeros(len(chosen), np.int64)
    for first in range(0, len(chosen), TARGETS_PER_TILE):
        tile = slice(first, first + TARGETS_PER_TILE)
        fits = np.ones((len(truth[tile]), len(codes)), dtype=bool)
        for record, distance in zip(named.record[links[tile]].T, guessed[tile].T, strict=True):
            fits &= codes.distances(record) == distance[:, None]
        ticket = np.where(fits, rng.random(fits.shape), -1.0)
        right[tile] = np.take_along_axis(fits, truth[tile, None], axis=1)[:, 0]
        hits[tile] = right[tile] & (ticket.argmax(axis=1) == truth[tile])
    return hits, right


# The attack the paper leaves open (appendix B, "non-greedy"): no distance is guessed, all links are weighed together
#
# Every identifier the partner's record may have is encoded and compared with the primary's own; the one under which the
# noisy similarities of all links are most likely is the guess. More links mean less noise, whatever Theorem 2 says of
# the greedy attacker.
#
# Letters: L links of a partner, M possible identifiers.


MAX_LINKS = 200  # of one partner; more change little and cost time
GRID_POINTS = 11  # points a side
ZOOM_FACTOR = 3.0  # how much finer each grid is than the last
ZOOM_LEVELS = 7  # from the reach of a partner's records to a thousandth of it


def deviance(similarity: Floats, distance: Floats, scale: Scale, sigma: float) -> Floats:
    """Minus twice the log-likelihood of each possible identifier: (L,), (L, M) -> (M,).

    >>> deviance(np.array([0.0, 1.0]), np.array([[5.0, 9.0], [4.0, 9.0]]), Scale(mean=-5.0, deviation=1.0), sigma=1.0)
    array([ 0., 41.])
    """
    expected = (-distance - scale.mean) / scale.deviation  # (L, M)
    return np.asarray((((similarity[:, None] - expected) / max(sigma, MIN_SIGMA)) ** 2).sum(axis=0))


@timed
def likelihood_attack(
    view: PrimaryView, codes: Codebook, *, rng: np.random.Generator, targets: int | None = 500
) -> AttackFinding:
    """Guess the filters of named partners from all links of each."""
    scale, named = view.known_scale(), LinksByPartner.of(view)
    codes.check_covers(named.row, len(view))
    chosen = sample_targets(np.arange(len(named)), targets, rng)
    hits = 0
    for place in chosen:
        links = _sample_partner_links(named, int(place), rng)
        records, back = np.unique(named.record[links], return_inverse=True)
        cost = deviance(named.similarity[links], codes.distances(records)[back], scale, view.sigma)
        hits += int(rng.choice(np.flatnonzero(cost == cost.min())) == codes.truth[named.row[place]])
    return AttackFinding(
        "likelihood",
        Adversary.PRIMARY,
        "share of partner filters guessed exactly",
        binomial_estimate(hits, len(chosen)),
        1.0 / len(codes),
        len(chosen),
        "own filters, the key, the list of possible identifiers, the scale and the noise's deviation",
        {"bound tau": success_bound(view.sigma, scale.deviation)},
    )


@timed
def grid_attack(
    view: PrimaryView,
    own: Floats,
    truth: TrueLocations,
    encoded: PlaceEncoder,
    *,
    rng: np.random.Generator,
    targets: int | None = 500,
) -> AttackFinding:
    """Multilateration through any encoding: the most likely place of each target, searched on ever finer grids.

    ``own`` holds the primary's places in degrees.
    """
    scale, origin, fresh = view.known_scale(), mean_place(validate_places(own)), view.distinct_records(own)
    named = LinksByPartner.of(view.of_records(fresh))
    sight = _PlaceLikelihood(
        encoded, to_metres(own[fresh], origin), encoded.encode(own[fresh]), origin, scale, view.sigma
    )
    chosen = sample_targets(np.arange(len(named)), targets, rng)
    guess = np.array([sight.located(named, _sample_partner_links(named, int(place), rng)) for place in chosen])
    knew = "its own places, the key, noisy similarities, their scale and the noise's deviation"
    return location_finding(
        LocationGuesses("grid likelihood", knew, named.row[chosen], to_degrees(guess, origin)), truth, own, rng
    )


@dataclass(frozen=True, eq=False, repr=False)
class _PlaceLikelihood:
    """All that the primary has to locate a partner's record with."""

    encoded: PlaceEncoder
    own: Floats  # (n, 2), metres
    filters: Records
    origin: Floats
    scale: Scale
    sigma: float

    def located(self, named: LinksByPartner, links: Integers) -> Floats:
        """The most likely point; the middle of the records that name the partner is a weak prior."""
        records, back = np.unique(named.record[links], return_inverse=True)
        start = self.own[records][back].mean(axis=0)
        reach = max(1.0, float(np.sqrt(((self.own[records][back] - start) ** 2).sum(axis=1).mean())))
        filters, seen = take_records(self.filters, records), named.similarity[links]

        def cost(points: Floats) -> Floats:
            possible = self.encoded.encode(to_degrees(points, self.origin))
            apart = distance_matrix(self.encoded.metric, filters, possible)[back]  # (L, M)
            away = ((points - start) ** 2).sum(axis=1) / (PRIOR_DEVIATION * reach) ** 2
            return np.asarray(deviance(seen, apart, self.scale, self.sigma) + away)

        return _search_grid(cost, start, 2.0 * reach)


def _search_grid(cost: Callable[[Floats], Floats], start: Floats, reach: float) -> Floats:
    """The cheapest point, by grids that close in."""
    side = np.linspace(-1.0, 1.0, GRID_POINTS)
    square = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    best = start
    for _ in range(ZOOM_LEVELS):
        points = best + reach * square
        best = points[cost(points).argmin()]
        reach /= ZOOM_FACTOR
    return best


def _sample_partner_links(named: LinksByPartner, place: int, rng: np.random.Generator) -> Integers:
    here = named.links_of(place)
    every = np.arange(here.start, here.stop)
    return every if len(every) <= MAX_LINKS else rng.choice(every, MAX_LINKS, replace=False)
