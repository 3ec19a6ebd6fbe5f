"""Exact K nearest bit filters by Hamming or Dice distance.

A lane holds one 64-bit word of a query; a candidate's word is spread over all lanes, and xor, popcount and add give the
distances of a whole group of queries at once. The Dice distance of two filters is their Hamming distance divided by the
ones of both, so one kernel serves the two metrics.

Letters: L lanes, W words per filter, n candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedsim.linkage.search.lanes import I64, ONE64, ZERO64, Array, Lanes, lanes_of
from fedsim.linkage.search.select import Buffers, KeyLayout, offer_lanes
from fedsim.linkage.search.tiles import tiles_of
from fedsim.types import Bits, Integers

Words = NDArray[np.uint64]
BITS_PER_LANE = 64


class Group(NamedTuple):
    """The words of a group's queries, one query per lane, and their latest distances."""

    words: Words  # (W, L)
    distance: Integers  # (L,)


def words_of(bits: Bits) -> Words:
    """Packed bytes as 64-bit words, the last one filled with zeros."""
    spare = -bits.shape[1] % 8
    return np.ascontiguousarray(np.pad(bits, ((0, 0), (0, spare)))).view(np.uint64)


def ones_in(words: Words) -> Integers:
    """Number of ones in every filter."""
    return np.asarray(np.bitwise_count(words).sum(axis=1, dtype=np.int64))


@intrinsic
def within(typing_context: Any, group: Any, candidates: Any, row: Any, limit: Any, size: Any) -> Any:
    """Hamming distances of one candidate to all lanes; true if any keeps its limit."""
    signature = types.boolean(group, candidates, types.int64, limit, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        group_kind, group_value = signature.args[0], arguments[0]
        words, distance = (
            Array(context, builder, kind, builder.extract_value(group_value, place))
            for place, kind in enumerate(group_kind.types)
        )
        table = Array(context, builder, signature.args[1], arguments[1])
        limits = Array(context, builder, signature.args[3], arguments[3])
        lanes = Lanes(context, builder, BITS_PER_LANE)
        total = lanes.variable(lanes.constant(0))
        begin = builder.mul(arguments[2], words.length)
        with cgutils.for_range_slice(builder, ZERO64, words.length, ONE64, I64) as (word, _):
            one_word = lanes.spread(table.scalar(builder.add(begin, word)))
            differing = builder.xor(lanes.load(words, builder.mul(word, lanes.width)), one_word)
            builder.store(builder.add(builder.load(total), lanes.call("ctpop", differing)), total)
        sums = builder.load(total)
        lanes.store(sums, distance, ZERO64)
        return lanes.any_within(sums, lanes.load(limits, builder.mul(arguments[4], lanes.width)))

    return signature, generate


@njit(nogil=True, cache=True)
def _scan(group: Group, candidates: Words, size_of: Integers, buffers: Buffers, layout: KeyLayout) -> None:
    keys, counters, histogram, denominator, limit = buffers
    distance = group.distance
    for row in range(len(candidates)):
        if within(group, candidates, row, limit, size_of[row]):
            offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, size_of[row], row)


class BitKernel:
    """Hamming or Dice distances from groups of queries to all candidates."""

    ascending = True

    def __init__(self, queries: Words, candidates: Words, *, by_ones: bool) -> None:
        self.queries, self.candidates, self.by_ones = queries, candidates, by_ones
        self.n_candidates = len(candidates)
        self.largest_numerator = BITS_PER_LANE * candidates.shape[1]
        self.largest_denominator = 2 * self.largest_numerator if by_ones else 1
        self.sizes, self.size_of = np.unique(
            ones_in(candidates) if by_ones else np.zeros(self.n_candidates, np.int64), return_inverse=True
        )

    def tiles(self) -> list[Integers]:
        return tiles_of(len(self.queries), lanes_of(BITS_PER_LANE))

    def bits_of(self, tile: Integers) -> int:
        return BITS_PER_LANE

    def denominators(self, tile: Integers) -> Integers:
        """Per distinct number of ones and lane, the ones of both filters; two empty filters are equal."""
        if not self.by_ones:
            return np.ones((1, len(tile)), np.int64)
        ones = self.sizes[:, None] + ones_in(self.queries[tile])[None, :]  # (S, L)
        return np.asarray(np.maximum(ones, 1))

    def size_by_row(self) -> Integers:
        return self.size_of

    def scan(self, tile: Integers, buffers: Buffers, layout: KeyLayout) -> None:
        lanes = lanes_of(BITS_PER_LANE)
        words = np.zeros((self.queries.shape[1], lanes), np.uint64)
        words[:, : len(tile)] = self.queries[tile].T
        _scan(Group(words, np.zeros(lanes, np.int64)), self.candidates, self.size_of, buffers, layout)
