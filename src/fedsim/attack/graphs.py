"""The coordinator matches a graph of similar filters with one of similar names (after Vidanage et al., CIKM 2020).

Whatever the code, if it keeps similarities then the filters' graph looks like the graph of the names behind them. Every
record is described by its similarities and by those of its neighbours, described records are paired, and the pairing is
improved by comparing all edges at once (FAQ, Vogelstein et al. 2015). Strangers on either side make it worse but do not
stop it: with a quarter of them it still named six to eight of ten made-up firms. It costs the cube of the records, so a
real attacker would match part by part; that a large table is refused here is no protection.

Letters: n filters, m names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment, quadratic_assignment

from fedsim.attack.finding import Adversary, Finding, share, timed
from fedsim.attack.grams import Grams, gram_table
from fedsim.errors import InputError, SettingError
from fedsim.types import Bits, Floats, Integers

MOST_RECORDS = 2_000
NEIGHBOURS = 10
QUANTILES = np.linspace(0.0, 1.0, 21)
ROUNDS_OF_FAQ = 40


def similar_filters(filters: Bits) -> Floats:
    """Dice similarity of all pairs of packed filters, (n, bytes) -> (n, n)."""
    ones = np.unpackbits(filters, axis=1).astype(np.float64)
    return _dice(ones)


def similar_names(names: Sequence[str], grams: Grams) -> Floats:
    """Dice similarity of all pairs of names by their q-grams, (m, m).

    >>> similar_names(["ab", "abc"], lambda name: set(name)).round(2).tolist()
    [[1.0, 0.8], [0.8, 1.0]]
    """
    return _dice(gram_table(names, grams))


@timed
def graph_attack(encoded: Floats, plain: Floats, truth: Integers, *, seeds: Integers | None = None) -> Finding:
    """Pair records of two similarity matrices, (n, n) and (m, m).

    ``truth`` (n,) is the place of each filter's record among the names, -1 for a stranger, and counts successes;
    ``seeds`` are rows the attacker already knows.
    """
    known = np.array([], dtype=np.int64) if seeds is None else np.unique(seeds)
    _check(encoded, plain, truth, known)
    guess = _paired(encoded, plain, truth, known)
    targets = np.setdiff1d(np.flatnonzero(truth >= 0), known)
    hits = int((guess[targets] == truth[targets]).sum())
    overlap = float((truth >= 0).sum() / max(len(truth), len(plain)))
    knew = f"the filters of one party, a list of {len(plain)} names, and {len(known)} pairs to begin with"
    return Finding(
        "graph matching of filters",
        Adversary.COORDINATOR,
        "share of records named",
        share(hits, len(targets)),
        1.0 / len(plain),
        len(targets),
        knew,
        {"overlap of the two tables": overlap},
    )


def _paired(encoded: Floats, plain: Floats, truth: Integers, known: Integers) -> Integers:
    """The name of every filter, by descriptions first and edges then; -1 for filters left over."""
    size = max(len(encoded), len(plain))
    left, right = _padded(_calibrated(encoded, plain), size), _padded(plain, size)
    cost = _padded(_unlike(_described(encoded, plain), _described(plain, plain)), size)
    cost[known] = cost.max() + 1.0
    cost[known, truth[known]] = -1.0
    start = np.zeros((size, size))
    start[linear_sum_assignment(cost)] = 1.0
    # Nothing is drawn from such a start, but scipy asks the global generator unless it is given another.
    options = {
        "maximize": True,
        "P0": (start + 1.0 / size) / 2.0,
        "maxiter": ROUNDS_OF_FAQ,
        "rng": np.random.default_rng(0),
    }
    found = quadratic_assignment(left, right, method="faq", options=options).col_ind[: len(encoded)]
    found[known] = truth[known]
    return np.where(found < len(plain), found, -1)


def _dice(table: Floats) -> Floats:
    size = table.sum(axis=1)
    total = size[:, None] + size
    return np.asarray(2.0 * (table @ table.T) / np.where(total > 0, total, 1.0))


def _edges(similarity: Floats) -> Floats:
    return similarity[~np.eye(len(similarity), dtype=bool)]


def _calibrated(encoded: Floats, plain: Floats) -> Floats:
    """Similarities of filters in terms of those of names: same rank, same value. Collisions shift all of them alike."""
    seen, wanted = (np.quantile(_edges(side), np.linspace(0, 1, 1_001)) for side in (encoded, plain))
    return np.asarray(np.interp(encoded, seen, wanted))


def _described(similarity: Floats, plain: Floats) -> Floats:
    """Numbers that do not depend on the order of records: ranked similarities of each, and of its neighbours."""
    own = _calibrated(similarity, plain)
    np.fill_diagonal(own, np.nan)
    nearest = np.argsort(-np.nan_to_num(own, nan=-1.0), axis=1)[:, :NEIGHBOURS]
    top = -np.sort(-np.nan_to_num(own, nan=-1.0), axis=1)[:, :NEIGHBOURS]
    features = np.hstack([top, np.nanquantile(own, QUANTILES, axis=1).T])
    around = features[nearest]  # (n, neighbours, F)
    return np.hstack([features, around.mean(axis=1), around[:, 0], around[:, 1], around.std(axis=1)])


def _unlike(left: Floats, right: Floats) -> Floats:
    """Distances of descriptions, every number scaled by its spread among the names."""
    spread = right.std(axis=0)
    keep = spread > 1e-9
    left, right = left[:, keep] / spread[keep], right[:, keep] / spread[keep]
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def _padded(matrix: Floats, size: int) -> Floats:
    padded = np.zeros((size, size))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded


def _check(encoded: Floats, plain: Floats, truth: Integers, known: Integers) -> None:
    if encoded.shape != (len(truth), len(truth)) or plain.shape != (len(plain), len(plain)):
        raise InputError(f"similarities {encoded.shape} and {plain.shape} of {len(truth)} filters are no square tables")
    if max(len(encoded), len(plain)) > MOST_RECORDS:
        raise SettingError(
            f"{max(len(encoded), len(plain))} records; graph matching compares all pairs of pairs and takes up to "
            f"{MOST_RECORDS}: give a part that both tables share"
        )
    if min(len(encoded), len(plain)) <= NEIGHBOURS or (truth[known] < 0).any():
        raise InputError(f"graph matching needs more than {NEIGHBOURS} records a side, and seeds that both sides hold")
