"""Attacks by a primary that repeats requests: what several jobs on the same rows, or many made-up records, reveal.

Within a job nothing is drawn twice, so a repeated request gets the same answer. Another job draws new weights and new
noise on similarities, and another record has its own noise; both average out. Blurred places and protected features are
drawn once for all jobs. The primary is assumed to recognise the rows of an earlier job by the records that they are
linked to.

Letters: n own records, K partners of each, U rows, C numbers sent per row, F features, k known rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from fedsim.config.stored_audit import AttackKind
from fedsim.errors import InputError
from fedsim.privacy.geodesy import mean_place, to_degrees, to_metres
from fedsim.types import Floats, Integers
from fedsim_audit.attacks import attack_finding, location_attacks
from fedsim_audit.attacks.attack_finding import AttackFinding
from fedsim_audit.attacks.cut_layer_attacks import inversion_attack
from fedsim_audit.attacks.location_attacks import LocationGuesses, PlaceEncoder, TrueLocations
from fedsim_audit.attacks.similarity_attacks import LinksByPartner, PrimaryView

PENALTIES = np.logspace(-5, 1, 13)  # per known row


def average_views(views: Sequence[PrimaryView]) -> PrimaryView:
    """Return the first job's links with their similarities averaged over all jobs, and the remaining noise.

    The views must use the same row numbers. Links that other jobs lack keep their similarities.

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
    """Return the view with at most about ``most`` links of each row, drawn at random.

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
    """Locate every row of a view in two ways, each (U, 2) in degrees, NaN for rows that it does not list.

    One is the centre of the records that list a row; the other uses similarities, through the encoding of places if the
    primary can apply it, otherwise as distances in metres. Which one is closer depends on the job.
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


def location_attack(
    located: Mapping[str, Floats], own: Floats, truth: TrueLocations, *, rng: Generator
) -> AttackFinding:
    """Locate every row from all jobs and records together, and return the more successful way.

    Parameters
    ----------
    located
        The locations of the rows by several ways, as returned by :func:`locate_rows`.
    own
        The primary's places, used to score blind guessing, (n, 2).
    truth
        The true places of the rows; only used to evaluate the guesses.
    rng
        Random generator for the interval.
    """
    findings = []
    for way, places in located.items():
        listed = np.flatnonzero(np.isfinite(places[:, 0]))
        guesses = LocationGuesses("places", f"its own places and its links ({way})", listed, places[listed])
        findings.append(location_attacks.location_finding(guesses, truth, own, rng))
    return max(findings, key=lambda found: (found.score.value, -found.figures[attack_finding.MEDIAN_ERROR_METRES]))


def guess_features(sent: Floats, features: Floats, known: Integers) -> Floats:
    """Guess the standardised features of all rows from what a job sends, (U, C), and from the known rows, (U, F)."""
    known = np.unique(known)
    spread = features[known].std(axis=0)
    wanted = (features[known] - features[known].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return held_out_ridge(sent, wanted, known)


def repeated_inversion_attack(
    guesses: Sequence[Floats], features: Floats, known: Integers, *, rng: Generator
) -> AttackFinding:
    """Average the guesses of all jobs, and learn features from the result.

    Every job has its own weights, so what jobs send cannot be averaged, but guesses can. Protected features are the
    same in all jobs; many jobs may reveal them, but nothing beyond them.

    Parameters
    ----------
    guesses
        The guesses of every job, as returned by :func:`guess_features`, (U, F).
    features
        The true features of the same rows, (U, F).
    known
        Rows whose features the primary knows.
    rng
        Random generator for the models and the interval.
    """
    known = np.unique(known)
    found = inversion_attack(np.mean(guesses, axis=0), features, known, rng=rng)
    return replace(found, knew=f"what {len(guesses)} jobs sent, and the features of {len(known)} rows")


def held_out_ridge(rows: Floats, wanted: Floats, known: Integers) -> Floats:
    """Return the guesses of a ridge regression for all rows, (U, C) and (k, F) of the known rows -> (U, F).

    The guess for a known row is based on the other known rows only, so that all guesses have similar errors; it is
    exact without refitting. The penalty is the one that minimises the error of these guesses.
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
    """Attack with 1, 10, 100 and so on up to ``most`` repetitions; return the best finding with all scores.

    Its figure ``REPETITIONS`` is the number of repetitions behind this finding.

    Parameters
    ----------
    name, kind
        Name and kind of the finding.
    most
        The number of repetitions that are allowed.
    attempt
        A function that attacks with the given number of repetitions.
    what
        What is repeated, for the names of the figures.
    first
        The number of repetitions to start with.
    """
    numbers = [first, *_tens_below(most), *([most] if most > first else [])]
    found = {number: attempt(number) for number in numbers}
    best = max(reversed(numbers), key=lambda number: found[number].score.value)  # in a tie, the largest number
    figures = {attack_finding.REPETITIONS: float(best), attack_finding.SCORE_ONCE: found[first].score.value}
    figures |= {f"score with {number} {what}": found[number].score.value for number in numbers[1:]}
    if (metres := attack_finding.MEDIAN_ERROR_METRES) in found[first].figures:
        figures["median error without repetition"] = found[first].figures[metres]
        figures |= {f"median error with {number} {what}": found[number].figures[metres] for number in numbers[1:]}
    return replace(found[best], attack=name, kind=kind, figures={**found[best].figures, **figures})


def _tens_below(most: int) -> list[int]:
    """Return 10, 100 and so on below a number.

    >>> _tens_below(100), _tens_below(101)
    ([10], [10, 100])
    """
    return [10**power for power in range(1, 20) if 10**power < most]
