"""Attacks by a blind coordinator on the distances that it opens, without filters, columns or an order of records.

For every distinct record of the primary, it sees the distances to all records of a secondary, up to a secret shift and
in an order that changes from record to record. What remains is the *profile* of a record: its distances in ascending
order. Anyone who can compute the profiles of known identifiers can compare them.

Letters: n rows (distinct records of the primary), m records of the secondary, V identifiers of a public list,
Q levels of a profile, A columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy import optimize, spatial

from fedsim.attack.filter_attacks import mean_rank_correlation, rank_correlation
from fedsim.attack.finding import (
    Adversary,
    AttackFinding,
    AttackKind,
    binomial_estimate,
    bootstrap_estimate,
    roc_auc,
    timed,
)
from fedsim.errors import InputError
from fedsim.linkage import blind_linkage
from fedsim.types import EncodedTable, Floats, Integers

NEAREST_RANKS = 20  # of a profile, compared one by one; they reveal the most about a record
LEVELS = np.linspace(0.0, 1.0, 101)
MEMBERSHIP_AUC, RECORD_SHARE = "AUC of being in the table", "share of rows whose record is named"


@dataclass(frozen=True, eq=False, repr=False)
class BlindView:
    """What a blind coordinator sees of a linkage.

    Parameters
    ----------
    differences
        The distances of every row minus the smallest, in ascending order, (n, m).
    row
        The row of every record of the primary; only used to count successes.
    """

    differences: Floats
    row: Integers

    @classmethod
    def of(cls, queries: EncodedTable, candidates: EncodedTable, metric: str, secret: bytes) -> BlindView:
        """Return the view of two encoded tables, with the rows in the primary's secret order."""
        names = blind_linkage.blind_queries(queries, blind_linkage.blind_metric(metric, queries.n_bits), secret, "")
        opened = blind_linkage.opened_view(queries, candidates, metric, secret)
        return cls(opened.astype(np.float64), names.place.astype(np.int64))

    @property
    def by_record(self) -> Floats:
        """The differences of every record, which only the primary can look up."""
        return self.differences[self.row]

    def __len__(self) -> int:
        return len(self.differences)

    def __repr__(self) -> str:
        return f"BlindView({len(self)} rows x {self.differences.shape[1]} differences)"


def distance_profiles(distances: Floats) -> Floats:
    """Return every row's nearest distances and quantiles minus their mean, (n, m) -> (n, Q); order does not matter.

    >>> distance_profiles(np.array([[4.0, 2.0], [12.0, 10.0]]))[:, [0, -1]].round(6).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """
    ordered = np.sort(distances, axis=1)
    near = ordered[:, :NEAREST_RANKS] if ordered.shape[1] >= len(LEVELS) else ordered[:, :0]
    profile = np.hstack([near, np.quantile(ordered, LEVELS, axis=1).T])
    return np.asarray(profile - profile[:, -len(LEVELS) :].mean(axis=1, keepdims=True))


@timed
def profile_attack(
    view: BlindView, expected: tuple[Floats, Floats], truth: Integers, *, knew: str, attack: str = "distance profiles"
) -> AttackFinding:
    """Assign to every row the public identifier with the most similar profile.

    Parameters
    ----------
    view
        What the coordinator sees.
    expected
        Two draws of the distances from every public identifier to the records that the coordinator assumes the
        secondary to have, (V, any number) each. The difference between the draws determines the weight of each part of
        a profile.
    truth
        The index of each distinct record's identifier in the public list, (n,); only used to count successes.
    knew
        What the coordinator knows, for the report.
    attack
        Name of the attack.

    Returns
    -------
    AttackFinding
        Its score is the share of rows named. ``figures`` holds how often the *record* behind a row is named, which the
        secret order of rows leaves to chance, and how well the coordinator recognises which identifiers the table has.
    """
    seen, (wanted, again) = distance_profiles(view.differences), map(distance_profiles, expected)
    if len(view) > len(wanted):
        message = f"{len(view)} rows, but a public list of {len(wanted)}; pass a list that has every identifier"
        raise InputError(message, code="shape-mismatch")
    width = min(part.shape[1] for part in (seen, wanted, again))  # short tables have no nearest ranks
    seen, wanted, again = (part[:, -width:] for part in (seen, wanted, again))
    doubt = np.sqrt(((wanted - again) ** 2).mean(axis=0))
    weight = 1.0 / (doubt + 1e-6 * wanted.std() + 1e-12)
    cost = spatial.distance.cdist(seen * weight, (wanted + again) / 2.0 * weight)  # (n, V)
    row, named = optimize.linear_sum_assignment(cost)  # no identifier has two rows
    guess = np.empty(len(view), dtype=np.int64)
    guess[row] = named
    hits = int((guess[view.row] == truth).sum())
    inside = np.isin(np.arange(len(wanted)), truth)
    figures = {
        RECORD_SHARE: float((view.row == np.arange(len(view))).mean()),
        "share of rows whose record is guessed blindly": 1.0 / len(view),
        MEMBERSHIP_AUC: roc_auc(-cost.min(axis=0), inside),
    }
    return _row_finding(attack, AttackKind.PROFILES, hits, (len(view), len(wanted)), knew, figures)


@timed
def profile_order_attack(view: BlindView, truth: Floats, *, rng: Generator) -> AttackFinding:
    """Recover the order of rows along each true column from their profiles alone.

    Parameters
    ----------
    view
        What the coordinator sees.
    truth
        The true numbers of every distinct record, (n, A); only used to score.
    rng
        Random generator for the interval.

    Returns
    -------
    AttackFinding
        Its score is the mean rank correlation with the true numbers of the rows, because profiles reveal how central a
        row is. ``figures`` holds the same for records, whose rows the coordinator does not know.
    """
    profiles = distance_profiles(view.by_record)
    centred = profiles - profiles.mean(axis=0)
    places = (centred @ np.linalg.svd(centred, full_matrices=False)[2][: truth.shape[1]].T).T
    best = [max(places, key=lambda place: rank_correlation(place, column)) for column in truth.T]

    def mean_order(rows: Integers) -> float:
        return mean_rank_correlation([place[rows] for place in best], truth[rows])

    score = bootstrap_estimate(mean_order, len(view), rng, resamples=50)
    measure, knew = "mean rank correlation with the true numbers", "differences of distances, in no order"
    kind, who = AttackKind.BIT_ORDER, Adversary.COORDINATOR
    unordered = np.argsort(view.row)  # the records behind the rows, in the order of rows
    by_record = mean_rank_correlation([place[unordered] for place in best], truth)
    figures = {"rank correlation with the true numbers of records": by_record}
    return AttackFinding("order of distance profiles", kind, who, measure, score, 0.0, len(view), knew, figures)


@timed
def profile_frequency_attack(view: BlindView, count: Integers) -> AttackFinding:
    """Name rows by frequency: the most frequent profile is taken to be the most common identifier.

    Parameters
    ----------
    view
        What the coordinator sees.
    count
        How often each distinct record's identifier occurs in the primary's table, which serves as the public list; the
        identifiers are the distinct records themselves, (n,).

    Returns
    -------
    AttackFinding
        Its score is the share of rows named; the primary sends every distinct identifier once, so nothing repeats.
    """
    _, kind, times = np.unique(distance_profiles(view.differences), axis=0, return_inverse=True, return_counts=True)
    by_frequency = np.argsort(-times[kind.reshape(-1)], kind="stable")
    named = np.empty(len(view), dtype=np.int64)
    named[by_frequency] = np.argsort(-count, kind="stable")
    hits = int((named[view.row] == np.arange(len(view))).sum())
    knew = "differences of distances, and a public list of identifiers with their frequencies"
    figures = {"profiles that repeat": float((times > 1).sum())}
    return _row_finding("frequency of profiles", AttackKind.NAMES, hits, (len(view), len(view)), knew, figures)


def _row_finding(
    attack: str, kind: AttackKind, hits: int, sizes: tuple[int, int], knew: str, figures: dict[str, float]
) -> AttackFinding:
    """Return the result of naming rows; ``sizes`` are the rows and the identifiers that they may have."""
    (rows, possible), score = sizes, binomial_estimate(hits, sizes[0])
    measure, who = "share of rows named", Adversary.COORDINATOR
    return AttackFinding(attack, kind, who, measure, score, 1.0 / possible, rows, knew, figures)
