"""Exact K nearest strings by Jaro-Winkler distance, using a bit-parallel comparison of pairs.

The characters of a candidate are matched one by one with the first free equal character of the query within a window;
for queries of up to 64 characters the window, the free places and the equal places are bits of one word. Most pairs are
never compared, because the letters that two strings do not share limit their similarity.

Letters: n candidates, A characters of the candidates' alphabet, T queries of a tile.
"""

import sys
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedsim.linkage.search.nearest_lists import replace_worst
from fedsim.linkage.search.runner import split_rows
from fedsim.linkage.search.simd import popcount
from fedsim.linkage.search.text_array import to_text_array
from fedsim.types import Floats, Integers

QUERIES_PER_TILE = 32
CANDIDATES_PER_BLOCK = 4096
PREFIX_WEIGHT, LONGEST_PREFIX, LEAST_JARO = 0.1, 4, 0.7  # Winkler's values


class JaroTexts(NamedTuple):
    """Strings as numbers of the candidates' alphabet, and which letters each contains."""

    chars: NDArray[np.uint32]
    starts: Integers
    letters: NDArray[np.uint64]


class JaroSearch:
    """Exact K nearest candidates; also computes plain blocks of distances."""

    def __init__(self, queries: list[str], candidates: list[str]) -> None:
        self.order = np.argsort(np.fromiter(map(len, candidates), np.int64, len(candidates)), kind="stable")
        here, there = to_text_array(queries), to_text_array([candidates[row] for row in self.order])
        present = np.zeros(sys.maxunicode + 1, bool)
        present[there.chars] = True
        self.alphabet_size = int(present.sum())
        # Characters that occur only in queries match no character of a candidate.
        number_of = np.where(present, np.cumsum(present) - 1, self.alphabet_size).astype(np.uint32)
        self.queries, self.candidates = (
            JaroTexts(number_of[texts.chars], texts.starts, _letters(texts.chars, texts.starts))
            for texts in (here, there)
        )
        self.query_lengths, self.lengths = here.lengths, there.lengths

    def tiles(self) -> list[Integers]:
        """Group queries of similar length, whose partners are among the same candidates."""
        return split_rows(np.argsort(self.query_lengths, kind="stable"), QUERIES_PER_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        middle = self.query_lengths[tile[len(tile) // 2]]
        firsts = np.arange(0, len(self.order), CANDIDATES_PER_BLOCK)
        firsts = firsts[np.argsort(np.abs(self.lengths[firsts] - middle), kind="stable")]
        partner, distance = np.full((len(tile), k), len(self.order)), np.full((len(tile), k), np.inf)
        _search_tile(self.queries, self.candidates, tile, self._equal(tile), firsts, self.order, partner, distance)
        ranks = np.lexsort((partner, distance), axis=1)
        return np.take_along_axis(partner, ranks, axis=1), np.take_along_axis(distance, ranks, axis=1)

    def block(self, tile: Integers) -> Floats:
        """Return the distances from a tile to every candidate, in the order of the candidates."""
        distance = np.empty((len(tile), len(self.order)))
        _fill_block(self.queries, self.candidates, tile, self._equal(tile), self.order, distance)
        return distance

    def _equal(self, tile: Integers) -> NDArray[np.uint64]:
        """Return a bit mask of where each character occurs among the first 64 of each query, (T, A)."""
        equal = np.zeros((len(tile), self.alphabet_size + 1), np.uint64)
        _fill_equal(self.queries.chars, self.queries.starts, tile, equal)
        return equal


@njit(nogil=True, cache=True)
def _letters(chars: NDArray[np.uint32], starts: Integers) -> NDArray[np.uint64]:
    """Return, for every string, which of 32 kinds of letter it contains (low half), and which of them twice."""
    letters = np.zeros(len(starts) - 1, np.uint64)
    for text in range(len(letters)):
        for place in range(starts[text], starts[text + 1]):
            once = np.uint64(1) << np.uint64(chars[place] % 32)
            letters[text] |= once << np.uint64(32) if letters[text] & once else once
    return letters


@njit(nogil=True, cache=True)
def _fill_equal(chars: NDArray[np.uint32], starts: Integers, tile: Integers, equal: NDArray[np.uint64]) -> None:
    for place in range(len(tile)):
        begin = starts[tile[place]]
        for bit in range(min(64, starts[tile[place] + 1] - begin)):
            equal[place, chars[begin + bit]] |= np.uint64(1) << np.uint64(bit)
        equal[place, -1] = 0


@njit(nogil=True, cache=True)
def _search_tile(  # noqa: PLR0913, PLR0917
    queries: JaroTexts,
    candidates: JaroTexts,
    tile: Integers,
    equal: NDArray[np.uint64],
    firsts: Integers,
    rows: Integers,
    partner: Integers,
    distance: Floats,
) -> None:
    matched = np.empty(np.diff(candidates.starts).max() + 1, np.uint32)
    for first in firsts:
        last = min(first + CANDIDATES_PER_BLOCK, len(rows))
        for place in range(len(tile)):
            nearest, found = distance[place], partner[place]
            begin, end = queries.starts[tile[place]], queries.starts[tile[place] + 1]
            own, letters = end - begin, queries.letters[tile[place]]
            for other in range(first, last):
                start, stop = candidates.starts[other], candidates.starts[other + 1]
                theirs = candidates.letters[other]
                most = min(own - popcount(letters & ~theirs), stop - start - popcount(theirs & ~letters))
                if _distance(most, 0, own, stop - start, LONGEST_PREFIX) > nearest[0] + 1e-12:
                    continue
                prefix = _prefix(queries.chars, begin, own, candidates.chars, start, stop - start)
                if _distance(most, 0, own, stop - start, prefix) > nearest[0] + 1e-12:
                    continue
                value = _compare(
                    queries.chars, begin, own, candidates.chars, start, stop - start, equal[place], prefix, matched
                )
                if value < nearest[0] or (value == nearest[0] and rows[other] < found[0]):
                    replace_worst(nearest, found, value, rows[other])


@njit(nogil=True, cache=True)
def _fill_block(
    queries: JaroTexts,
    candidates: JaroTexts,
    tile: Integers,
    equal: NDArray[np.uint64],
    rows: Integers,
    distance: Floats,
) -> None:
    matched = np.empty(np.diff(candidates.starts).max() + 1, np.uint32)
    for place in range(len(tile)):
        begin = queries.starts[tile[place]]
        own = queries.starts[tile[place] + 1] - begin
        for other in range(len(rows)):
            start = candidates.starts[other]
            size = candidates.starts[other + 1] - start
            prefix = _prefix(queries.chars, begin, own, candidates.chars, start, size)
            distance[place, rows[other]] = _compare(
                queries.chars, begin, own, candidates.chars, start, size, equal[place], prefix, matched
            )


@njit(nogil=True, cache=True)
def _prefix(ours: NDArray[np.uint32], begin: int, own: int, theirs: NDArray[np.uint32], start: int, size: int) -> int:
    prefix = 0
    while prefix < min(own, size, LONGEST_PREFIX) and ours[begin + prefix] == theirs[start + prefix]:
        prefix += 1
    return prefix


@njit(nogil=True, cache=True)
def _distance(matches: int, swapped: int, own: int, size: int, prefix: int) -> float:
    """Return one minus the Jaro-Winkler similarity of strings with these matches, half of ``swapped`` transposed."""
    if matches <= 0:
        return 0.0 if own == size == 0 else 1.0
    jaro = (matches / own + matches / size + (matches - swapped // 2) / matches) / 3.0
    if jaro > LEAST_JARO:
        jaro += prefix * PREFIX_WEIGHT * (1.0 - jaro)
    return max(0.0, 1.0 - jaro)


@njit(nogil=True, cache=True)
def _compare(  # noqa: PLR0913, PLR0917
    ours: NDArray[np.uint32],
    begin: int,
    own: int,
    theirs: NDArray[np.uint32],
    start: int,
    size: int,
    equal: NDArray[np.uint64],
    prefix: int,
    matched: NDArray[np.uint32],
) -> float:
    """Return the distance of one pair; ``matched`` is scratch space."""
    reach = max(0, max(own, size) // 2 - 1)
    if own > 64:
        return float(_compare_long(ours[begin : begin + own], theirs[start : start + size], reach, prefix, matched))
    one = np.uint64(1)
    taken, count = np.uint64(0), 0
    for place in range(min(size, own + reach)):
        high, low = min(place + reach, 63), place - reach
        window = ~np.uint64(0) >> np.uint64(63 - high)
        if low > 0:
            window &= ~np.uint64(0) << np.uint64(low)
        free = equal[theirs[start + place]] & window & ~taken
        if free:
            taken |= free & (~free + one)
            matched[count] = theirs[start + place]
            count += 1
    swapped = 0
    for match in range(count):
        lowest = taken & (~taken + one)
        swapped += (equal[matched[match]] & lowest) == 0
        taken ^= lowest
    return float(_distance(count, swapped, own, size, prefix))


@njit(nogil=True, cache=True)
def _compare_long(
    ours: NDArray[np.uint32], theirs: NDArray[np.uint32], reach: int, prefix: int, matched: NDArray[np.uint32]
) -> float:
    taken = np.zeros(len(ours), np.bool_)
    count = 0
    for place in range(len(theirs)):
        for other in range(max(0, place - reach), min(len(ours), place + reach + 1)):
            if not taken[other] and ours[other] == theirs[place]:
                taken[other] = True
                matched[count] = theirs[place]
                count += 1
                break
    swapped, match = 0, 0
    for other in range(len(ours)):
        if taken[other]:
            swapped += ours[other] != matched[match]
            match += 1
    return float(_distance(count, swapped, len(ours), len(theirs), prefix))
