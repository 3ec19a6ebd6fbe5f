"""Many queries in one machine vector: LLVM building blocks and the selection of the K best per lane.

A *lane* holds one query. A kernel walks once over all candidates and compares each with every lane of its group at the
same time, so a candidate is read once for 32 to 128 queries. numba has no vector type, so the building blocks are
written in LLVM IR; LLVM maps them to AVX-512, AVX2 or NEON.

Letters: L lanes of one group, S distinct sizes of candidates (1 where the denominator is 1), C capacity of a buffer,
H bins.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils

from fedsim.errors import InputError
from fedsim.types import AnyArray, Floats, Integers, Integers32

VECTOR_BITS = 2048  # four AVX-512 registers: enough independent work to hide latency, few enough not to spill

I64 = ir.IntType(64)
ZERO64, ONE64 = ir.Constant(I64, 0), ir.Constant(I64, 1)


def lane_count(bits: int) -> int:
    """Return the number of queries that share one group of lanes with this many bits each.

    >>> [lane_count(bits) for bits in (16, 32, 64)]
    [128, 64, 32]
    """
    return VECTOR_BITS // bits


class Lanes:
    """Emits vector instructions for lanes of ``bits`` bits at the builder's position."""

    def __init__(self, context: Any, builder: Any, bits: int) -> None:
        self.context, self.builder, self.bits = context, builder, bits
        self.count = lane_count(bits)
        self.scalar = ir.IntType(bits)
        self.vector = ir.VectorType(self.scalar, self.count)
        self.width = ir.Constant(I64, self.count)

    def constant(self, value: int) -> Any:
        return ir.Constant(self.vector, [value] * self.count)

    def complement(self, value: Any) -> Any:
        return self.builder.xor(value, self.constant((1 << self.bits) - 1))

    def spread(self, value: Any) -> Any:
        """Return a vector with the same 64-bit scalar in every lane."""
        narrow = self.builder.trunc(value, self.scalar) if self.bits < 64 else value
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, narrow, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.count), [0] * self.count)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a vector function of LLVM, such as ``ctpop`` or ``smin``."""
        kind = ir.FunctionType(self.vector, [self.vector] * len(arguments))
        full_name = f"llvm.{name}.v{self.count}i{self.bits}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, full_name), arguments)

    def variable(self, value: Any) -> Any:
        """Return a variable that a loop may change."""
        place = cgutils.alloca_once(self.builder, self.vector)
        self.builder.store(value, place)
        return place

    def pointer(self, array: ArrayPointer, offset: Any) -> Any:
        start = self.builder.gep(array.data, [offset])
        return self.builder.bitcast(start, self.vector.as_pointer())

    def load(self, array: ArrayPointer, offset: Any) -> Any:
        return self.builder.load(self.pointer(array, offset), align=self.bits // 8)

    def store(self, value: Any, array: ArrayPointer, offset: Any) -> None:
        self.builder.store(value, self.pointer(array, offset), align=self.bits // 8)

    def any_within(self, distance: Any, limit: Any) -> Any:
        """Return whether the distance of at least one lane is within its limit."""
        flags = self.builder.icmp_signed("<=", distance, limit)
        mask = ir.IntType(self.count)
        return self.builder.icmp_unsigned("!=", self.builder.bitcast(flags, mask), ir.Constant(mask, 0))


class ArrayPointer:
    """The data pointer of a C-ordered numba array and scalar reads from it."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self.builder = builder
        array = context.make_array(kind)(context, builder, value)
        self.data = array.data
        self.length = builder.extract_value(array.shape, 0)

    def scalar(self, index: Any) -> Any:
        """Return an element as 64 bits, zero-extended."""
        value = self.builder.load(self.builder.gep(self.data, [index]))
        return self.builder.zext(value, I64) if value.type.width < 64 else value


# Selection of the K smallest of a stream of candidates for every lane, by counting.
#
# Distances of the integer metrics are fractions ``numerator / denominator`` (Hamming and Levenshtein: denominator 1;
# normalised Levenshtein: the longer length; Dice: the ones of both filters). A candidate becomes one 64-bit key,
# ``floor(numerator * 2**shift / denominator)`` above its row number: keys sort exactly as (distance, row) as long as
# ``2**shift`` exceeds the square of every denominator, since two different fractions are at least that far apart.
#
# Every lane counts its values in bins and knows ``cut``, the lowest bin up to which it has K candidates. Nothing above
# the cut can be among the K best, so a kernel only compares with ``limit[size, lane]``, the largest numerator that
# still matters for a candidate of that size. Nothing is sorted until the end.

MAX_BINS = 2048


class KeyLayout(NamedTuple):
    """How a fraction and a row number share 63 bits, how values map to bins, and how many partners are needed."""

    k: int
    shift: int
    row_bits: int
    bin_shift: int
    n_bins: int
    first_wins: int  # 1: rows come in ascending order and a bin is one value, so a tie with the cut has lost


class Buffers(NamedTuple):
    """The candidates that one group of lanes has found so far."""

    keys: Integers  # (L, C)
    counters: Integers  # (L, 3): FILLED, CUT, BELOW
    histogram: Integers32  # (L, H)
    denominator: Integers  # (S, L)
    limit: AnyArray  # (S, L), signed, as wide as a lane


FILLED, CUT, BELOW = 0, 1, 2  # entries of the buffer, lowest bin that completes K, how many lie up to it


def key_layout(
    k: int, *, largest_numerator: int, largest_denominator: int, n_candidates: int, ascending: bool = False
) -> KeyLayout:
    """Return the layout for these sizes; fail if 63 bits cannot distinguish two different fractions.

    >>> key_layout(5, largest_numerator=30, largest_denominator=30, n_candidates=1000)
    KeyLayout(k=5, shift=10, row_bits=10, bin_shift=0, n_bins=1025, first_wins=0)
    """
    row_bits = max(1, (n_candidates - 1).bit_length())
    shift = 2 * largest_denominator.bit_length() if largest_denominator > 1 else 0
    largest_value = 1 << shift if shift else largest_numerator
    if largest_value.bit_length() + max(row_bits, largest_denominator.bit_length()) > 62:
        raise InputError(
            f"identifiers of size {max(largest_numerator, largest_denominator)} among {n_candidates} candidates need "
            "more than 63 bits to be ranked exactly; shorten the identifiers or link the candidates in parts",
            code="identifiers-too-long",
        )
    bin_shift = max(0, largest_value.bit_length() - MAX_BINS.bit_length() + 1)
    n_bins = (largest_value >> bin_shift) + 1
    return KeyLayout(k, shift, row_bits, bin_shift, n_bins, int(ascending and bin_shift == 0))


def new_buffers(layout: KeyLayout, denominator: Integers, used_lanes: int, bits: int) -> Buffers:
    """Return empty buffers; lanes beyond ``used_lanes`` hold no query and accept nothing."""
    lanes = denominator.shape[1]
    limit = np.full(denominator.shape, np.iinfo(f"i{bits // 8}").max, dtype=f"i{bits // 8}")
    limit[:, used_lanes:] = -1
    counters = np.zeros((lanes, 3), np.int64)
    counters[:, CUT] = layout.n_bins - 1
    keys = np.empty((lanes, 8 * layout.k + 64), np.int64)
    return Buffers(keys, counters, np.zeros((lanes, layout.n_bins), np.int32), denominator, limit)


# The functions below take arrays one by one: numba counts references whenever a tuple of arrays is passed, which costs
# more than the work itself.


@njit(nogil=True, cache=True)
def offer_lanes(  # noqa: PLR0913, PLR0917
    keys: Integers,
    counters: Integers,
    histogram: Integers32,
    denominator: Integers,
    limit: AnyArray,
    layout: KeyLayout,
    distance: AnyArray,
    size: int,
    row: int,
) -> None:
    """Add a candidate to the buffer of every lane whose limit it meets."""
    for lane in range(len(keys)):
        if distance[lane] > limit[size, lane]:
            continue
        value = np.int64(distance[lane])
        if layout.shift:
            value = (value << layout.shift) // denominator[size, lane]
        if value >> layout.bin_shift > counters[lane, CUT]:
            continue
        if counters[lane, FILLED] == keys.shape[1]:
            _make_room(keys, counters, histogram, layout, lane)
        keys[lane, counters[lane, FILLED]] = (value << layout.row_bits) | row
        counters[lane, FILLED] += 1
        if _count_value(counters, histogram, layout, lane, value >> layout.bin_shift):
            _lower_limit(counters, denominator, limit, layout, lane)


@njit(nogil=True, cache=True)
def _count_value(counters: Integers, histogram: Integers32, layout: KeyLayout, lane: int, place: int) -> bool:
    """Count one more value; return true if the lane now has its first cut or a lower one."""
    histogram[lane, place] += 1
    below, cut = counters[lane, BELOW] + 1, counters[lane, CUT]
    complete = below == layout.k
    while below - histogram[lane, cut] >= layout.k:
        below -= histogram[lane, cut]
        cut -= 1
    lower = complete or cut < counters[lane, CUT]
    counters[lane, BELOW], counters[lane, CUT] = below, cut
    return bool(lower)


@njit(nogil=True, cache=True)
def _lower_limit(counters: Integers, denominator: Integers, limit: AnyArray, layout: KeyLayout, lane: int) -> None:
    """Set the limits of a lane to the cut; with many sizes, only when rewriting all limits is worth it."""
    end = (counters[lane, CUT] + 1 - layout.first_wins) << layout.bin_shift
    lowest = (end * denominator[0, lane] - 1) >> layout.shift
    if limit.shape[0] > 1 and limit[0, lane] - lowest <= limit[0, lane] >> 4:
        return
    most = np.iinfo(limit.dtype).max
    for size in range(limit.shape[0]):
        limit[size, lane] = min((end * denominator[size, lane] - 1) >> layout.shift, most)


@njit(nogil=True, cache=True)
def _make_room(keys: Integers, counters: Integers, histogram: Integers32, layout: KeyLayout, lane: int) -> None:
    """Drop entries above the cut; if ties at the cut still fill the buffer, drop those that have lost."""
    kept = 0
    for place in range(counters[lane, FILLED]):
        if keys[lane, place] >> (layout.row_bits + layout.bin_shift) <= counters[lane, CUT]:
            keys[lane, kept] = keys[lane, place]
            kept += 1
    if 2 * kept > keys.shape[1]:
        keys[lane, :kept].sort()
        kept = layout.k
        histogram[lane, counters[lane, CUT]] -= counters[lane, BELOW] - kept
        counters[lane, BELOW] = kept
    counters[lane, FILLED] = kept


@njit(nogil=True, cache=True)
def write_best(buffers: Buffers, layout: KeyLayout, size_of: Integers, partner: Integers, distance: Floats) -> None:
    """Write the K best of the first lanes, in order; the key gives the numerator exactly."""
    for lane in range(len(partner)):
        _make_room(buffers.keys, buffers.counters, buffers.histogram, layout, lane)
        best = np.sort(buffers.keys[lane, : buffers.counters[lane, FILLED]])
        for rank in range(layout.k):
            row = best[rank] & ((np.int64(1) << layout.row_bits) - 1)
            below = buffers.denominator[size_of[row], lane]
            scaled = (best[rank] >> layout.row_bits) * below
            above = (scaled + (np.int64(1) << layout.shift) - 1) >> layout.shift
            partner[lane, rank] = row
            distance[lane, rank] = above / below


# The exhaustive search with such a kernel


class LaneKernel(Protocol):
    """Computes the distances of many queries at once, as fractions."""

    n_candidates: int
    size_of: Integers  # by candidate row: index into the distinct sizes
    ascending: bool  # candidates are visited by ascending row
    largest_numerator: int
    largest_denominator: int

    def tiles(self) -> list[Integers]: ...

    def bits_of(self, tile: Integers) -> int: ...

    def denominators(self, tile: Integers) -> Integers: ...

    def scan(self, tile: Integers, buffers: Buffers, layout: KeyLayout) -> None: ...


class LaneSearch:
    """The exhaustive search with a lane kernel."""

    def __init__(self, kernel: LaneKernel) -> None:
        self.kernel = kernel

    def tiles(self) -> list[Integers]:
        return self.kernel.tiles()

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        kernel, bits = self.kernel, self.kernel.bits_of(tile)
        layout = key_layout(
            k,
            largest_numerator=kernel.largest_numerator,
            largest_denominator=kernel.largest_denominator,
            n_candidates=kernel.n_candidates,
            ascending=kernel.ascending,
        )
        used = kernel.denominators(tile)
        padding = np.ones((len(used), lane_count(bits) - len(tile)), np.int64)
        buffers = new_buffers(layout, np.hstack([used, padding]), len(tile), bits)
        kernel.scan(tile, buffers, layout)
        partner, distance = np.empty((len(tile), k), np.int64), np.empty((len(tile), k))
        write_best(buffers, layout, kernel.size_of, partner, distance)
        return partner, distance


# Lists of the nearest candidates of plain distances, updated block by block


@njit(nogil=True, cache=True)
def insert_sorted(partner: Integers, distance: Floats, row: int, value: float) -> bool:
    """Insert into a list sorted by (distance, row) if it is near enough; rows must come in ascending order."""
    place = len(distance) - 1
    if value >= distance[place]:
        return False
    while place > 0 and distance[place - 1] > value:
        distance[place], partner[place] = distance[place - 1], partner[place - 1]
        place -= 1
    distance[place], partner[place] = value, row
    return True


@njit(nogil=True, cache=True)
def merge_block(block: Floats, first: int, partner: Integers, distance: Floats) -> None:
    """Merge a block of distances into the list of every query."""
    for query in range(block.shape[0]):
        for place in range(block.shape[1]):
            if block[query, place] < distance[query, -1]:
                insert_sorted(partner[query], distance[query], first + place, block[query, place])
