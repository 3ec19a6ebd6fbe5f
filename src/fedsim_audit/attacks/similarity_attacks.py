"""What the primary sees of a linkage, and attacks on its noisy similarities.

The attacks are the paper's greedy attack on distances and a likelihood attack that uses all links of a partner.

Letters: n records, K partners of each, J partners that are listed at all, L links (of one partner in the attacks),
M possible identifiers, Q links used per target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr

from fedsim import errors
from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.linkage import metrics, soft_linkage
from fedsim.linkage.search.runner import Records, count_records, distinct_records, take_records
from fedsim.privacy.bounds import bayes_success, success_bound
from fedsim.types import Floats, Integers, LinkageResult, Scale
from fedsim_audit.attacks.attack_finding import AttackFinding, binomial_estimate, sample_targets

MIN_SIGMA = 1e-6  # similarities are rounded even where they have no noise
GREEDY_KNOWLEDGE = "own filters, the scale of the similarities and the noise's deviation; a normal prior"
EXPECTED_SHARE = "expected share"  # over all draws of the noise
BAYES_SHARE = "share for an attacker who knows the histogram of the distances"  # over all draws, too
MAX_LINKS = 200  # of one partner; more change little and cost time


@dataclass(frozen=True, eq=False, repr=False)
class PrimaryView:
    """What the primary receives: pseudonymous partner rows and noisy, scaled similarities, but no distances.

    Parameters
    ----------
    partner
        Partner rows, (n, K); -1 marks a suppressed partner.
    similarity
        Their similarities, (n, K).
    scale
        How distances were scaled; None if the attacker does not know it. In the paper, the attacker does.
    sigma
        Standard deviation of the noise on the similarities.

    Examples
    --------
    >>> PrimaryView(np.array([[0, 2]]), np.array([[0.9, 0.1]]))
    PrimaryView(1 records x 2 partners)
    """

    partner: Integers  # (n, K)
    similarity: Floats  # (n, K)
    scale: Scale | None = None
    sigma: float = 0.0

    @classmethod
    def of(cls, links: LinkageResult) -> PrimaryView:
        """Return the part of these links that the primary receives."""
        return cls(links.partner, links.similarity, links.scale, links.sigma)

    def __post_init__(self) -> None:
        if self.partner.ndim != 2 or self.partner.shape != self.similarity.shape or not self.partner.size:
            shapes = f"partners have shape {self.partner.shape} and similarities {self.similarity.shape}"
            raise errors.InputError(f"{shapes}; pass both with a row per record and K columns", code="shape-mismatch")

    def known_scale(self) -> Scale:
        """Return the scale, for attacks that need it."""
        if self.scale is None:
            message = "this attack needs the scale of the similarities; pass a view with a scale"
            raise errors.SettingError(message, code="scale-unknown")
        return self.scale

    def distinct_records(self, own: Floats) -> Integers:
        """Return one record of each group with the same place, list and noise.

        Equal identifiers get equal noise, so copies carry no additional information.

        >>> view = PrimaryView(np.array([[1], [1], [1]]), np.array([[0.5], [0.5], [0.6]]))
        >>> view.distinct_records(np.zeros((3, 2))).tolist()
        [0, 2]
        """
        first, _ = distinct_records((own, self.partner, self.similarity))
        return np.sort(first)

    def of_records(self, records: Integers) -> PrimaryView:
        """Return the view of some records."""
        return PrimaryView(self.partner[records], self.similarity[records], self.scale, self.sigma)

    def __len__(self) -> int:
        return len(self.partner)

    def __repr__(self) -> str:
        return f"PrimaryView({len(self)} records x {self.partner.shape[1]} partners)"


@dataclass(frozen=True, eq=False, repr=False)
class LinksByPartner:
    """The links grouped by partner: for every partner that is listed, the records that list it.

    ``row`` (J,) holds the partner rows in ascending order; the links of ``row[j]`` are ``start[j]`` to ``start[j + 1]``
    of ``record``, ``rank`` (the column in the list) and ``similarity``.
    """

    row: Integers
    start: Integers
    record: Integers
    rank: Integers
    similarity: Floats

    @classmethod
    def of(cls, view: PrimaryView) -> LinksByPartner:
        """Group a view's links by partner."""
        flat = view.partner.ravel()
        order = np.argsort(flat, kind="stable")
        order = order[flat[order] >= 0]
        if not len(order):
            raise errors.InputError("no record has a partner, so there is nothing to attack", code="no-links")
        row, start = np.unique(flat[order], return_index=True)
        record, rank = np.divmod(order, view.partner.shape[1])
        ends = np.append(start, len(order)).astype(np.int64)
        return cls(row.astype(np.int64), ends, record, rank, view.similarity.ravel()[order])

    def __len__(self) -> int:
        return len(self.row)

    @property
    def degree(self) -> Integers:
        """The number of records that list each partner, (J,)."""
        return np.diff(self.start)

    @property
    def owner(self) -> Integers:
        """The index into ``row`` of the partner of every link, (L,)."""
        return np.repeat(np.arange(len(self)), self.degree)

    def sums(self, values: Floats) -> Floats:
        """Sum link values over each partner, (L, ...) -> (J, ...)."""
        return np.add.reduceat(values, self.start[:-1], axis=0)

    def means(self, values: Floats) -> Floats:
        """Return the mean of link values over each partner, (L, ...) -> (J, ...)."""
        return self.sums(values) / self.degree.reshape(-1, *[1] * (values.ndim - 1))


@dataclass(frozen=True, eq=False, repr=False)
class Codebook:
    """The primary's own filters, and all filters that a partner record may have.

    The primary holds the linkage key, so it can encode any list of possible identifiers (all addresses of a town, a
    register of names); it does not know which partner row is which.

    Parameters
    ----------
    metric
        The metric between filters.
    own
        The filters of the primary's records.
    possible
        The filters that a partner record may have.
    truth
        The true index into ``possible`` of every partner row; only used to count successes.
    """

    metric: metrics.Metric
    own: Records
    possible: Records
    truth: Integers

    @classmethod
    def of(cls, metric: metrics.Metric, primary_ids: Any, secondary_ids: Any) -> Codebook:
        """Return the codebook of the worst case: the possible identifiers are exactly those of the secondary.

        >>> from fedsim.linkage import get_metric
        >>> book = Codebook.of(get_metric("levenshtein"), ["ann"], ["ann", "bob", "ann"])
        >>> len(book), book.truth.tolist()
        (2, [0, 1, 0])
        """
        own, partners = soft_linkage.prepare_tables(metric, primary_ids, secondary_ids, ("primary", "secondary"))
        first, kind = distinct_records(partners)
        return cls(metric, own, take_records(partners, first), kind.astype(np.int64))

    def __len__(self) -> int:
        return count_records(self.possible)

    def distances(self, records: Integers) -> Floats:
        """Return the distances from some own records to every possible filter."""
        return metrics.distance_matrix(self.metric, take_records(self.own, records), self.possible)

    def check_covers(self, rows: Integers, n_records: int) -> None:
        """Check that the codebook covers every partner row and every record of the links."""
        if len(rows) and rows.max() >= len(self.truth):
            message = f"the links name partner row {rows.max()}, but the codebook has {len(self.truth)} rows"
            raise errors.InputError(message, code="codebook-mismatch", limit=len(self.truth))
        if n_records != count_records(self.own):
            message = f"the links have {n_records} records, but the codebook has {count_records(self.own)}"
            raise errors.InputError(message, code="codebook-mismatch", limit=count_records(self.own))


# The paper's greedy attack (section 5): a similarity is turned into its most likely distance (steps 1 and 2). Step 3
# draws a filter from all those at that distance, which succeeds less often (``fedsim_lab.greedy_attack``).


def most_likely_distance(similarity: Floats, scale: Scale, sigma: float) -> Floats:
    """Return the most likely integer distance for noisy similarities, given a standard normal prior (steps 1 and 2).

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


def distance_attack(view: PrimaryView, distance: Floats) -> AttackFinding:
    """Guess the distance of every link (steps 1 and 2 of the greedy attack).

    A filter cannot be guessed more often than its distance, so this is the sharpest test of Theorem 2.

    Parameters
    ----------
    view
        What the primary received of the linkage, with its scale.
    distance
        The true distances, (n, K); only used to count successes.

    Examples
    --------
    >>> links = np.array([[100.0, 120.0]])
    >>> view = PrimaryView(np.array([[0, 1]]), np.array([[1.0, -1.0]]), Scale(-110.0, 10.0))
    >>> distance_attack(view, links).score.value
    1.0
    """
    scale, linked = view.known_scale(), view.partner >= 0
    right = most_likely_distance(view.similarity[linked], scale, view.sigma) == distance[linked]
    expected = expected_success_rate(distance[linked], scale, view.sigma)
    figures = {"bound tau": success_bound(view.sigma, scale.deviation), EXPECTED_SHARE: expected}
    figures[BAYES_SHARE] = bayes_success(view.sigma, scale.deviation, distance[linked])
    score, measure = binomial_estimate(int(right.sum()), len(right)), "share of distances guessed exactly"
    blind = float(np.unique(distance[linked], return_counts=True)[1].max() / len(right))  # the most common distance
    kind, who, knew = AttackKind.DISTANCES, Adversary.PRIMARY, GREEDY_KNOWLEDGE
    return AttackFinding("greedy, distances", kind, who, measure, score, blind, len(right), knew, figures)


# The attack that the paper leaves open (appendix B, "non-greedy"): every possible identifier is encoded and compared
# with the primary's own identifiers; the guess is the one that makes the noisy similarities of all links most likely.
# More links mean less noise, whatever Theorem 2 states about the greedy attacker.


def deviance(similarity: Floats, distance: Floats, scale: Scale, sigma: float) -> Floats:
    """Return minus twice the log-likelihood of each possible identifier, (L,) and (L, M) -> (M,).

    >>> deviance(np.array([0.0, 1.0]), np.array([[5.0, 9.0], [4.0, 9.0]]), Scale(mean=-5.0, deviation=1.0), sigma=1.0)
    array([ 0., 41.])
    """
    expected = (-distance - scale.mean) / scale.deviation  # (L, M)
    return np.asarray((((similarity[:, None] - expected) / max(sigma, MIN_SIGMA)) ** 2).sum(axis=0))


def likelihood_attack(
    view: PrimaryView, codes: Codebook, *, rng: Generator, targets: int | None = 500
) -> AttackFinding:
    """Guess the filters of listed partners from all links of each.

    Parameters
    ----------
    view
        What the primary received of the linkage, with its scale.
    codes
        The primary's filters, and those that a partner may have.
    rng
        Random generator for the targets, the links used and tie-breaking.
    targets
        Number of partners to guess, drawn at random; None for all.
    """
    scale, named = view.known_scale(), LinksByPartner.of(view)
    codes.check_covers(named.row, len(view))
    chosen = sample_targets(np.arange(len(named)), targets, rng)
    hits = 0
    for place in chosen:
        links = sample_partner_links(named, int(place), rng)
        records, back = np.unique(named.record[links], return_inverse=True)
        cost = deviance(named.similarity[links], codes.distances(records)[back], scale, view.sigma)
        hits += int(rng.choice(np.flatnonzero(cost == cost.min())) == codes.truth[named.row[place]])
    knew = "own filters, the key, the list of possible identifiers, the scale and the noise's deviation"
    figures = {"bound tau": success_bound(view.sigma, scale.deviation)}
    return filter_finding("likelihood", hits, (len(chosen), len(codes)), knew, figures)


def filter_finding(
    attack: str, hits: int, sizes: tuple[int, int], knew: str, figures: Mapping[str, float]
) -> AttackFinding:
    """Return the finding of an attack on filters; ``sizes`` are the numbers of targets and of possible filters."""
    (targets, possible), measure = sizes, "share of partner filters guessed exactly"
    kind, who, score = AttackKind.LIKELIHOOD, Adversary.PRIMARY, binomial_estimate(hits, targets)
    return AttackFinding(attack, kind, who, measure, score, 1.0 / possible, targets, knew, figures)


def sample_partner_links(named: LinksByPartner, place: int, rng: Generator) -> Integers:
    """Return the links of one partner, or a random sample of them."""
    every = np.arange(named.start[place], named.start[place + 1])
    return every if len(every) <= MAX_LINKS else rng.choice(every, MAX_LINKS, replace=False)
