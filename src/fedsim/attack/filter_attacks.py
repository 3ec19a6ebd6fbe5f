"""Attacks of the coordinator on encoded identifiers: frequency analysis, graph matching and bit order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, quadratic_assignment
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.stats import spearmanr

from fedsim.attack.finding import (
    Adversary,
    AttackFinding,
    binomial_estimate,
    bootstrap_estimate,
    check_flip_probability,
    timed,
)
from fedsim.errors import InputError, SettingError
from fedsim.linkage.search.runner import distinct_records
from fedsim.types import Bits, Floats, Integers

# Q-grams of names as a table


GramFunction = Callable[[str], set[str]]


def gram_matrix(names: Sequence[str], grams: GramFunction) -> Floats:
    """One row per name, one column per q-gram that any of them has; one where the name has it.

    >>> gram_matrix(["ab", "b"], lambda name: set(name)).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    sets = [grams(name) for name in names]
    number = {gram: place for place, gram in enumerate(sorted(set().union(*sets)))}
    table = np.zeros((len(names), len(number)))
    for row, members in enumerate(sets):
        table[row, [number[gram] for gram in members]] = 1.0
    return table


# The coordinator reads names off string filters by how frequent they are (after Christen et al., PAKDD 2017)
#
# Equal names have equal filters, so the commonest filter is probably the commonest name of a public list. From a few
# such pairs the attacker learns which bits each q-gram sets, names more filters with that, learns from all of them,
# and so on. It needs names that repeat: a salt, or several fields in one filter, takes that away. Five per cent of
# flipped bits do not; ten stop this way of finding copies, which is not the best there is.
#
# Letters: D distinct filters, V names of the list, N bits, G q-grams.


SEED_SIZES = (6, 10, 15, 25, 40)  # commonest filters named by frequency alone, to be tried
GROWTH_FACTOR = 1.3  # of the filters named, from round to round
RIDGE = 10.0
CORRELATION_WEIGHT = 20.0  # of a correlation beside a log-likelihood
MIN_LOG_LIKELIHOOD = -20.0  # log-likelihood of a count
MAX_PAIRS = 100_000_000  # filters times names held at once


@dataclass(frozen=True, eq=False, repr=False)
class NameList:
    """Names and how often each occurs in public, as the coordinator may find them."""

    names: Sequence[str]
    count: Floats
    grams: GramFunction

    def incidence(self) -> Floats:
        """Which q-grams each name has, (V, G)."""
        return gram_matrix(self.names, self.grams)


@timed
def frequency_attack(
    filters: Bits, public: NameList, truth: Integers, *, flip_probability: float = 0.0
) -> AttackFinding:
    """Name every record's filter, (n, bytes); ``truth`` (n,) is its true place in the list, -1 if it is not there.

    Where bits were flipped at random, filters as near as two copies of one name would be count as equal.
    """
    _check_frequency_inputs(filters, public, truth)
    ones, kind = _cluster_copies(filters, flip_probability)
    sight = _FrequencyMatcher.of(ones, np.bincount(kind), public)
    attempts = [sight.named(begin) for begin in SEED_SIZES]
    name, _ = max(attempts, key=lambda attempt: attempt[1])
    hits, blind = int((name[kind] == truth).sum()), float((truth == int(np.argmax(public.count))).mean())
    figures = {"distinct filters": float(len(ones))}
    return AttackFinding(
        "frequency of string filters",
        Adversary.COORDINATOR,
        "share of records named",
        binomial_estimate(hits, len(truth)),
        blind,
        len(truth),
        "the filters of one party, and a public list of names with their frequencies",
        figures,
    )


@dataclass(frozen=True, eq=False, repr=False)
class _FrequencyMatcher:
    """What the coordinator sees and knows, made ready for comparing."""

    bits: Floats  # (D, N), centred
    grams: Floats  # (V, G), centred
    frequency: Floats  # (D, V), log-likelihood of the counts
    commonest: Integers  # (D,), filters by how common they are

    @classmethod
    def of(cls, ones: Floats, count: Integers, public: NameList) -> _FrequencyMatcher:
        grams = public.incidence()
        expected = count.sum() * (public.count + 0.5) / (public.count.sum() + 0.5 * len(public.count))
        # Roots of counts have a variance of a quarter, whatever the count; both sides' counts are chance.
        apart = np.sqrt(count + 0.375)[:, None] - np.sqrt(expected + 0.375)
        likelihood = -2.0 * apart**2 / (1.0 + count.sum() / public.count.sum())
        order = np.argsort(-count, kind="stable")
        return cls(
            ones - ones.mean(axis=0), grams - grams.mean(axis=0), np.maximum(likelihood, MIN_LOG_LIKELIHOOD), order
        )

    def named(self, begin: int) -> tuple[Integers, float]:
        """A name for every filter (-1 for those left over), and how well the names explain the bits.

        The ``begin`` commonest filters are named by frequency alone; then ever more are, by bits and frequency.
        """
        known = min(begin, len(self.commonest), len(self.grams))
        row, name = self._assigned(self.commonest[:known], self.frequency)
        while True:
            likeness = self._likeness(row, name)
            if known >= len(self.commonest):
                break
            known = int(known * GROWTH_FACTOR) + 1
            row, name = self._assigned(self.commonest[:known], CORRELATION_WEIGHT * likeness + self.frequency / 2.0)
        found = np.full(len(self.bits), -1)
        found[row] = name
        return found, float(likeness[row, name].mean())

    def _assigned(self, rows: Integers, gain: Floats) -> tuple[Integers, Integers]:
        """Each of these filters its own name, best in sum."""
        row, name = linear_sum_assignment(gain[rows], maximize=True)
        return rows[row], name

    def _likeness(self, row: Integers, name: Integers) -> Floats:
        """Correlation of every filter with the bits every name should have, (D, V).

        Which bits a q-gram sets is learnt from the pairs so far by ridge regression, which bears wrong pairs.
        """
        taught = self.grams[name]
        weights = taught.T @ np.linalg.solve(taught @ taught.T + RIDGE * np.eye(len(taught)), self.bits[row])  # (G, N)
        return _correlation(self.bits, self.grams @ weights)


def _cluster_copies(filters: Bits, flip: float) -> tuple[Floats, Integers]:
    """The mean bits of every kind of filter (D, N), and the kind of every record (n,)."""
    check_flip_probability(flip)
    first, kind = distinct_records(filters)
    ones = np.unpackbits(filters, axis=1).astype(np.float32)
    if flip == 0:
        return ones[first].astype(np.float64), kind
    if len(ones) ** 2 > MAX_PAIRS:
        raise SettingError(f"{len(ones)} noisy filters are too many to compare all pairs; sample {MAX_PAIRS**0.5:.0f}")
    size = ones.sum(axis=1)
    apart = size[:, None] + size - 2.0 * ones @ ones.T
    differing = 2.0 * flip * (1.0 - flip) * ones.shape[1]  # bits of two copies
    n_kinds, kind = connected_components(csr_array(apart < differing + 4.0 * differing**0.5), directed=False)
    total = np.zeros((n_kinds, ones.shape[1]))
    np.add.at(total, kind, ones)
    return total / np.bincount(kind)[:, None], kind.astype(np.int64)


def _correlation(left: Floats, right: Floats) -> Floats:
    length = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=1)
    return np.asarray(left @ right.T / np.maximum(length, 1e-12))


def _check_frequency_inputs(filters: Bits, public: NameList, truth: Integers) -> None:
    if len(filters) != len(truth) or len(public.names) != len(public.count) or len(public.names) < 2:
        raise InputError(
            f"{len(filters)} filters with {len(truth)} true names, {len(public.names)} names with {len(public.count)} "
            "counts; give as many of one as of the other, and a list of at least two names"
        )
    if len(filters) * len(public.names) > MAX_PAIRS:
        raise SettingError(
            f"{len(filters)} filters times {len(public.names)} names is more than {MAX_PAIRS}; sample some filters"
        )


# The coordinator matches a graph of similar filters with one of similar names (after Vidanage et al., CIKM 2020)
#
# Whatever the code, if it keeps similarities then the filters' graph looks like the graph of the names behind them.
# Every record is described by its similarities and by those of its neighbours, described records are paired, and the
# pairing is improved by comparing all edges at once (FAQ, Vogelstein et al. 2015). Strangers on either side make it
# worse but do not stop it: with a quarter of them it still named six to eight of ten made-up firms. It costs the cube
# of the records, so a real attacker would match part by part; that a large table is refused here is no protection.
#
# Letters: n filters, m names.


MAX_GRAPH_RECORDS = 2_000
N_NEIGHBOURS = 10
DESCRIPTOR_QUANTILES = np.linspace(0.0, 1.0, 21)
FAQ_ROUNDS = 40


def filter_similarity(filters: Bits) -> Floats:
    """Dice similarity of all pairs of packed filters, (n, bytes) -> (n, n)."""
    ones = np.unpackbits(filters, axis=1).astype(np.float64)
    return _dice(ones)


def name_similarity(names: Sequence[str], grams: GramFunction) -> Floats:
    """Dice similarity of all pairs of names by their q-grams, (m, m).

    >>> name_similarity(["ab", "abc"], lambda name: set(name)).round(2).tolist()
    [[1.0, 0.8], [0.8, 1.0]]
    """
    return _dice(gram_matrix(names, grams))


@timed
def graph_attack(encoded: Floats, plain: Floats, truth: Integers, *, seeds: Integers | None = None) -> AttackFinding:
    """Pair records of two similarity matrices, (n, n) and (m, m).

    ``truth`` (n,) is the place of each filter's record among the names, -1 for a stranger, and counts successes;
    ``seeds`` are rows the attacker already knows.
    """
    known = np.array([], dtype=np.int64) if seeds is None else np.unique(seeds)
    _check_graph_inputs(encoded, plain, truth, known)
    guess = _match_graphs(encoded, plain, truth, known)
    targets = np.setdiff1d(np.flatnonzero(truth >= 0), known)
    hits = int((guess[targets] == truth[targets]).sum())
    overlap = float((truth >= 0).sum() / max(len(truth), len(plain)))
    knew = f"the filters of one party, a list of {len(plain)} names, and {len(known)} pairs to begin with"
    return AttackFinding(
        "graph matching of filters",
        Adversary.COORDINATOR,
        "share of records named",
        binomial_estimate(hits, len(targets)),
        1.0 / len(plain),
        len(targets),
        knew,
        {"overlap of the two tables": overlap},
    )


def _match_graphs(encoded: Floats, plain: Floats, truth: Integers, known: Integers) -> Integers:
    """The name of every filter, by descriptions first and edges then; -1 for filters left over."""
    size = max(len(encoded), len(plain))
    left, right = _pad_square(_match_quantiles(encoded, plain), size), _pad_square(plain, size)
    cost = _pad_square(_descriptor_distances(_node_descriptors(encoded, plain), _node_descriptors(plain, plain)), size)
    cost[known] = cost.max() + 1.0
    cost[known, truth[known]] = -1.0
    start = np.zeros((size, size))
    start[linear_sum_assignment(cost)] = 1.0
    # Nothing is drawn from such a start, but scipy asks the global generator unless it is given another.
    options = {
        "maximize": True,
        "P0": (start + 1.0 / size) / 2.0,
        "maxiter": FAQ_ROUNDS,
        "rng": np.random.default_rng(0),
    }
    found = quadratic_assignment(left, right, method="faq", options=options).col_ind[: len(encoded)]
    found[known] = truth[known]
    return np.where(found < len(plain), found, -1)


def _dice(table: Floats) -> Floats:
    size = table.sum(axis=1)
    total = size[:, None] + size
    return np.asarray(2.0 * (table @ table.T) / np.where(total > 0, total, 1.0))


def _off_diagonal(similarity: Floats) -> Floats:
    return similarity[~np.eye(len(similarity), dtype=bool)]


def _match_quantiles(encoded: Floats, plain: Floats) -> Floats:
    """Similarities of filters in terms of those of names: same rank, same value. Collisions shift all of them alike."""
    seen, wanted = (np.quantile(_off_diagonal(side), np.linspace(0, 1, 1_001)) for side in (encoded, plain))
    return np.asarray(np.interp(encoded, seen, wanted))


def _node_descriptors(similarity: Floats, plain: Floats) -> Floats:
    """Numbers that do not depend on the order of records: ranked similarities of each, and of its neighbours."""
    own = _match_quantiles(similarity, plain)
    np.fill_diagonal(own, np.nan)
    nearest = np.argsort(-np.nan_to_num(own, nan=-1.0), axis=1)[:, :N_NEIGHBOURS]
    top = -np.sort(-np.nan_to_num(own, nan=-1.0), axis=1)[:, :N_NEIGHBOURS]
    features = np.hstack([top, np.nanquantile(own, DESCRIPTOR_QUANTILES, axis=1).T])
    around = features[nearest]  # (n, neighbours, F)
    return np.hstack([features, around.mean(axis=1), around[:, 0], around[:, 1], around.std(axis=1)])


def _descriptor_distances(left: Floats, right: Floats) -> Floats:
    """Distances of descriptions, every number scaled by its spread among the names."""
    spread = right.std(axis=0)
    keep = spread > 1e-9
    left, right = left[:, keep] / spread[keep], right[:, keep] / spread[keep]
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def _pad_square(matrix: Floats, size: int) -> Floats:
    padded = np.zeros((size, size))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded


def _check_graph_inputs(encoded: Floats, plain: Floats, truth: Integers, known: Integers) -> None:
    if encoded.shape != (len(truth), len(truth)) or plain.shape != (len(plain), len(plain)):
        raise InputError(f"similarities {encoded.shape} and {plain.shape} of {len(truth)} filters are no square tables")
    if max(len(encoded), len(plain)) > MAX_GRAPH_RECORDS:
        raise SettingError(
            f"{max(len(encoded), len(plain))} records; graph matching compares all pairs of pairs and takes up to "
            f"{MAX_GRAPH_RECORDS}: give a part that both tables share"
        )
    if min(len(encoded), len(plain)) <= N_NEIGHBOURS or (truth[known] < 0).any():
        raise InputError(
            f"graph matching needs more than {N_NEIGHBOURS} records a side, and seeds that both sides hold"
        )


# The coordinator reads the order of numbers off FEDERAL filters: no key, no other party, only the bits of one table
#
# Bits whose pivots are neighbours are ones in the same records. Each bit is tied to the few it most often shares ones
# with; the ties of one field make a chain, and the way along it is the order of the pivots. A record then stands where
# its ones stand. Shuffling, folding and a secret order of bits change nothing; random flips are reckoned out.
#
# Letters: n records, N bits, A axes (columns) of the true numbers.


TIE_COUNTS = (6, 8, 12, 16, 24, 32)  # of every bit to others, to be tried
MIN_ONES = 3  # ones of a bit
MIN_FILL = 0.5  # of a stretch
MIN_CHAIN_LENGTH = 16
MAX_BITS = 16_384
MAX_SAMPLE_RECORDS = 5_000  # tell which bits are neighbours; all records are placed


@dataclass(frozen=True, eq=False, repr=False)
class BitChain:
    """Bits in the order of their pivots (from either end), with their places along the chain."""

    bits: Integers
    place: Floats

    def densest_windows(self, ones: NDArray[np.bool_], flip_probability: float) -> tuple[Floats, Floats]:
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
        return np.where(most > width * MIN_FILL, where, np.nan), most.astype(np.float64)


def find_bit_chains(ones: NDArray[np.bool_], fields: int, *, flip_probability: float = 0.0) -> list[BitChain]:
    """One chain of neighbouring bits per field, (n, N) -> ``fields`` chains or fewer.

    How many ties a bit keeps decides whether chains break or grow together; the number is taken under which the chains
    explain most ones, which the attacker can see for itself.
    """
    likeness = _bit_similarity(ones.astype(np.float32), flip_probability)
    attempts = [_chains_with_ties(likeness, n_ties) for n_ties in TIE_COUNTS]
    explained = [_explained_ones(attempt, ones, flip_probability) for attempt in attempts]
    best = int(np.argmax([np.sort(counts)[::-1][:fields].sum() for counts in explained]))
    order = np.argsort(explained[best])[::-1][:fields]
    return [attempts[best][number] for number in order]


def _chains_with_ties(likeness: NDArray[np.float32], n_ties: int) -> list[BitChain]:
    ties = _tie_graph(likeness, n_ties)
    n_parts, part = connected_components(ties, directed=False)
    members = [np.flatnonzero(part == number) for number in range(n_parts)]
    return [_order_chain(ties, bits) for bits in members if len(bits) >= MIN_CHAIN_LENGTH]


def _explained_ones(found: list[BitChain], ones: NDArray[np.bool_], flip_probability: float) -> Floats:
    """Ones of all records that stand together, for each chain."""
    return np.array([chain.densest_windows(ones, flip_probability)[1].sum() for chain in found] or [0.0])


@timed
def order_attack(
    filters: Bits, truth: Floats, known: Integers, *, rng: np.random.Generator, flip_probability: float = 0.0
) -> AttackFinding:
    """Recover the order of the records along each true column, (n, bytes) and (n, A).

    ``known`` rows, whose numbers the coordinator happens to know, turn order into numbers; ``figures`` holds the median
    error of each column in its own unit. ``truth`` otherwise only tells which chain is which column.
    """
    ones = _unpack_filters(filters)
    if truth.ndim != 2 or len(truth) != len(ones):
        raise InputError(
            f"{len(ones)} filters and true numbers of shape {truth.shape} do not fit; give one row for each"
        )
    sample = ones if len(ones) <= MAX_SAMPLE_RECORDS else ones[rng.choice(len(ones), MAX_SAMPLE_RECORDS, replace=False)]
    found = find_bit_chains(sample, truth.shape[1], flip_probability=flip_probability)
    places = [chain.densest_windows(ones, flip_probability)[0] for chain in found]
    best = [_best_chain_places(places, truth[:, axis]) for axis in range(truth.shape[1])]

    def mean_order(rows: Integers) -> float:
        return float(np.mean([_rank_correlation(place[rows], truth[rows, axis]) for axis, place in enumerate(best)]))

    figures: dict[str, float] = {}
    for axis, place in enumerate(best):
        figures |= _error_figures(place, truth[:, axis], known, f"column {axis + 1}")
    return AttackFinding(
        "order of numeric filters",
        Adversary.COORDINATOR,
        "mean rank correlation with the true numbers, uncovered records at chance",
        bootstrap_estimate(mean_order, len(ones), rng, resamples=50),
        0.0,
        len(ones),
        f"the filters of one party, and the numbers of {len(known)} records",
        figures,
    )


def _unpack_filters(filters: Bits) -> NDArray[np.bool_]:
    if filters.ndim != 2 or 8 * filters.shape[1] > MAX_BITS:
        raise SettingError(
            f"filters have shape {filters.shape}; the order attack compares all bits with all others and takes up to "
            f"{MAX_BITS} bits: give every second byte, or fewer"
        )
    return np.unpackbits(filters, axis=1).astype(bool)


def _bit_similarity(ones: NDArray[np.float32], flip: float) -> NDArray[np.float32]:
    """Jaccard likeness of all pairs of bits, (n, N) -> (N, N), with random flips reckoned out of all counts."""
    n, keep = len(ones), 1.0 - 2.0 * flip
    check_flip_probability(flip)
    seen = ones.sum(axis=0)
    count = np.maximum((seen - flip * n) / keep, 0.0)  # (N,)
    both = (ones.T @ ones - flip * keep * (count[:, None] + count) - flip**2 * n) / keep**2  # (N, N)
    either = np.maximum(count[:, None] + count - both, 1.0)
    likeness = np.clip(both / either, 0.0, 1.0)
    doubt = MIN_ONES + 3.0 * np.sqrt(flip * n)  # fewer ones than this may all be flips
    silent = (count < doubt) | (count > n - doubt)
    likeness[silent] = likeness[:, silent] = 0.0
    np.fill_diagonal(likeness, 0.0)
    return np.asarray(likeness, dtype=np.float32)


def _tie_graph(likeness: NDArray[np.float32], n_ties: int) -> csr_array:
    """Every bit's strongest ties, as lengths: the less alike, the longer."""
    n_bits = len(likeness)
    nearest = np.argpartition(-likeness, min(n_ties, n_bits - 1), axis=1)[:, :n_ties]
    strength = np.take_along_axis(likeness, nearest, axis=1)
    row = np.repeat(np.arange(n_bits), nearest.shape[1])
    real = strength.ravel() > 0
    length = 1.0 - strength.ravel()[real] + 1e-6
    ties = csr_array((length, (row[real], nearest.ravel()[real])), shape=(n_bits, n_bits))
    return ties.minimum(ties.T)  # only what both sides hold to be near: one false tie would be a short cut


def _order_chain(ties: csr_array, bits: Integers) -> BitChain:
    """The way from one end to the other: the bit farthest from anywhere is an end, and distances from it the places."""
    part = ties[bits][:, bits]
    end = int(np.argmax(dijkstra(part, directed=False, indices=0)))
    place = np.asarray(dijkstra(part, directed=False, indices=end))
    order = np.argsort(place, kind="stable")
    return BitChain(bits[order], place[order])


def _best_chain_places(places: list[Floats], numbers: Floats) -> Floats:
    """The chain that belongs to this column."""
    if not places:
        return np.full(len(numbers), np.nan)
    return max(places, key=lambda place: _rank_correlation(place, numbers))


def _rank_correlation(place: Floats, numbers: Floats) -> float:
    """Rank correlation over the covered records, times their share."""
    covered = np.isfinite(place)
    if covered.sum() < 3 or np.ptp(place[covered]) == 0 or np.ptp(numbers[covered]) == 0:
        return 0.0
    return float(abs(spearmanr(place[covered], numbers[covered]).statistic) * covered.mean())


def _error_figures(place: Floats, numbers: Floats, known: Integers, name: str) -> dict[str, float]:
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
