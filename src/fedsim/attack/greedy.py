"""The paper's greedy attack on noisy similarities (section 5, steps 1 to 3), and with a better prior (appendix B).

One or a few links of a partner are chosen; each similarity is turned into its most likely distance; a filter is drawn
from all those which are that far from the primary's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from fedsim.attack.codebook import Codebook
from fedsim.attack.finding import Adversary, Finding, drawn_targets, share, timed
from fedsim.attack.view import NamedPartners, PrimaryView
from fedsim.errors import SettingError
from fedsim.privacy.bounds import success_bound
from fedsim.types import Floats, Integers, Scale
from fedsim.whole import whole_number

TARGETS_AT_ONCE = 64
LIKELIHOODS_AT_ONCE = 1 << 22
EXPECTED = "expected share"  # over all draws of the noise


class Prior(Protocol):
    """What the attacker believes of distances before it sees a similarity."""

    @property
    def knew(self) -> str: ...

    def likeliest(self, similarity: Floats, scale: Scale, sigma: float) -> Floats:
        """The most likely whole distance behind every noisy similarity."""


@dataclass(frozen=True)
class GaussianPrior:
    """The paper's attacker: scaled similarities have a standard normal distribution.

    >>> GaussianPrior().likeliest(np.array([0.5]), Scale(mean=-100.0, deviation=10.0), sigma=1.0)
    array([98.])
    """

    knew: str = "own filters, the scale of the similarities and the noise's deviation; a normal prior"

    def likeliest(self, similarity: Floats, scale: Scale, sigma: float) -> Floats:
        shrunk = similarity / (1.0 + sigma**2)  # steps 1 and 2
        return np.rint(-scale.deviation * shrunk - scale.mean)


@dataclass(frozen=True, eq=False, repr=False)
class KnownDistances:
    """An attacker who knows how distances are distributed, from a linkage of its own say; a histogram smooths them."""

    distance: Floats
    bins: int = 200
    knew: str = "own filters, the scale of the similarities, the noise's deviation and the distribution of distances"

    def likeliest(self, similarity: Floats, scale: Scale, sigma: float) -> Floats:
        observed = np.rint(-scale.deviation * similarity - scale.mean)
        if sigma == 0:
            return observed
        first, last, log_density = self._bins()
        step = max(1, LIKELIHOODS_AT_ONCE // len(first))
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


def expected_share(distance: Floats, scale: Scale, sigma: float) -> float:
    """Which share of these distances the paper's attacker guesses exactly, on average over all draws of the noise.

    This is what Theorem 2 bounds, without the luck of one draw; records that share their identifiers share their draw,
    so that counts of hits scatter far more than their number suggests.

    >>> f"{expected_share(np.array([90.0, 100.0, 100.0, 110.0]), Scale(-100.0, 7.07), sigma=1.0):.3f}"
    '0.077'
    """
    if sigma == 0:
        return 1.0
    whole, times = np.unique(distance, return_counts=True)
    similarity, half, shrink = -(whole + scale.mean) / scale.deviation, 0.5 / scale.deviation, 1.0 + sigma**2
    low, high = (((similarity + step) * shrink - similarity) / sigma for step in (-half, half))
    return float(np.average(ndtr(high) - ndtr(low), weights=times))


@timed
def distance_attack(view: PrimaryView, distance: Floats, *, prior: Prior | None = None) -> Finding:
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
    right = prior.likeliest(view.similarity[linked], scale, view.sigma) == distance[linked]
    measure, blind = "share of distances guessed exactly", _commonest(distance[linked])
    found, figures = share(int(right.sum()), len(right)), {"bound tau": success_bound(view.sigma, scale.deviation)}
    if isinstance(prior, GaussianPrior):
        figures[EXPECTED] = expected_share(distance[linked], scale, view.sigma)
    return Finding("greedy, distances", Adversary.PRIMARY, measure, found, blind, len(right), prior.knew, figures)


@timed
def greedy_attack(
    view: PrimaryView,
    codes: Codebook,
    *,
    rng: np.random.Generator,
    queries: int = 1,
    targets: int | None = 5_000,
    prior: Prior | None = None,
) -> Finding:
    """Guess the filters of named partners from ``queries`` links each, the paper's |Q|; one is the paper's best choice.

    Without ``prior`` it is the paper's attacker. ``figures`` also holds how often all distances were right, which is
    what Theorem 2 bounds, and the bound itself.
    """
    queries, prior = whole_number(queries, "queries", least=1), prior or GaussianPrior()
    scale, named = view.known_scale(), NamedPartners.of(view)
    codes.check_covers(named.row, len(view))
    chosen = drawn_targets(np.flatnonzero(named.degree >= queries), targets, rng)
    links = _drawn_links(named, chosen, queries, rng)  # (targets, Q)
    guessed = prior.likeliest(named.similarity[links].ravel(), scale, view.sigma).reshape(links.shape)
    hits, right = _judged(codes, named, chosen, links, guessed, rng)
    bound = success_bound(view.sigma, scale.deviation) ** queries
    distances = share(int(right.sum()), len(right))
    figures = {
        "bound tau": bound,
        "share of distances guessed": distances.value,
        "share of distances guessed, low": distances.low,
        "links used of each target": float(queries),
    }
    measure = "share of partner filters guessed exactly"
    found, blind = share(int(hits.sum()), len(hits)), 1.0 / len(codes)
    return Finding("greedy", Adversary.PRIMARY, measure, found, blind, len(hits), prior.knew, figures)


def _commonest(distance: Floats) -> float:
    """Success of always naming the commonest distance."""
    return float(np.unique(distance, return_counts=True)[1].max() / len(distance))


def _drawn_links(named: NamedPartners, chosen: Integers, queries: int, rng: np.random.Generator) -> Integers:
    """For every target ``queries`` of its links, (targets, Q), each link at most once."""
    if not len(chosen):
        raise SettingError(f"queries={queries}, but no partner is named by so many records; ask for fewer")
    drawn = [rng.choice(named.degree[place], queries, replace=False) for place in chosen]
    return np.asarray(named.start[chosen][:, None] + np.array(drawn))


def _judged(
    codes: Codebook, named: NamedPartners, chosen: Integers, links: Integers, guessed: Floats, rng: np.random.Generator
) -> tuple[Integers, Integers]:
    """Step 3 for all targets: whether the filter drawn is the true one, and whether all distances were right."""
    truth = codes.truth[named.row[chosen]]
    hits, right = np.zeros(len(chosen), np.int64), np.zeros(len(chosen), np.int64)
    for first in range(0, len(chosen), TARGETS_AT_ONCE):
        tile = slice(first, first + TARGETS_AT_ONCE)
        fits = np.ones((len(truth[tile]), len(codes)), dtype=bool)
        for record, distance in zip(named.record[links[tile]].T, guessed[tile].T, strict=True):
            fits &= codes.distances(record) == distance[:, None]
        ticket = np.where(fits, rng.random(fits.shape), -1.0)
        right[tile] = np.take_along_axis(fits, truth[tile, None], axis=1)[:, 0]
        hits[tile] = right[tile] & (ticket.argmax(axis=1) == truth[tile])
    return hits, right
