"""Exact K nearest filters: a popcount kernel.

Letters: L lanes, W words per filter, n candidates.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fedsim.linkage.search import simd
from fedsim.linkage.search.runner import row_tiles
from fedsim.types import Integers, Words

WORD_LANE_BITS = 64

# The popcount kernel. A lane holds one 64-bit word of a query; the word of a candidate is broadcast to all lanes, and
# xor, popcount and add compute the distances of a group of queries at once. The Dice distance between two filters is
# their Hamming distance divided by the ones of both, so one kernel serves both metrics.


class BitGroup(NamedTuple):
    """The words of a group of queries, one query per lane, and their latest distances."""

    words: Words  # (W, L)
    distance: Integers  # (L,)


def count_ones(words: Words) -> Integers:
    """Return the number of ones in every filter."""
    return np.asarray(np.bitwise_count(words).sum(axis=1, dtype=np.int64))


@intrinsic
def bits_within(typing_context: Any, group: Any, candidates: Any, row: Any, limit: Any, size: Any) -> Any:
    """Compute the Hamming distances from one candidate to all lanes; return true if any is within its limit."""
    signature = types.boolean(group, candidates, types.int64, limit, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        group_kind, group_value = signature.args[0], arguments[0]
        words, distance = (
            simd.ArrayPointer(context, builder, kind, builder.extract_value(group_value, place))
            for place, kind in enumerate(group_kind.types)
        )
        table = simd.ArrayPointer(context, builder, signature.args[1], arguments[1])
        limits = simd.ArrayPointer(context, builder, signature.args[3], arguments[3])
        lanes = simd.Lanes(context, builder, WORD_LANE_BITS)
        total = lanes.variable(lanes.constant(0))
        begin = builder.mul(arguments[2], words.length)
        with cgutils.for_range_slice(builder, simd.ZERO64, words.length, simd.ONE64, simd.I64) as (word, _):
            one_word = lanes.spread(table.scalar(builder.add(begin, word)))
            differing = builder.xor(lanes.load(words, builder.mul(word, lanes.width)), one_word)
            builder.store(builder.add(builder.load(total), lanes.call("ctpop", differing)), total)
        sums = builder.load(total)
        lanes.store(sums, distance, simd.ZERO64)
        return lanes.any_within(sums, lanes.load(limits, builder.mul(arguments[4], lanes.width)))

    return signature, generate


@njit(nogil=True, cache=True)
def _scan_bits(
    group: BitGroup, candidates: Words, size_of: Integers, buffers: simd.Buffers, layout: simd.KeyLayout
) -> None:
    keys, counters, histogram, denominator, limit = buffers
    distance = group.distance
    for row in range(len(candidates)):
        if bits_within(group, candidates, row, limit, size_of[row]):
            simd.offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, size_of[row], row)


class BitKernel:
    """Hamming or Dice distances from groups of queries to all candidates."""

    ascending = True

    def __init__(self, queries: Words, candidates: Words, *, by_ones: bool) -> None:
        self.queries, self.candidates, self.by_ones = queries, candidates, by_ones
        self.n_candidates = len(candidates)
        self.largest_numerator = WORD_LANE_BITS * candidates.shape[1]
        self.largest_denominator = 2 * self.largest_numerator if by_ones else 1
        self.sizes, self.size_of = np.unique(
            count_ones(candidates) if by_ones else np.zeros(self.n_candidates, np.int64), return_inverse=True
        )

    def tiles(self) -> list[Integers]:
        return row_tiles(len(self.queries), simd.lane_count(WORD_LANE_BITS))

    def bits_of(self, tile: Integers) -> int:
        return WORD_LANE_BITS

    def denominators(self, tile: Integers) -> Integers:
        """Return the ones of both filters per distinct number of ones and lane; two empty filters are equal."""
        if not self.by_ones:
            return np.ones((1, len(tile)), np.int64)
        ones = self.sizes[:, None] + count_ones(self.queries[tile])[None, :]  # (S, L)
        return np.asarray(np.maximum(ones, 1))

    def scan(self, tile: Integers, buffers: simd.Buffers, layout: simd.KeyLayout) -> None:
        lanes = simd.lane_count(WORD_LANE_BITS)
        words = np.zeros((self.queries.shape[1], lanes), np.uint64)
        words[:, : len(tile)] = self.queries[tile].T
        _scan_bits(BitGroup(words, np.zeros(lanes, np.int64)), self.candidates, self.size_of, buffers, layout)
