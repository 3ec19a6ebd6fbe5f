"""Exact K nearest FEDERAL numeric filters without the filters.

With its pivots sorted, a FEDERAL filter of a number is one run of ones, ``[low, high)``. The Hamming distance of two
filters is therefore ``|A| + |B| - 2 * overlap``: two integers per field replace a filter of any size. This is for
simulation and for a party's own preview, where one process holds the pivots.

Letters: L lanes, F fields, n candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedsim.linkage.search.lanes import I64, ONE64, ZERO64, Array, Lanes, lanes_of
from fedsim.linkage.search.select import Buffers, KeyLayout, offer_lanes
from fedsim.linkage.search.tiles import tiles_of
from fedsim.types import Integers

BITS_PER_LANE = 32
Runs = NDArray[np.int32]


class Group(NamedTuple):
    """The runs of a group's queries, one query per lane, and their latest distances."""

    runs: Runs  # (2 F, L): low and high of every field in turn
    ones: Runs  # (L,)
    distance: Runs  # (L,)


@intrinsic
def within(typing_context: Any, group: Any, candidates: Any, row: Any, ones: Any, limit: Any) -> Any:
    """Hamming distances of one candidate to all lanes; true if any keeps its limit."""
    signature = types.boolean(group, candidates, types.int64, types.int64, limit)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        runs, query_ones, distance = (
            Array(context, builder, kind, builder.extract_value(arguments[0], place))
            for place, kind in enumerate(signature.args[0].types)
        )
        table = Array(context, builder, signature.args[1], arguments[1])
        limits = Array(context, builder, signature.args[4], arguments[4])
        lanes = Lanes(context, builder, BITS_PER_LANE)
        total = lanes.variable(builder.add(lanes.load(query_ones, ZERO64), lanes.spread(arguments[3])))
        begin = builder.mul(arguments[2], runs.length)
        with cgutils.for_range_slice(builder, ZERO64, runs.length, ir.Constant(I64, 2), I64) as (side, _):
            low = lanes.load(runs, builder.mul(side, lanes.width))
            high = lanes.load(runs, builder.mul(builder.add(side, ONE64), lanes.width))
            place = builder.add(begin, side)
            top = lanes.call("smin", high, lanes.spread(table.scalar(builder.add(place, ONE64))))
            bottom = lanes.call("smax", low, lanes.spread(table.scalar(place)))
            overlap = lanes.call("smax", builder.sub(top, bottom), lanes.constant(0))
            twice = builder.shl(overlap, lanes.constant(1))
            builder.store(builder.sub(builder.load(total), twice), total)
        sums = builder.load(total)
        lanes.store(sums, distance, ZERO64)
        return lanes.any_within(sums, lanes.load(limits, ZERO64))

    return signature, generate


@njit(nogil=True, cache=True)
def _scan(group: Group, candidates: Runs, ones: Integers, buffers: Buffers, layout: KeyLayout) -> None:
    keys, counters, histogram, denominator, limit = buffers
    distance = group.distance
    for row in range(len(candidates)):
        if within(group, candidates, row, ones[row], limit):
            offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, 0, row)


class RankKernel:
    """Hamming distances of FEDERAL numeric filters from groups of queries to all candidates."""

    ascending = True

    def __init__(self, queries: Runs, candidates: Runs) -> None:
        self.queries, self.candidates = queries, candidates
        self.ones, self.query_ones = _ones(candidates), _ones(queries)
        self.n_candidates, self.largest_denominator = len(candidates), 1
        self.largest_numerator = int(self.ones.max() + self.query_ones.max())

    def tiles(self) -> list[Integers]:
        return tiles_of(len(self.queries), lanes_of(BITS_PER_LANE))

    def bits_of(self, tile: Integers) -> int:
        return BITS_PER_LANE

    def denominators(self, tile: Integers) -> Integers:
        return np.ones((1, len(tile)), np.int64)

    def size_by_row(self) -> Integers:
        return np.zeros(self.n_candidates, np.int64)

    def scan(self, tile: Integers, buffers: Buffers, layout: KeyLayout) -> None:
        lanes = lanes_of(BITS_PER_LANE)
        runs = np.zeros((self.queries.shape[1], lanes), np.int32)
        runs[:, : len(tile)] = self.queries[tile].T
        ones = np.zeros(lanes, np.int32)
        ones[: len(tile)] = self.query_ones[tile]
        _scan(Group(runs, ones, np.zeros(lanes, np.int32)), self.candidates, self.ones, buffers, layout)


def _ones(runs: Runs) -> Integers:
    return np.asarray((runs[:, 1::2].astype(np.int64) - runs[:, 0::2]).sum(axis=1))
