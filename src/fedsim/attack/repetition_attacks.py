"""Attacks of a primary that asks again: what several jobs on the same rows, or many made-up records, reveal together.

Within a job nothing is drawn twice, so a request that is repeated gets the same answer. Another job draws its noise
anew, and another record has noise of its own; both average out. The primary is assumed to recognise the rows of an
earlier job, by the records that they are linked to.

Letters: n own records, K partners of each, J jobs, U rows, C numbers sent per row, P principal components of them,
F features, D principal components of these, k known rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.random import Generator

from fedsim.attack import finding, location_attacks
from fedsim.attack.cut_layer_attacks import inversion_attack
from fedsim.attack.finding import AttackFinding, AttackKind, timed
from fedsim.attack.location_attacks import LocationGuesses, PlaceEncoder, TrueLocations
from fedsim.attack.similarity_attacks import LinksByPartner, PrimaryView
from fedsim.errors import InputError
from fedsim.privacy.geodesy import mean_place, to_degrees, to_metres
from fedsim.types import Floats, Integers

MEDIAN_ROUNDS = 20  # of Weiszfeld's algorithm
SEPARATION_ROUNDS = 50  # in which averages of groups are taken apart
PENALTIES = np.logspace(-5, 1, 13)  # per known row
# Of the search for guesses on which jobs agree.
MIN_AGREEING, MAX_AGREEING = 3, 50  # jobs: all pairs of them are compared
MAX_COMPONENTS, MAX_DIMENSIONS = 32, 8  # of what a job sends, and of features
AGREEMENT_ROUNDS, AGREEMENT_PENALTY, HELD_OUT_SHARE = 10, 0.2, 0.5
AGREEMENT_WIDTHS = (0.1, 0.2, 0.4)  # guesses this near agree; in standard deviations of all guesses
AGREEMENT_POWERS = (1, 2, 4)  # from the mean of the guesses towards the one with most agreement
MIN_AGREEMENT = 1e-3  # of a guess that is far from all others
ROWS_PER_BLOCK = 256


def average_views(views: Sequence[PrimaryView]) -> PrimaryView:
    """Return the links of the first job with the mean of their similarities over all jobs, and the noise that is left.

    The views must name rows alike. Links that other jobs do not have, such as dummies, keep what they have.

    >>> views = [PrimaryView(np.array([[4, 2]]), np.array(s), sigma=1.0) for s in ([[0.5, 0.1]], [[0.7, 0.3]])]
    >>> mean = average_views(views)
    >>> mean.similarity.round(3).tolist(), round(mean.sigma, 3)
    ([[0.6, 0.2]], 0.707)
    """
    first = views[0]
    n_rows = 1 + max(int(view.partner.max()) for view in views)
    wanted, total, count = _pair_keys(first, n_rows), first.similarity.ravel().copy(), np.ones(first.partner.size)
    for view in views[1:]:
        keys = _pair_keys(view, n_rows)
        order = np.argsort(keys)
        place = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
        same = keys[place] == wanted
        total[same] += view.similarity.ravel()[place[same]]
        count += same
    mean, sigma = (total / count).reshape(first.partner.shape), first.sigma / math.sqrt(float(np.median(count)))
    return PrimaryView(first.partner, mean, first.scale, sigma)


def _pair_keys(view: PrimaryView, n_rows: int) -> Integers:
    """Return a number for every pair of a record and a row."""
    if len(view) * n_rows > np.iinfo(np.int64).max:
        raise InputError(f"{len(view)} records and {n_rows} rows have too many pairs", code="too-many-pairs")
    return np.asarray((np.arange(len(view))[:, None] * n_rows + view.partner).ravel(), dtype=np.int64)


def thin_links(view: PrimaryView, most: int, rng: Generator) -> PrimaryView:
    """Return the view with at most about so many links of each row, drawn at random.

    >>> view = PrimaryView(np.zeros((1000, 1), np.int64), np.zeros((1000, 1)))
    >>> left = thin_links(view, 100, np.random.default_rng(0)).partner >= 0
    >>> 50 < int(left.sum()) < 150
    True
    """
    degree = np.bincount(view.partner[view.partner >= 0], minlength=1)
    chance = np.where(view.partner >= 0, most / np.maximum(degree, 1)[view.partner], 1.0)
    return replace(view, partner=np.where(rng.random(view.partner.shape) < chance, view.partner, -1))


def locate_rows(
    view: PrimaryView, own: Floats, n_rows: int, encoder: PlaceEncoder | None, *, rng: Generator
) -> dict[str, Floats]:
    """Return where one job places every row, (U, 2) in degrees, NaN for a row that it does not list, in two ways.

    One is the centre of the records that list a row; the other uses similarities, by the encoding of places if the
    primary can apply it, else by distances in metres. Which is nearer depends on the job.
    """
    named, origin = LinksByPartner.of(view), mean_place(own)
    metres = to_metres(own, origin)
    guesses = {"centre": (named.row, to_degrees(location_attacks.ranked_centroids(named, metres), origin))}
    if encoder is None:
        line = location_attacks.fit_similarity_line(named, metres, view.sigma)
        points = location_attacks.multilaterate(named, metres, line)
        guesses["multilateration"] = named.row, to_degrees(points, origin)
    else:
        on_grid = location_attacks.guess_on_grid(view, own, encoder, rng=rng, targets=None)
        guesses[on_grid.attack] = on_grid.row, on_grid.places
    found = {way: np.full((n_rows, 2), np.nan) for way in guesses}
    for way, (rows, places) in guesses.items():
        found[way][rows] = places
    return found


def geometric_medians(points: Floats) -> Floats:
    """Return for every row the point with the least sum of distances to its points, (J, U, 2) -> (U, 2), NaN left out.

    It is the most likely place behind points displaced by planar Laplace noise, and closer to it than their mean.

    >>> geometric_medians(np.array([[[0.0, 0.0]], [[0.0, 1.0]], [[0.0, 50.0]]])).round(1).tolist()
    [[0.0, 1.0]]
    """
    middle = np.nanmedian(points, axis=0)
    for _ in range(MEDIAN_ROUNDS):
        away = np.maximum(np.hypot(*np.moveaxis(points - middle, -1, 0)), 1e-9)  # (J, U)
        weight = 1.0 / away[..., None]
        middle = np.nansum(weight * points, axis=0) / np.nansum(weight, axis=0)
    return np.asarray(middle)


@timed
def repeated_location_attack(
    jobs: Sequence[Mapping[str, Floats]], own: Floats, truth: TrueLocations, *, rng: Generator
) -> AttackFinding:
    """Locate every row by the middle of where the jobs place it: each job displaces it anew. The better way counts.

    Parameters
    ----------
    jobs
        Where each job places the rows, as :func:`locate_rows` returns it.
    own
        The primary's places, by which blind guessing is measured, (n, 2).
    truth
        The true places of the rows; only used to evaluate the guesses.
    rng
        Random generator of the interval.
    """
    origin, findings = mean_place(own), []
    for way in jobs[0]:
        points = np.stack([job[way] for job in jobs])  # (J, U, 2)
        listed = np.flatnonzero(np.isfinite(points[..., 0]).any(axis=0))
        metres = np.full((len(jobs), len(listed), 2), np.nan)
        there = np.isfinite(points[:, listed, 0])
        metres[there] = to_metres(points[:, listed][there], origin)
        guess = to_degrees(geometric_medians(metres), origin)
        knew = f"its own places and its links in {len(jobs)} jobs ({way})"
        guesses = LocationGuesses("places", knew, listed, guess)
        findings.append(location_attacks.location_finding(guesses, truth, own, rng))
    return max(findings, key=lambda found: (found.score.value, -found.figures[finding.MEDIAN_ERROR_METRES]))


@dataclass(frozen=True, eq=False, repr=False)
class JobGuesses:
    """What one job reveals of all rows: guesses of their scaled features, and which rows it sends the same numbers for.

    ``sent`` are the principal components of what it sends; they are needed where rows exchange features.
    """

    guess: Floats  # (U, F)
    group: Integers | None  # (U,)
    sent: Floats | None  # (U, P)

    @classmethod
    def of(cls, sent: Floats, features: Floats, known: Integers, *, exchanged: bool = False) -> JobGuesses:
        """Guess the features of all rows, (U, F), from what a job sends, (U, C), and those of the known rows."""
        known = np.unique(known)
        components = _principal_components(sent, MAX_COMPONENTS) if exchanged else None
        return cls(held_out_ridge(sent, _scaled(features, known), known), _equal_rows(sent), components)


@timed
def repeated_inversion_attack(
    jobs: Sequence[JobGuesses], features: Floats, known: Integers, *, rng: Generator
) -> AttackFinding:
    """Combine the guesses of all jobs, and learn features from these. The better combination counts.

    Every job has weights of its own, so what jobs send cannot be averaged; guesses can. Rows for which a job sends the
    same numbers have averages of their group in common; another job forms other groups, so that the features of single
    rows follow from many of them. Where rows exchange features, guesses on which jobs agree are more likely to be of
    the row itself.

    Parameters
    ----------
    jobs
        What each job reveals of every row.
    features
        The true features of the same rows, (U, F).
    known
        Rows whose features the primary knows.
    rng
        Random generator of the models and the interval.
    """
    known = np.unique(known)
    wanted, seed = _scaled(features, known), int(rng.integers(2**63))
    combined, exchanged = [_average(jobs, wanted, known)], [job.sent for job in jobs if job.sent is not None]
    if len(exchanged) >= MIN_AGREEING:
        combined.append(agreeing_guesses(exchanged[:MAX_AGREEING], wanted, known, np.random.default_rng(seed)))
    # Each with the same models and interval, so that only what it reveals differs.
    tried = [inversion_attack(guess, features, known, rng=np.random.default_rng(seed)) for guess in combined]
    found = max(tried, key=lambda found: found.score.value)
    return replace(found, knew=f"what {len(jobs)} jobs sent, and the features of {len(known)} rows")


def _scaled(features: Floats, known: Integers) -> Floats:
    """Return the standardised features of the known rows, (k, F)."""
    spread = features[known].std(axis=0)
    return np.asarray((features[known] - features[known].mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _average(jobs: Sequence[JobGuesses], wanted: Floats, known: Integers) -> Floats:
    """Return the mean guess of every row, with groups that jobs form taken apart, (U, F)."""
    guess = np.asarray(np.mean([job.guess for job in jobs], axis=0))
    best, least = guess, _squared_error(guess[known], wanted)
    for _ in range(SEPARATION_ROUNDS if any(job.group is not None for job in jobs) else 0):
        guess = guess + sum(_group_means(job.guess - guess, job.group) for job in jobs) / len(jobs)
        if (error := _squared_error(guess[known], wanted)) < least:
            best, least = guess, error
    return best


def _squared_error(guess: Floats, wanted: Floats) -> float:
    return float(((guess - wanted) ** 2).mean())


def agreeing_guesses(jobs: Sequence[Floats], wanted: Floats, known: Integers, rng: Generator) -> Floats:
    """Return for every row the guess on which jobs agree, from components of what each sends, (U, P) -> (U, D).

    If groups differ from job to job, a row shows its own features more often than those of any other row. At first, a
    job is fitted to the known rows, most of which show features of others, so its guesses are rough. Then jobs learn
    from each other: each is fitted again to what all of them agree on, mainly where it agrees itself. Known rows that
    were not fitted say how near guesses must be to agree, how much agreement counts, and which round is the best.
    """
    _, axes = np.linalg.eigh(wanted.T @ wanted)
    wanted = wanted @ axes[:, -MAX_DIMENSIONS:]  # (k, D)
    held_out, fitted = np.split(rng.permutation(len(known)), [round(HELD_OUT_SHARE * len(known))])
    guesses = np.stack([held_out_ridge(rows, wanted[fitted], known[fitted]) for rows in jobs], axis=1)  # (U, J, D)
    best, least = guesses.mean(axis=1), math.inf
    for _ in range(AGREEMENT_ROUNDS):
        error, agreed, target, weight = _best_agreement(guesses, wanted, known, held_out)
        if error < least:
            best, least = agreed, error
        guesses = np.stack([_weighted_ridge(rows, target, weight[:, [job]]) for job, rows in enumerate(jobs)], axis=1)
    return np.asarray(best)


def agreeing_features(shown: Sequence[Floats], features: Floats, known: Integers) -> Floats:
    """Return for every row the features on which tables agree that jobs show themselves, (U, F) each -> (U, D)."""
    wanted, known = _scaled(features, np.unique(known)), np.unique(known)
    spread = features[known].std(axis=0)
    _, axes = np.linalg.eigh(wanted.T @ wanted)
    axes = axes[:, -MAX_DIMENSIONS:] / np.where(spread > 0, spread, 1.0)[:, None]  # (F, D)
    guesses = np.stack([rows @ axes for rows in shown[:MAX_AGREEING]], axis=1)
    return _best_agreement(guesses, wanted, known, np.arange(len(known)))[1]


def _best_agreement(
    guesses: Floats, wanted: Floats, known: Integers, held_out: Integers
) -> tuple[float, Floats, Floats, Floats]:
    """Return the least error on some of the known rows, what jobs agree on, that in the scale of features, and weights.

    These are a number and tables of (U, D), (U, D) and (U, J).
    """
    tried = []
    for near, power in product(_agreement(guesses), AGREEMENT_POWERS):
        weight = near**power / (near**power).sum(axis=1, keepdims=True)
        agreed = np.einsum("uj,ujd->ud", weight, guesses)
        target = held_out_ridge(agreed, wanted, known)
        tried.append((_squared_error(target[known[held_out]], wanted[held_out]), agreed, target, weight))
    return min(tried, key=lambda each: each[0])


def _agreement(guesses: Floats) -> list[Floats]:
    """Return how many guesses of other jobs are near to every guess, by several widths, (U, J, D) -> (U, J) each."""
    found = [np.empty(guesses.shape[:2]) for _ in AGREEMENT_WIDTHS]
    scaled = (guesses / math.sqrt(float(guesses.var(axis=(0, 1)).sum()) or 1.0)).astype(np.float32)
    for start in range(0, len(guesses), ROWS_PER_BLOCK):
        rows = slice(start, start + ROWS_PER_BLOCK)
        away = ((scaled[rows, :, None] - scaled[rows, None]) ** 2).sum(axis=3)  # (B, J, J)
        for near, width in zip(found, AGREEMENT_WIDTHS, strict=True):
            near[rows] = np.exp(away / (-2.0 * width**2)).sum(axis=2) - 1.0 + MIN_AGREEMENT  # less the guess itself
    return found


def _weighted_ridge(rows: Floats, wanted: Floats, weight: Floats) -> Floats:
    """Return the guesses of a ridge regression in which rows have weights, (U, P), (U, D) and (U, 1) make (U, D)."""
    share = weight / weight.sum()
    rows, wanted = rows - (share * rows).sum(axis=0), wanted - (share * wanted).sum(axis=0)
    square = rows.T @ (share * rows)  # (P, P)
    penalty = AGREEMENT_PENALTY * max(float(np.trace(square)) / len(square), 1e-9)
    slope = np.linalg.solve(square + penalty * np.eye(len(square)), rows.T @ (share * wanted))
    return np.asarray(rows @ slope)


def _principal_components(rows: Floats, most: int) -> Floats:
    """Return at most so many principal components of standardised columns, (U, C) -> (U, P)."""
    spread = rows.std(axis=0)
    scaled = (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    _, axes = np.linalg.eigh(scaled.T @ scaled)
    return np.asarray(scaled @ axes[:, -most:])


def _equal_rows(rows: Floats) -> Integers | None:
    """Return a number for every row that equal rows share, or None if no two are equal."""
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    kinds, group = np.unique(whole, return_inverse=True)
    return None if len(kinds) == len(rows) else np.asarray(group, dtype=np.int64)


def _group_means(values: Floats, group: Integers | None) -> Floats:
    """Return the mean of every row's group, (U, F) -> (U, F)."""
    if group is None:
        return values
    total = np.column_stack([np.bincount(group, weights=column) for column in values.T])
    return np.asarray((total / np.bincount(group)[:, None])[group])


def held_out_ridge(rows: Floats, wanted: Floats, known: Integers) -> Floats:
    """Return the guesses of a ridge regression for all rows, (U, C) and the known rows' (k, F) -> (U, F).

    The guess for a known row comes from the other known rows, so that all guesses err alike; that is exact without
    fitting again. The penalty is the one with the least error of these guesses.
    """
    middle, spread = rows[known].mean(axis=0), rows[known].std(axis=0)
    scaled = (rows - middle) / np.where(spread > 0, spread, 1.0)
    left, length, right = np.linalg.svd(scaled[known], full_matrices=False)
    mean, inside = wanted.mean(axis=0), left.T @ (wanted - wanted.mean(axis=0))
    best, least = np.zeros((len(rows), wanted.shape[1])), math.inf
    for penalty in PENALTIES * len(known):
        shrunk = length**2 / (length**2 + penalty)  # (C,)
        leverage = 1.0 / len(known) + (left**2 * shrunk).sum(axis=1)
        residual = (wanted - mean - left @ (shrunk[:, None] * inside)) / np.maximum(1.0 - leverage, 1e-9)[:, None]
        if (error := float((residual**2).mean())) < least:
            least = error
            slope = right.T @ ((length / (length**2 + penalty))[:, None] * inside)  # (C, F)
            best = mean + scaled @ slope
            best[known] = wanted - residual
    return best


def repeat_attack(
    name: str,
    kind: AttackKind,
    most: int,
    attempt: Callable[[int], AttackFinding],
    what: str = "jobs",
    *,
    first: int = 1,
) -> AttackFinding:
    """Attack with 1, 10, 100 and so on up to ``most`` repetitions; return the best finding with the scores of all.

    Its figure ``REPETITIONS`` is the number that this finding needed.

    Parameters
    ----------
    name, kind
        Of the finding.
    most
        The number of repetitions that are allowed.
    attempt
        Attacks with so many of them.
    what
        What is repeated, for the names of the figures.
    first
        With how many repetitions the attack begins.
    """
    numbers = [first, *_tens_below(most), *([most] if most > first else [])]
    found = {number: attempt(number) for number in numbers}
    best = max(reversed(numbers), key=lambda number: found[number].score.value)  # of equal ones, the largest number
    figures = {finding.REPETITIONS: float(best), finding.SCORE_ONCE: found[first].score.value}
    figures |= {f"score with {number} {what}": found[number].score.value for number in numbers[1:]}
    if (metres := finding.MEDIAN_ERROR_METRES) in found[first].figures:
        figures["median error without repetition"] = found[first].figures[metres]
        figures |= {f"median error with {number} {what}": found[number].figures[metres] for number in numbers[1:]}
    return replace(found[best], attack=name, kind=kind, figures={**found[best].figures, **figures})


def _tens_below(most: int) -> list[int]:
    """Return 10, 100 and so on below a number.

    >>> _tens_below(100), _tens_below(101)
    ([10], [10, 100])
    """
    return [10**power for power in range(1, 20) if 10**power < most]
