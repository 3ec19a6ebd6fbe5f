"""Attacks by the coordinator on encoded identifiers: frequency analysis, graph matching and bit order.

Letters: n records (filters), D distinct filters, V names of a public list, N bits, G q-grams, A columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy import optimize, stats
from scipy.sparse import csgraph, csr_array

from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.errors import InputError, SettingError
from fedsim.linkage.search.runner import distinct_records
from fedsim.types import Bits, Flags, Floats, Floats32, Integers
from fedsim_audit.attacks.attack_finding import AttackFinding, binomial_estimate, bootstrap_estimate

SEED_SIZES = (6, 10, 15, 25, 40)  # numbers of most common filters to name by frequency alone; all are tried
GROWTH_FACTOR = 1.3  # of the number of named filters from round to round
RIDGE = 10.0
CORRELATION_WEIGHT = 20.0  # of a correlation relative to a log-likelihood
MIN_LOG_LIKELIHOOD = -20.0  # of a count
MAX_PAIRS = 100_000_000  # of filters and names in memory
MAX_GRAPH_RECORDS = 2_000
N_NEIGHBOURS = 10
DESCRIPTOR_QUANTILES = np.linspace(0.0, 1.0, 21)
FAQ_ROUNDS = 40
TIE_COUNTS = (6, 8, 12, 16, 24, 32)  # ties of every bit to others; all are tried
MIN_ONES = 3  # records that have a bit
MIN_FILL = 0.5  # share of ones in a window
MIN_CHAIN_LENGTH = 16
MAX_BITS = 16_384
MAX_SAMPLE_RECORDS = 5_000  # to find neighbouring bits; all records are then placed
GramFunction = Callable[[str], set[str]]


def gram_matrix(names: Sequence[str], grams: GramFunction) -> Floats:
    """Return a 0/1 matrix with one row per name and one column per q-gram.

    >>> gram_matrix(["ab", "b"], lambda name: set(name)).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    sets = [grams(name) for name in names]
    number = {gram: place for place, gram in enumerate(sorted(set().union(*sets)))}
    table = np.zeros((len(names), len(number)))
    for row, members in enumerate(sets):
        table[row, [number[gram] for gram in members]] = 1.0
    return table


# The frequency attack (after Christen et al., PAKDD 2017). Equal names have equal filters, so the most common filter is
# probably the most common name of a public list. From a few such pairs the attacker learns which bits each q-gram sets,
# uses that to name more filters, learns from all of them, and so on. The attack needs repeated names, which a salt or
# several fields in one filter prevent. Flipping 5 % of the bits does not stop it; flipping 10 % defeats this (simple)
# way of finding copies.


@dataclass(frozen=True, eq=False, repr=False)
class NameList:
    """A public list of names.

    Parameters
    ----------
    names
        The names.
    count
        How often each of them occurs, (V,).
    grams
        Returns the q-grams of a name.
    """

    names: Sequence[str]
    count: Floats
    grams: GramFunction


def frequency_attack(
    filters: Bits, public: NameList, truth: Integers, *, flip_probability: float = 0.0
) -> AttackFinding:
    """Assign a name to every record's filter, using the frequencies and q-grams of a public list of names.

    If bits were flipped at random, filters as similar as two copies of one name count as equal.

    Parameters
    ----------
    filters
        The filter of every record, (n, bytes).
    public
        The public list, of at least two names.
    truth
        The index of each record's name in the list, or -1, (n,); only used to count successes.
    flip_probability
        Probability with which the encoding flipped each bit; at least 0 and below 0.5.

    Returns
    -------
    AttackFinding
        Its score is the share of records named.
    """
    n_filters, n_names = len(filters), len(public.names)
    if n_filters != len(truth) or n_names != len(public.count) or n_names < 2:
        counts = f"{n_filters} filters, {len(truth)} true names, {n_names} names and {len(public.count)} counts"
        rule = "pass one true name per filter, one count per name, and at least two names"
        raise InputError(f"{counts}; {rule}", code="shape-mismatch")
    if n_filters * n_names > MAX_PAIRS:
        message = f"{n_filters} filters and {n_names} names make more than {MAX_PAIRS} pairs; sample some"
        raise SettingError(message, code="too-many-pairs", limit=MAX_PAIRS)
    ones, kind = _cluster_copies(filters, flip_probability)
    matcher = _FrequencyMatcher.of(ones, np.bincount(kind), public)
    name, _ = max((matcher.match(seeds) for seeds in SEED_SIZES), key=lambda attempt: attempt[1])
    blind, figures = float((truth == int(np.argmax(public.count))).mean()), {"distinct filters": float(len(ones))}
    knew = "the filters of one party, and a public list of names with their frequencies"
    return _name_finding("frequency of string filters", name[kind] == truth, blind, knew, figures)


def _name_finding(attack: str, hits: Flags, blind: float, knew: str, figures: dict[str, float]) -> AttackFinding:
    who, score = Adversary.COORDINATOR, binomial_estimate(int(hits.sum()), len(hits))
    measure = "share of records named"
    return AttackFinding(attack, AttackKind.NAMES, who, measure, score, blind, len(hits), knew, figures)


@dataclass(frozen=True, eq=False, repr=False)
class _FrequencyMatcher:
    """The filters and the names, prepared for comparison."""

    bits: Floats  # (D, N), centred
    grams: Floats  # (V, G), centred
    frequency: Floats  # (D, V), log-likelihood of the counts
    commonest: Integers  # (D,), filters in descending order of frequency

    @classmethod
    def of(cls, ones: Floats, count: Integers, public: NameList) -> _FrequencyMatcher:
        grams = gram_matrix(public.names, public.grams)
        expected = count.sum() * (public.count + 0.5) / (public.count.sum() + 0.5 * len(public.count))
        # The square root of a count has a variance of about 1/4, whatever the count; both sides' counts are random.
        apart = np.sqrt(count + 0.375)[:, None] - np.sqrt(expected + 0.375)
        likelihood = -2.0 * apart**2 / (1.0 + count.sum() / public.count.sum())
        frequency, order = np.maximum(likelihood, MIN_LOG_LIKELIHOOD), np.argsort(-count, kind="stable")
        return cls(ones - ones.mean(axis=0), grams - grams.mean(axis=0), frequency, order)

    def match(self, seeds: int) -> tuple[Integers, float]:
        """Return a name for every filter (-1 if none is left), and how well the names explain the bits.

        The ``seeds`` most common filters are named by frequency alone, and then more and more by bits and frequency.
        """
        known, gain = min(seeds, len(self.commonest), len(self.grams)), self.frequency
        while True:
            rows = self.commonest[:known]
            row, name = optimize.linear_sum_assignment(gain[rows], maximize=True)
            row = rows[row]
            # Ridge regression on the pairs so far estimates which bits a q-gram sets; it tolerates wrong pairs. The
            # likeness (D, V) correlates every filter with the bits that every name should have.
            pairs = self.grams[name]
            weights = pairs.T @ np.linalg.solve(pairs @ pairs.T + RIDGE * np.eye(len(pairs)), self.bits[row])  # (G, N)
            expected = self.grams @ weights  # (V, N)
            length = np.linalg.norm(self.bits, axis=1)[:, None] * np.linalg.norm(expected, axis=1)
            likeness = np.asarray(self.bits @ expected.T / np.maximum(length, 1e-12))
            if known >= len(self.commonest):
                break
            known = int(known * GROWTH_FACTOR) + 1
            gain = CORRELATION_WEIGHT * likeness + self.frequency / 2.0
        names = np.full(len(self.bits), -1)
        names[row] = name
        return names, float(likeness[row, name].mean())


def _check_flip_probability(probability: float) -> None:
    if not 0 <= probability < 0.5:
        message = f"flip_probability={probability}; choose a probability of at least 0 and below 0.5"
        raise SettingError(message, code="flip-probability-out-of-range", limit=0.5)


def _cluster_copies(filters: Bits, flip: float) -> tuple[Floats, Integers]:
    """Return the mean bits of every distinct filter (D, N), and the distinct filter of every record (n,)."""
    _check_flip_probability(flip)
    first, kind = distinct_records(filters)
    ones = np.unpackbits(filters, axis=1).astype(np.float32)
    if flip == 0:
        return ones[first].astype(np.float64), kind
    if len(ones) ** 2 > MAX_PAIRS:
        limit = int(MAX_PAIRS**0.5)
        message = f"{len(ones)} noisy filters, but at most {limit} can be compared with each other; sample some"
        raise SettingError(message, code="too-many-pairs", limit=limit)
    size = ones.sum(axis=1)
    distance = size[:, None] + size - 2.0 * ones @ ones.T
    differing = 2.0 * flip * (1.0 - flip) * ones.shape[1]  # expected distance of two copies
    n_kinds, kind = csgraph.connected_components(csr_array(distance < differing + 4.0 * differing**0.5), directed=False)
    total = np.zeros((n_kinds, ones.shape[1]))
    np.add.at(total, kind, ones)
    return total / np.bincount(kind)[:, None], kind.astype(np.int64)


# Graph matching (after Vidanage et al., CIKM 2020). If an encoding preserves similarities, the graph of similar filters
# looks like the graph of similar names. Every record is described by its similarities and its neighbours' similarities,
# descriptions are paired, and the pairing is improved by comparing all edges (FAQ, Vogelstein et al. 2015). Records
# that only one side has weaken the attack but do not stop it: with a quarter of them it still named 60 to 80 % of
# generated firms. The cost grows with the cube of the number of records; a real attacker would match part by part, so
# the limit on records here is not a protection.


def filter_similarity(filters: Bits) -> Floats:
    """Return the Dice similarity of all pairs of packed filters, (n, bytes) -> (n, n)."""
    return _dice(np.unpackbits(filters, axis=1).astype(np.float64))


def name_similarity(names: Sequence[str], grams: GramFunction) -> Floats:
    """Return the Dice similarity of all pairs of names by their q-grams, (V, V).

    >>> name_similarity(["ab", "abc"], lambda name: set(name)).round(2).tolist()
    [[1.0, 0.8], [0.8, 1.0]]
    """
    return _dice(gram_matrix(names, grams))


def graph_attack(encoded: Floats, plain: Floats, truth: Integers, *, seeds: Integers | None = None) -> AttackFinding:
    """Pair the records of two similarity matrices, of filters and of names.

    Parameters
    ----------
    encoded
        Similarities between all filters, (n, n).
    plain
        Similarities between all names, (V, V).
    truth
        The index of each filter's name, or -1, (n,); used to count successes and to pair the ``seeds``.
    seeds
        Filters whose names the attacker already knows; None for no filter.

    Returns
    -------
    AttackFinding
        Its score is the share of records named, without the ``seeds``.
    """
    known = np.array([], dtype=np.int64) if seeds is None else np.unique(seeds)
    if encoded.shape != (len(truth), len(truth)) or plain.shape != (len(plain), len(plain)):
        message = f"similarities have shapes {encoded.shape} and {plain.shape} for {len(truth)} filters; pass squares"
        raise InputError(message, code="shape-mismatch")
    if (largest := max(len(encoded), len(plain))) > MAX_GRAPH_RECORDS:
        message = f"{largest} records, but graph matching takes at most {MAX_GRAPH_RECORDS}; pass a part of both tables"
        raise SettingError(message, code="too-many-records", limit=MAX_GRAPH_RECORDS)
    if min(len(encoded), len(plain)) <= N_NEIGHBOURS or (truth[known] < 0).any():
        message = f"graph matching needs more than {N_NEIGHBOURS} records per side, and seeds that both sides have"
        raise InputError(message, code="too-few-records", limit=N_NEIGHBOURS)
    guess, targets = _match_graphs(encoded, plain, truth, known), np.setdiff1d(np.flatnonzero(truth >= 0), known)
    knew = f"the filters of one party, a list of {len(plain)} names, and {len(known)} known pairs"
    figures = {"overlap of the two tables": float((truth >= 0).sum() / largest)}
    return _name_finding("graph matching of filters", (guess == truth)[targets], 1.0 / len(plain), knew, figures)


def _match_graphs(encoded: Floats, plain: Floats, truth: Integers, known: Integers) -> Integers:
    """Return the name of every filter, matched by descriptors first and then by edges; -1 if no name is left."""
    size = max(len(encoded), len(plain))
    left, right = _pad_square(_match_quantiles(encoded, plain), size), _pad_square(plain, size)
    filters, names = _node_descriptors(encoded, plain), _node_descriptors(plain, plain)
    spread = names.std(axis=0)  # every number of a descriptor is scaled by its spread among the names
    keep = spread > 1e-9
    filters, names = filters[:, keep] / spread[keep], names[:, keep] / spread[keep]
    squares = (filters**2).sum(axis=1)[:, None] + (names**2).sum(axis=1) - 2.0 * filters @ names.T
    cost = _pad_square(np.sqrt(np.maximum(squares, 0.0)), size)
    cost[known] = cost.max() + 1.0
    cost[known, truth[known]] = -1.0
    start = np.zeros((size, size))
    start[optimize.linear_sum_assignment(cost)] = 1.0
    # With a given start nothing is drawn, but SciPy would otherwise use its global generator.
    rng = np.random.default_rng(0)
    options = {"maximize": True, "P0": (start + 1.0 / size) / 2.0, "maxiter": FAQ_ROUNDS, "rng": rng}
    guess = optimize.quadratic_assignment(left, right, method="faq", options=options).col_ind[: len(encoded)]
    guess[known] = truth[known]
    return np.where(guess < len(plain), guess, -1)


def _dice(table: Floats) -> Floats:
    size = table.sum(axis=1)
    total = size[:, None] + size
    return np.asarray(2.0 * (table @ table.T) / np.where(total > 0, total, 1.0))


def _match_quantiles(encoded: Floats, plain: Floats) -> Floats:
    """Map filter similarities to the name similarities of equal rank, because collisions shift all of them alike."""
    shares = np.linspace(0, 1, 1_001)
    seen, wanted = (np.quantile(side[~np.eye(len(side), dtype=bool)], shares) for side in (encoded, plain))
    return np.asarray(np.interp(encoded, seen, wanted))


def _node_descriptors(similarity: Floats, plain: Floats) -> Floats:
    """Describe every record by its own and its neighbours' sorted similarities, independent of the record order."""
    own = _match_quantiles(similarity, plain)
    np.fill_diagonal(own, np.nan)
    nearest = np.argsort(-np.nan_to_num(own, nan=-1.0), axis=1)[:, :N_NEIGHBOURS]
    top = -np.sort(-np.nan_to_num(own, nan=-1.0), axis=1)[:, :N_NEIGHBOURS]
    features = np.hstack([top, np.nanquantile(own, DESCRIPTOR_QUANTILES, axis=1).T])
    around = features[nearest]  # (n, neighbours, F)
    return np.hstack([features, around.mean(axis=1), around[:, 0], around[:, 1], around.std(axis=1)])


def _pad_square(matrix: Floats, size: int) -> Floats:
    padded = np.zeros((size, size))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded


# The order attack on FEDERAL filters needs no key and no other party, only the bits of one table. Bits with close
# pivots are ones in the same records. Each bit is tied to the few bits with which it most often shares ones; the ties
# of one field form a chain, which follows the order of the pivots. A record's place on the chain is where its ones are.
# Shuffling, folding and a secret order of bits do not help against it; random flips are corrected for.


@dataclass(frozen=True, eq=False, repr=False)
class BitChain:
    """Bits in the order of their pivots (from either end), with their places along the chain."""

    bits: Integers
    place: Floats

    def densest_windows(self, ones: Flags, flip_probability: float) -> tuple[Floats, Floats]:
        """Return the place of each record's window with the most ones, and their number, (n, N) -> (n,) and (n,).

        The length of a window is the median number of ones per record.
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


def find_bit_chains(ones: Flags, fields: int, *, flip_probability: float = 0.0) -> list[BitChain]:
    """Find one chain of neighbouring bits per field, (n, N) -> ``fields`` chains or fewer.

    The number of ties per bit decides whether chains break or merge; we use the number whose chains explain the most
    ones, which the attacker can compute as well.
    """
    likeness = _bit_similarity(ones.astype(np.float32), flip_probability)
    attempts, explained = [], []
    for n_ties in TIE_COUNTS:
        ties = _tie_graph(likeness, n_ties)
        n_parts, part = csgraph.connected_components(ties, directed=False)
        members = [np.flatnonzero(part == number) for number in range(n_parts)]
        chains = [_order_chain(ties, bits) for bits in members if len(bits) >= MIN_CHAIN_LENGTH]
        attempts.append(chains)
        counts = [chain.densest_windows(ones, flip_probability)[1].sum() for chain in chains]
        explained.append(np.array(counts or [0.0]))
    best = int(np.argmax([np.sort(counts)[::-1][:fields].sum() for counts in explained]))
    order = np.argsort(explained[best])[::-1][:fields]
    return [attempts[best][number] for number in order]


def order_attack(
    filters: Bits, truth: Floats, known: Integers, *, rng: Generator, flip_probability: float = 0.0
) -> AttackFinding:
    """Recover the order of the records along each true column.

    Parameters
    ----------
    filters
        The filter of every record, (n, bytes).
    truth
        The true numbers of every record, (n, A); except for the known rows, they are only used to assign chains to
        columns and to compute the score.
    known
        Rows whose numbers the coordinator knows; they turn the order into numbers.
    rng
        Random generator for the sample of records and the interval.
    flip_probability
        Probability with which the encoding flipped each bit; at least 0 and below 0.5.

    Returns
    -------
    AttackFinding
        Its score is the mean rank correlation with the true numbers; ``figures`` holds the median error of each
        column in its own unit.
    """
    if filters.ndim != 2 or 8 * filters.shape[1] > MAX_BITS:
        message = f"filters have shape {filters.shape}, but the order attack takes at most {MAX_BITS} bits; pass fewer"
        raise SettingError(message, code="too-many-bits", limit=MAX_BITS)
    ones = np.unpackbits(filters, axis=1).astype(bool)
    if truth.ndim != 2 or len(truth) != len(ones):
        message = f"{len(ones)} filters, but true numbers of shape {truth.shape}; pass one row per filter"
        raise InputError(message, code="shape-mismatch")
    sample = ones if len(ones) <= MAX_SAMPLE_RECORDS else ones[rng.choice(len(ones), MAX_SAMPLE_RECORDS, replace=False)]
    chains = find_bit_chains(sample, truth.shape[1], flip_probability=flip_probability)
    places = [chain.densest_windows(ones, flip_probability)[0] for chain in chains] or [np.full(len(ones), np.nan)]
    best = [max(places, key=lambda place: rank_correlation(place, column)) for column in truth.T]

    def mean_order(rows: Integers) -> float:
        return mean_rank_correlation([place[rows] for place in best], truth[rows])

    figures: dict[str, float] = {}
    for axis, place in enumerate(best):
        figures |= _error_figures(place, truth[:, axis], known, f"column {axis + 1}")
    score, who = bootstrap_estimate(mean_order, len(ones), rng, resamples=50), Adversary.COORDINATOR
    attack, measure = "order of numeric filters", "mean rank correlation with the true numbers"
    knew = f"the filters of one party, and the numbers of {len(known)} records"
    return AttackFinding(attack, AttackKind.BIT_ORDER, who, measure, score, 0.0, len(ones), knew, figures)


def map_attack(positions: Floats, truth: Floats, known: Integers, *, rng: Generator) -> AttackFinding:
    """Treat encoded positions as an unlabelled map, and rotate and scale it until the known records fit.

    Parameters
    ----------
    positions
        The encoded coordinates, (n, axes).
    truth
        The numbers behind them, (n, columns), such as latitude and longitude.
    known
        Rows whose numbers the coordinator happens to know.
    rng
        Random generator for the interval.

    Returns
    -------
    AttackFinding
        Its score is the mean rank correlation between guessed and true numbers.
    """
    centred = positions - positions.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][: truth.shape[1]]  # a patch of the globe is nearly flat
    flat = np.column_stack([centred @ axes.T, np.ones(len(centred))])
    guess = flat @ np.linalg.lstsq(flat[known], truth[known], rcond=None)[0]

    def mean_order(rows: Integers) -> float:
        return mean_rank_correlation(list(guess[rows].T), truth[rows])

    rest = np.setdiff1d(np.arange(len(truth)), known)
    figures: dict[str, float] = {}
    for axis in range(truth.shape[1] if len(rest) else 0):
        error, blind = (
            np.abs(found - truth[rest, axis]) for found in (guess[rest, axis], np.median(truth[known, axis]))
        )
        figures[f"column {axis + 1}: median error"] = float(np.median(error))
        figures[f"column {axis + 1}: median error of blind guessing"] = float(np.median(blind))
    score, measure = (
        bootstrap_estimate(mean_order, len(truth), rng, resamples=50),
        "mean rank correlation with the true numbers",
    )
    knew, who = f"the positions of one party, and the numbers of {len(known)} records", Adversary.COORDINATOR
    return AttackFinding("map of positions", AttackKind.BIT_ORDER, who, measure, score, 0.0, len(truth), knew, figures)


def _bit_similarity(ones: Floats32, flip: float) -> Floats32:
    """Return the Jaccard similarity of all pairs of bits, (n, N) -> (N, N), with all counts corrected for flips."""
    n, keep = len(ones), 1.0 - 2.0 * flip
    _check_flip_probability(flip)
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


def _tie_graph(likeness: Floats32, n_ties: int) -> csr_array:
    """Return the strongest ties of every bit as lengths; less similar bits are further apart."""
    n_bits = len(likeness)
    nearest = np.argpartition(-likeness, min(n_ties, n_bits - 1), axis=1)[:, :n_ties]
    strength = np.take_along_axis(likeness, nearest, axis=1)
    row = np.repeat(np.arange(n_bits), nearest.shape[1])
    real = strength.ravel() > 0
    length = 1.0 - strength.ravel()[real] + 1e-6
    ties = csr_array((length, (row[real], nearest.ravel()[real])), shape=(n_bits, n_bits))
    return ties.minimum(ties.T)  # only mutual ties: a single false one would be a shortcut


def _order_chain(ties: csr_array, bits: Integers) -> BitChain:
    """Order a chain: the bit farthest from an arbitrary bit is an end, and distances from it are the places."""
    part = ties[bits][:, bits]
    end = int(np.argmax(csgraph.dijkstra(part, directed=False, indices=0)))
    place = np.asarray(csgraph.dijkstra(part, directed=False, indices=end))
    order = np.argsort(place, kind="stable")
    return BitChain(bits[order], place[order])


def mean_rank_correlation(places: list[Floats], truth: Floats) -> float:
    """Return the mean, over the true columns, of the rank correlation with the places found for each column."""
    return float(np.mean([rank_correlation(place, column) for place, column in zip(places, truth.T, strict=True)]))


def rank_correlation(place: Floats, numbers: Floats) -> float:
    """Return the rank correlation over the records that have a place, times their share."""
    covered = np.isfinite(place)
    if covered.sum() < 3 or np.ptp(place[covered]) == 0 or np.ptp(numbers[covered]) == 0:
        return 0.0
    return float(abs(stats.spearmanr(place[covered], numbers[covered]).statistic) * covered.mean())


def _error_figures(place: Floats, numbers: Floats, known: Integers, name: str) -> dict[str, float]:
    """Return the median error of interpolating between known records, and of always guessing their median."""
    covered = np.isfinite(place)
    anchors = known[covered[known]]
    rest = np.setdiff1d(np.flatnonzero(covered), known)
    figures = {f"{name}: share of records placed": float(covered.mean())}
    if len(anchors) < 2 or not len(rest):
        return figures
    slope = np.sign(np.corrcoef(place[anchors], numbers[anchors])[0, 1]) or 1.0
    at, value = np.sort(slope * place[anchors]), np.sort(numbers[anchors])
    guess = np.interp(slope * place[rest], at, value)
    figures[f"{name}: median error"] = float(np.median(np.abs(guess - numbers[rest])))
    blind = np.abs(np.median(value) - numbers[rest])
    return figures | {f"{name}: median error of blind guessing": float(np.median(blind))}
