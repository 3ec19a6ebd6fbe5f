"""The coordinator reads the order of numbers off FEDERAL filters: no key, no other party, only the bits of one table.

Bits whose pivots are neighbours are ones in the same records. Each bit is tied to the few it most often shares ones
with; the ties of one field make a chain, and the way along it is the order of the pivots. A record then stands where
its ones stand. Shuffling, folding and a secret order of bits change nothing; random flips are reckoned out.

Letters: n records, N bits, A axes (columns) of the true numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.stats import spearmanr

from fedsim.attack.finding import Adversary, Finding, bootstrap, check_flip, timed
from fedsim.errors import InputError, SettingError
from fedsim.types import Bits, Floats, Integers

TIES = (6, 8, 12, 16, 24, 32)  # of every bit to others, to be tried
LEAST_COUNT = 3  # ones of a bit
LEAST_FILLED = 0.5  # of a stretch
SHORTEST_CHAIN = 16
MOST_BITS = 16_384
MOST_RECORDS = 5_000  # tell which bits are neighbours; all records are placed


@dataclass(frozen=True, eq=False, repr=False)
class Chain:
    """Bits in the order of their pivots (from either end), with their places along the chain."""

    bits: Integers
    place: Floats

    def stretches(self, ones: NDArray[np.bool_], flip_probability: float) -> tuple[Floats, Floats]:
        """Where the stretch with most ones of each record lies, and how many that are, (n, N) -> (n,), (n,).

        A stretch is as long as a record has ones on average.
        """
        clean = (ones[:, self.bits].astype(np.float32) - flip_probability) / (1.0 - 2.0 * flip_probability)
        total = clean.sum(axis=1)
        width = int(np.clip(np.median(total[total > 1.0]) if (total > 1.0).any() else 1, 1, len(self.bits)))
        summed = np.pad(np.cumsum(clean, axis=1), ((0, 0), (1, 0)))
        inside = summed[:, width:] - summed[:, :-width]  # (n, N - width + 1)
        most = inside.max(axis=1)
        middle = np.convolve(self.place, np.full(width, 1.0 / width), mode="valid")
        ties = inside >= most[:, None] - 1e-3
        where = (ties @ middle) / ties.sum(axis=1)
        return np.where(most > width * LEAST_FILLED, where, np.nan), most.astype(np.float64)


def chains(ones: NDArray[np.bool_], fields: int, *, flip_probability: float = 0.0) -> list[Chain]:
    """One chain of neighbouring bits per field, (n, N) -> ``fields`` chains or fewer.

    How many ties a bit keeps decides whether chains break or grow together; the number is taken under which the chains
    explain most ones, which the attacker can see for itself.
    """
    likeness = _likeness(ones.astype(np.float32), flip_probability)
    attempts = [_chains_of(likeness, n_ties) for n_ties in TIES]
    explained = [_explained(attempt, ones, flip_probability) for attempt in attempts]
    best = int(np.argmax([np.sort(counts)[::-1][:fields].sum() for counts in explained]))
    order = np.argsort(explained[best])[::-1][:fields]
    return [attempts[best][number] for number in order]


def _chains_of(likeness: NDArray[np.float32], n_ties: int) -> list[Chain]:
    ties = _tied(likeness, n_ties)
    n_parts, part = connected_components(ties, directed=False)
    members = [np.flatnonzero(part == number) for number in range(n_parts)]
    return [_chain(ties, bits) for bits in members if len(bits) >= SHORTEST_CHAIN]


def _explained(found: list[Chain], ones: NDArray[np.bool_], flip_probability: float) -> Floats:
    """Ones of all records that stand together, for each chain."""
    return np.array([chain.stretches(ones, flip_probability)[1].sum() for chain in found] or [0.0])


@timed
def order_attack(
    filters: Bits, truth: Floats, known: Integers, *, rng: np.random.Generator, flip_probability: float = 0.0
) -> Finding:
    """Recover the order of the records along each true column, (n, bytes) and (n, A).

    ``known`` rows, whose numbers the coordinator happens to know, turn order into numbers; ``figures`` holds the median
    error of each column in its own unit. ``truth`` otherwise only tells which chain is which column.
    """
    ones = _unpacked(filters)
    if truth.ndim != 2 or len(truth) != len(ones):
        raise InputError(
            f"{len(ones)} filters and true numbers of shape {truth.shape} do not fit; give one row for each"
        )
    sample = ones if len(ones) <= MOST_RECORDS else ones[rng.choice(len(ones), MOST_RECORDS, replace=False)]
    found = chains(sample, truth.shape[1], flip_probability=flip_probability)
    places = [chain.stretches(ones, flip_probability)[0] for chain in found]
    best = [_best_for(places, truth[:, axis]) for axis in range(truth.shape[1])]

    def mean_order(rows: Integers) -> float:
        return float(np.mean([_order(place[rows], truth[rows, axis]) for axis, place in enumerate(best)]))

    figures: dict[str, float] = {}
    for axis, place in enumerate(best):
        figures |= _errors(place, truth[:, axis], known, f"column {axis + 1}")
    return Finding(
        "order of numeric filters",
        Adversary.COORDINATOR,
        "mean rank correlation with the true numbers, uncovered records at chance",
        bootstrap(mean_order, len(ones), rng, resamples=50),
        0.0,
        len(ones),
        f"the filters of one party, and the numbers of {len(known)} records",
        figures,
    )


def _unpacked(filters: Bits) -> NDArray[np.bool_]:
    if filters.ndim != 2 or 8 * filters.shape[1] > MOST_BITS:
        raise SettingError(
            f"filters have shape {filters.shape}; the order attack compares all bits with all others and takes up to "
            f"{MOST_BITS} bits: give every second byte, or fewer"
        )
    return np.unpackbits(filters, axis=1).astype(bool)


def _likeness(ones: NDArray[np.float32], flip: float) -> NDArray[np.float32]:
    """Jaccard likeness of all pairs of bits, (n, N) -> (N, N), with random flips reckoned out of all counts."""
    n, keep = len(ones), 1.0 - 2.0 * flip
    check_flip(flip)
    seen = ones.sum(axis=0)
    count = np.maximum((seen - flip * n) / keep, 0.0)  # (N,)
    both = (ones.T @ ones - flip * keep * (count[:, None] + count) - flip**2 * n) / keep**2  # (N, N)
    either = np.maximum(count[:, None] + count - both, 1.0)
    likeness = np.clip(both / either, 0.0, 1.0)
    doubt = LEAST_COUNT + 3.0 * np.sqrt(flip * n)  # fewer ones than this may all be flips
    silent = (count < doubt) | (count > n - doubt)
    likeness[silent] = likeness[:, silent] = 0.0
    np.fill_diagonal(likeness, 0.0)
    return np.asarray(likeness, dtype=np.float32)


def _tied(likeness: NDArray[np.float32], n_ties: int) -> csr_array:
    """Every bit's strongest ties, as lengths: the less alike, the longer."""
    n_bits = len(likeness)
    nearest = np.argpartition(-likeness, min(n_ties, n_bits - 1), axis=1)[:, :n_ties]
    strength = np.take_along_axis(likeness, nearest, axis=1)
    row = np.repeat(np.arange(n_bits), nearest.shape[1])
    real = strength.ravel() > 0
    length = 1.0 - strength.ravel()[real] + 1e-6
    ties = csr_array((length, (row[real], nearest.ravel()[real])), shape=(n_bits, n_bits))
    return ties.minimum(ties.T)  # only what both sides hold to be near: one false tie would be a short cut


def _chain(ties: csr_array, bits: Integers) -> Chain:
    """The way from one end to the other: the bit farthest from anywhere is an end, and distances from it the places."""
    part = ties[bits][:, bits]
    end = int(np.argmax(dijkstra(part, directed=False, indices=0)))
    place = np.asarray(dijkstra(part, directed=False, indices=end))
    order = np.argsort(place, kind="stable")
    return Chain(bits[order], place[order])


def _best_for(places: list[Floats], numbers: Floats) -> Floats:
    """The chain that belongs to this column."""
    if not places:
        return np.full(len(numbers), np.nan)
    return max(places, key=lambda place: _order(place, numbers))


def _order(place: Floats, numbers: Floats) -> float:
    """Rank correlation over the covered records, times their share."""
    covered = np.isfinite(place)
    if covered.sum() < 3 or np.ptp(place[covered]) == 0 or np.ptp(numbers[covered]) == 0:
        return 0.0
    return float(abs(spearmanr(place[covered], numbers[covered]).statistic) * covered.mean())


def _errors(place: Floats, numbers: Floats, known: Integers, name: str) -> dict[str, float]:
    """Median error of the numbers read off the chain between known records, and of always naming their median."""
    covered = np.isfinite(place)
    anchors = known[covered[known]]
    rest = np.setdiff1d(np.flatnonzero(covered), known)
    if len(anchors) < 2 or not len(rest):
        return {f"{name}: share of records placed": float(covered.mean())}
    slope = np.sign(np.corrcoef(place[anchors], numbers[anchors])[0, 1]) or 1.0
    at, value = np.sort(slope * place[anchors]), np.sort(numbers[anchors])
    guess = np.interp(slope * place[rest], at, value)
    return {
        f"{name}: share of records placed": float(covered.mean()),
        f"{name}: median error": float(np.median(np.abs(guess - numbers[rest]))),
        f"{name}: median error of blind guessing": float(np.median(np.abs(np.median(value) - numbers[rest]))),
    }
