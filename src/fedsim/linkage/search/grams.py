"""Exact K nearest texts by their weighted q-grams: an inverted index in blocks of candidates.

A text is a vector of integer weights, one per q-gram of its words. Scores are sums of integers, so they do not depend
on the order of summation, and every search returns the same distances and ties. Candidates are sorted by the size of
their vector and cut into blocks. For a block and a query, the scores of all candidates are accumulated gram by gram in
an array that fits the first-level cache; then only scores that can still reach the K best are examined. Frequent grams
are stored as dense rows, one weight per candidate, which vector instructions add up; rare ones as lists of candidates.

Letters: n candidates, G grams, b blocks of B candidates, D dense grams.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedsim.linkage.search.runner import split_rows, to_text_array
from fedsim.linkage.words import WordRules, WordTable, WordWeights, tabulate_words
from fedsim.types import Floats, Integers

QUERIES_PER_TILE = 256  # each tile reads the complete index once
BLOCK_BITS = (11, 16)  # smallest and largest block; a place in a block takes 16 bits
DENSE_SHARE = 1 / 32  # a gram of more candidates is added faster as a row than as a list
DENSE_WEIGHT = 255  # more fits no byte; the rest of a weight is in a list
DENSE_BYTES = 2**28
CHUNK = 64  # scores that are compared with the K best at once
WEIGHT_LEVELS = 100
_PAD = 0x110000  # marks both ends of a word; no character has this number


class GramTexts:
    """Texts, and the complete column from which they were taken: its words and grams determine the weights.

    Searches work on parts of a table (chunks of candidates, distinct queries); weights must not depend on the part.
    """

    def __init__(self, texts: list[str], rules: WordRules, column: GramTexts | None = None) -> None:
        self.texts, self.rules, self.column = texts, rules, column or self

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: slice | Integers) -> GramTexts:
        texts = self.texts[rows] if isinstance(rows, slice) else [self.texts[row] for row in rows]
        return GramTexts(texts, self.rules, self.column)

    @cached_property
    def table(self) -> WordTable:
        return tabulate_words(self.texts, self.rules)

    @cached_property
    def word_weights(self) -> WordWeights:
        return WordWeights.fit(self.table)


class GramVectors(NamedTuple):
    """The weighted grams of many texts."""

    keys: NDArray[np.uint64]  # (G,): the characters of each gram, ascending
    starts: Integers  # text i has the entries from starts[i] to starts[i + 1]
    grams: Integers  # positions in keys
    weights: Integers


def weigh_grams(texts: GramTexts, column: GramTexts, q: int) -> GramVectors:
    """Return vectors that weight grams by the rarity of their words in the column, in hundredths, at least one."""
    share = column.word_weights.of(texts.table.vocabulary)
    return count_grams(texts.table, q, np.maximum(np.rint(WEIGHT_LEVELS * share), 1))


def count_grams(table: WordTable, q: int, word_weight: Integers) -> GramVectors:
    """Return the distinct grams of every text, each with the summed weights of the words it occurs in.

    >>> vectors = count_grams(tabulate_words(["aa b"], WordRules()), 2, np.array([5, 1]))
    >>> vectors.weights.tolist()  # aa, a_, b_, _a, _b
    [5, 5, 5, 1, 1]
    """
    words = to_text_array(table.vocabulary)
    keys, key_starts = _word_grams(words.chars, words.starts, q)
    distinct, gram_of = np.unique(keys, return_inverse=True)
    starts, grams, weights = _text_grams(
        table.words, table.starts, key_starts, gram_of.astype(np.int64), word_weight.astype(np.int64), len(distinct)
    )
    return GramVectors(distinct, starts, grams, weights)


@njit(nogil=True, cache=True)
def _word_grams(chars: NDArray[np.uint32], starts: Integers, q: int) -> tuple[NDArray[np.uint64], Integers]:
    """Return the grams of every word with one mark at each end, 21 bits per character; q is at most 3."""
    n_words = len(starts) - 1
    key_starts = np.zeros(n_words + 1, np.int64)
    for word in range(n_words):
        key_starts[word + 1] = key_starts[word] + max(1, starts[word + 1] - starts[word] + 3 - q)
    keys = np.zeros(key_starts[-1], np.uint64)
    for word in range(n_words):
        length = starts[word + 1] - starts[word]
        for gram in range(key_starts[word + 1] - key_starts[word]):
            key = np.uint64(0)
            for place in range(gram, min(gram + q, length + 2)):
                inside = 0 < place <= length
                char = np.uint64(chars[starts[word] + place - 1]) if inside else np.uint64(_PAD)
                key = (key << np.uint64(21)) | char
            keys[key_starts[word] + gram] = key
    return keys, key_starts


@njit(nogil=True, cache=True)
def _text_grams(
    words: Integers, text_starts: Integers, key_starts: Integers, gram_of: Integers, word_weight: Integers, n_grams: int
) -> tuple[Integers, Integers, Integers]:
    size = 0
    for word in words:
        size += key_starts[word + 1] - key_starts[word]
    grams, weights = np.empty(size, np.int64), np.empty(size, np.int64)
    starts = np.zeros(len(text_starts), np.int64)
    entry_of = np.full(n_grams, -1, np.int64)  # of the gram's last occurrence
    filled = 0
    for text in range(len(text_starts) - 1):
        begin = filled
        for place in range(text_starts[text], text_starts[text + 1]):
            word = words[place]
            for occurrence in range(key_starts[word], key_starts[word + 1]):
                gram = gram_of[occurrence]
                if entry_of[gram] < begin:
                    entry_of[gram] = filled
                    grams[filled], weights[filled] = gram, 0
                    filled += 1
                weights[entry_of[gram]] += word_weight[word]
        starts[text + 1] = filled
    return starts, grams[:filled].copy(), weights[:filled].copy()


class GramIndex(NamedTuple):
    """Candidates in the order of their sizes, in blocks."""

    rows: Integers  # (n,): row of the candidate at each position
    sizes: Integers  # (n,): of the candidate's vector, ascending
    dense_of: NDArray[np.int32]  # (G,): place among the dense grams, or -1
    dense: NDArray[np.uint8]  # (b, D, B): weights up to 255
    starts: Integers  # (b, G + 1): where the list of a gram begins
    places: NDArray[np.uint16]  # of a list: positions within the block
    weights: NDArray[np.uint32]  # of a list; of a dense gram, what exceeds 255


def build_index(vectors: GramVectors, sizes: Integers) -> GramIndex:
    """Return the index of candidates with these vectors."""
    n_grams, n_entries = len(vectors.keys), len(vectors.grams)
    order = np.argsort(sizes, kind="stable")
    bits = BLOCK_BITS[0]
    # Every block has one pointer per gram; wider blocks for more grams keep the pointers from outgrowing the lists.
    while bits < BLOCK_BITS[1] and (len(order) >> bits) * n_grams > max(n_entries, 2**20):
        bits += 1
    n_blocks = -(-len(order) // (1 << bits))
    frequency = np.bincount(vectors.grams, minlength=n_grams)
    chosen = np.argsort(-frequency, kind="stable")[: DENSE_BYTES // (n_blocks << bits)]
    chosen = chosen[frequency[chosen] > DENSE_SHARE * len(order)]
    dense_of = np.full(n_grams, -1, np.int32)
    dense_of[chosen] = np.arange(len(chosen), dtype=np.int32)
    listed = int(((dense_of[vectors.grams] < 0) | (vectors.weights > DENSE_WEIGHT)).sum())
    index = GramIndex(
        rows=order,
        sizes=np.ascontiguousarray(sizes[order]),
        dense_of=dense_of,
        dense=np.zeros((n_blocks, len(chosen), 1 << bits), np.uint8),
        starts=np.zeros((n_blocks, n_grams + 1), np.int64),
        places=np.empty(listed, np.uint16),
        weights=np.empty(listed, np.uint32),
    )
    _fill_index(vectors.starts, vectors.grams, vectors.weights, index)
    return index


@njit(nogil=True, cache=True)
def _fill_index(text_starts: Integers, grams: Integers, weights: Integers, index: GramIndex) -> None:
    rows, _, dense_of, dense, starts, places, listed = index
    width = dense.shape[2]
    filled = 0
    for block in range(len(starts)):
        first, last = block * width, min((block + 1) * width, len(rows))
        pointer = starts[block]
        for position in range(first, last):
            for entry in range(text_starts[rows[position]], text_starts[rows[position] + 1]):
                if dense_of[grams[entry]] < 0 or weights[entry] > DENSE_WEIGHT:
                    pointer[grams[entry] + 1] += 1
        pointer[0] = filled
        for gram in range(1, len(pointer)):
            pointer[gram] += pointer[gram - 1]
        filled = pointer[-1]
        free = pointer.copy()
        for position in range(first, last):
            for entry in range(text_starts[rows[position]], text_starts[rows[position] + 1]):
                gram, weight = grams[entry], weights[entry]
                if dense_of[gram] >= 0:
                    dense[block, dense_of[gram], position - first] = min(weight, DENSE_WEIGHT)
                    weight -= DENSE_WEIGHT
                if weight > 0:
                    places[free[gram]], listed[free[gram]] = position - first, weight
                    free[gram] += 1


# Sizes and common weights are integers, so every operation below rounds at most once.


@njit(nogil=True, cache=True, inline="always")
def gram_distance(common: int, here: int, there: int) -> float:
    """Return one minus the Dice coefficient of two vectors, from their sizes and common weight."""
    if here == 0 or there == 0:
        return 0.0 if here == there else 1.0
    return float((here + there - 2 * common) / (here + there))


@njit(nogil=True, cache=True)
def _least_common(distance: float, here: int, there: int) -> int:
    """Return a common weight below which no vector of at least size ``there`` is within the distance."""
    if distance >= 1.0:
        return 0
    exact = (1.0 - distance) * (here + there) / 2
    return max(0, int(exact * (1 - 1e-9)) - 1)


class GramQueries(NamedTuple):
    """The vectors of the queries, without grams that no candidate has."""

    starts: Integers
    grams: Integers  # positions in the candidates' grams
    weights: Integers
    sizes: Integers  # with all grams


class GramSearch:
    """Exact K nearest candidates by weighted grams; also computes plain blocks of distances.

    Parameters
    ----------
    queries, candidates
        The texts of both sides. All weights come from the complete column of the candidates.
    q
        Characters per gram. The common weight of two vectors is the sum of the lower weights of each gram (Dice).
    """

    def __init__(self, queries: GramTexts, candidates: GramTexts, q: int) -> None:
        theirs, ours = (weigh_grams(texts, candidates.column, q) for texts in (candidates, queries))
        self.n_candidates, self.vectors, self.sizes = len(candidates), theirs, _vector_sizes(theirs)
        place = np.searchsorted(theirs.keys, ours.keys)
        known = np.zeros(len(ours.keys), bool)
        inside = place < len(theirs.keys)
        known[inside] = theirs.keys[place[inside]] == ours.keys[inside]
        kept = known[ours.grams]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[ours.starts]
        self.queries = GramQueries(starts, place[ours.grams[kept]], ours.weights[kept], _vector_sizes(ours))

    @cached_property
    def index(self) -> GramIndex:
        return build_index(self.vectors, self.sizes)

    @cached_property
    def _lists(self) -> tuple[Integers, Integers, Integers]:
        """The candidates of every gram and their weights."""
        order = np.argsort(self.vectors.grams, kind="stable")
        text_of = np.repeat(np.arange(self.n_candidates), np.diff(self.vectors.starts))
        starts = np.searchsorted(self.vectors.grams[order], np.arange(len(self.vectors.keys) + 1))
        return starts, text_of[order], self.vectors.weights[order]

    def tiles(self) -> list[Integers]:
        """Group queries of similar size, whose partners are in the same blocks."""
        self.index  # noqa: B018 - built once, before threads ask for it
        return split_rows(np.argsort(self.queries.sizes, kind="stable"), QUERIES_PER_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        index, width = self.index, self.index.dense.shape[2]
        middle = self.queries.sizes[tile[len(tile) // 2]]
        order = np.argsort(np.abs(index.sizes[::width] - middle), kind="stable")
        largest = int(self.queries.sizes[tile].max())
        scores = np.zeros(width, np.uint16 if largest < 2**16 else np.uint32 if largest < 2**32 else np.int64)
        partner, distance = np.full((len(tile), k), self.n_candidates), np.full((len(tile), k), np.inf)
        _search_tile(index, self.queries, tile, order, scores, partner, distance)
        ranks = np.lexsort((partner, distance), axis=1)
        return np.take_along_axis(partner, ranks, axis=1), np.take_along_axis(distance, ranks, axis=1)

    def block(self, tile: Integers) -> Floats:
        """Return the distances from a tile to every candidate, in the order of the candidates."""
        distance = np.empty((len(tile), self.n_candidates))
        starts, text_of, weights = self._lists
        for place, query in enumerate(tile):
            common = np.zeros(self.n_candidates, np.int64)
            for entry in range(self.queries.starts[query], self.queries.starts[query + 1]):
                gram, ours = self.queries.grams[entry], self.queries.weights[entry]
                listed = slice(starts[gram], starts[gram + 1])
                common[text_of[listed]] += np.minimum(ours, weights[listed])
            distance[place] = _distances(common, self.queries.sizes[query], self.sizes)
        return distance


def _vector_sizes(vectors: GramVectors) -> Integers:
    """Return the sum of the weights of every vector."""
    return np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(vectors.weights)])[vectors.starts])


@njit(nogil=True, cache=True)
def _distances(common: Integers, here: int, sizes: Integers) -> Floats:
    distance = np.empty(len(common))
    for row in range(len(common)):
        distance[row] = gram_distance(common[row], here, sizes[row])
    return distance


@njit(nogil=True, cache=True)
def _search_tile(  # noqa: PLR0913, PLR0917
    index: GramIndex,
    queries: GramQueries,
    tile: Integers,
    order: Integers,
    scores: NDArray[Any],
    partner: Integers,
    distance: Floats,
) -> None:
    """Find the K best of every query as heaps whose first entry is the worst."""
    rows, sizes, dense_of, dense, starts, places, weights = index
    first_gram, gram_of, weight_of, size_of = queries
    width = dense.shape[2]
    for block in order:
        first, last = block * width, min((block + 1) * width, len(rows))
        for place in range(len(tile)):
            query = tile[place]
            here, nearest, found = size_of[query], distance[place], partner[place]
            least = _least_common(nearest[0], here, sizes[first])
            if least > min(here, sizes[last - 1]):
                continue
            scores[:] = 0
            for entry in range(first_gram[query], first_gram[query + 1]):
                gram, ours = gram_of[entry], weight_of[entry]
                if dense_of[gram] >= 0:
                    _add_row(scores, dense[block, dense_of[gram]], ours)
                    ours -= DENSE_WEIGHT
                for item in range(starts[block, gram], starts[block, gram + 1]):
                    scores[places[item]] += max(0, min(ours, np.int64(weights[item])))
            if _largest(scores, 0, width) >= least:
                _offer_scores(scores, here, sizes[first:last], rows[first:last], nearest, found)


@njit(nogil=True, cache=True, inline="always")
def _add_row(scores: NDArray[Any], row: NDArray[np.uint8], ours: int) -> None:
    """Add the common weights of one dense gram."""
    most = np.uint8(min(ours, DENSE_WEIGHT))
    for place in range(len(scores)):
        scores[place] += scores.dtype.type(min(most, row[place]))


@njit(nogil=True, cache=True)
def _offer_scores(
    scores: NDArray[Any],
    here: int,
    sizes: Integers,
    rows: Integers,
    nearest: Floats,
    found: Integers,
) -> None:
    """Add candidates of a block that are near enough to the heap."""
    least = _least_common(nearest[0], here, sizes[0])
    for chunk in range(0, len(rows), CHUNK):
        if _largest(scores, chunk, chunk + CHUNK) < least:
            continue
        for place in range(chunk, min(chunk + CHUNK, len(rows))):
            common = np.int64(scores[place])
            if common < least:
                continue
            value = gram_distance(common, here, sizes[place])
            if value < nearest[0] or (value == nearest[0] and rows[place] < found[0]):
                replace_worst(nearest, found, value, rows[place])
                least = _least_common(nearest[0], here, sizes[0])


@njit(nogil=True, cache=True)
def _largest(scores: NDArray[Any], first: int, last: int) -> int:
    largest = scores[first]
    for place in range(first, last):
        largest = max(largest, scores[place])
    return int(largest)


@njit(nogil=True, cache=True)
def replace_worst(nearest: Floats, found: Integers, value: float, row: int) -> None:
    """Replace the first entry of a heap ordered by (distance, row), largest first."""
    place, size = 0, len(nearest)
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and (
            nearest[child + 1] > nearest[child]
            or (nearest[child + 1] == nearest[child] and found[child + 1] > found[child])
        ):
            child += 1
        if nearest[child] < value or (nearest[child] == value and found[child] < row):
            break
        nearest[place], found[place] = nearest[child], found[child]
        place = child
    nearest[place], found[place] = value, row
