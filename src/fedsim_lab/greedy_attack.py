"""The paper's greedy attack on filters (section 5, steps 1 to 3), for its tables.

The audit has stronger ones: on the distance behind a similarity, without which no filter can be guessed, and on filters
from all links of a partner.
"""

import numpy as np
from numpy.random import Generator

from fedsim import errors, validation
from fedsim.privacy.bounds import success_bound
from fedsim_audit.attacks.attack_finding import AttackFinding, binomial_estimate, sample_targets
from fedsim_audit.attacks.similarity_attacks import (
    GREEDY_KNOWLEDGE,
    Codebook,
    LinksByPartner,
    PrimaryView,
    filter_finding,
    most_likely_distance,
)

TARGETS_PER_TILE = 64


def greedy_attack(
    view: PrimaryView, codes: Codebook, *, rng: Generator, queries: int = 1, targets: int | None = 5_000
) -> AttackFinding:
    """Guess the filters of listed partners from one or a few links each.

    Parameters
    ----------
    view
        What the primary received of the linkage, with its scale.
    codes
        The primary's filters, and those that a partner may have.
    rng
        Random generator for the targets, the links used and the guesses.
    queries
        Number of links used per target (|Q| in the paper, where one is best).
    targets
        Number of partners to guess, drawn at random; None for all.

    Returns
    -------
    AttackFinding
        Its ``figures`` also hold how often all distances were right, and the bound of Theorem 2 on that rate.
    """
    queries = validation.validate_integer(queries, "queries", least=1)
    scale, named = view.known_scale(), LinksByPartner.of(view)
    codes.check_covers(named.row, len(view))
    chosen = sample_targets(np.flatnonzero(named.degree >= queries), targets, rng)
    if not len(chosen):
        message = f"queries={queries}, but no partner is listed by that many records; use fewer queries"
        raise errors.SettingError(message, code="too-many-queries", queries=queries)
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
    return filter_finding("greedy", int(hits.sum()), (len(hits), len(codes)), GREEDY_KNOWLEDGE, figures)
