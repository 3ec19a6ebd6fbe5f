"""Exact K nearest strings by edit distance (Myers' bit-parallel algorithm over vector lanes).

Myers' algorithm (1999) represents one column of the edit matrix by two bit vectors, the positive and the negative steps
down the column. Here every lane of a vector holds the column of another query. Candidates are visited in lexicographic
order, and the columns after every character are stored, so a candidate starts where it differs from the one before it:
real titles share about half of their characters with their neighbour. Queries of more than 64 characters take several
words per lane, and the horizontal step is carried from word to word.

Letters: L lanes, W words per lane, A characters of the candidates' alphabet, D stored columns, n candidates.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedsim.linkage.search import simd
from fedsim.linkage.search.runner import number_characters, split_rows, to_text_array
from fedsim.types import Floats, Integers

STORED_COLUMNS = 1024  # for reuse by the next candidate; the maximum for longer candidates
STORED_BYTES = 2**25  # the same for very long queries, whose columns are large


@njit(nogil=True, cache=True)
def number_words(chars: NDArray[np.uint32], separator: int, n_texts: int) -> tuple[Integers, Integers, Integers]:
    """Return the word numbers of all texts, where each text starts, and where each distinct word first occurs.

    Texts are separated by ``separator``, their words by spaces; equal words have the same number.
    """
    n_words = _count_words(chars, separator)
    words, starts = np.empty(n_words, np.int64), np.zeros(n_texts + 1, np.int64)
    first, distinct = np.empty((n_words, 2), np.int64), 0
    slots = 16
    while slots < 2 * n_words:
        slots *= 2
    number_at = np.full(slots, -1, np.int64)  # a hash table with linear probing
    found, text, place = 0, 0, 0
    while place < len(chars):
        if chars[place] == separator:
            text += 1
            starts[text] = found
        if not _is_letter(chars, place, separator):
            place += 1
            continue
        begin, state = place, np.uint64(0xCBF29CE484222325)  # FNV-1a
        while _is_letter(chars, place, separator):
            state = (state ^ np.uint64(chars[place])) * np.uint64(0x100000001B3)
            place += 1
        slot = np.int64((state ^ (state >> np.uint64(32))) & np.uint64(slots - 1))
        while number_at[slot] >= 0:
            known, end = first[number_at[slot]]
            if end - known == place - begin and (chars[known:end] == chars[begin:place]).all():
                break
            slot = (slot + 1) & (slots - 1)
        if number_at[slot] < 0:
            number_at[slot] = distinct
            first[distinct, 0], first[distinct, 1] = begin, place
            distinct += 1
        words[found] = number_at[slot]
        found += 1
    starts[n_texts] = found
    return words, starts, first[:distinct].copy()


@njit(nogil=True, cache=True)
def _count_words(chars: NDArray[np.uint32], separator: int) -> int:
    count = 0
    for place in range(len(chars)):
        count += _is_letter(chars, place, separator) and not _is_letter(chars, place - 1, separator)
    return count


@njit(nogil=True, cache=True, inline="always")
def _is_letter(chars: NDArray[np.uint32], place: int, separator: int) -> bool:
    return 0 <= place < len(chars) and chars[place] != separator and chars[place] != 32


@njit(nogil=True, cache=True)
def count_texts(words: Integers, starts: Integers, n_words: int) -> Integers:
    """Return the number of texts in which each word occurs."""
    counts, last = np.zeros(n_words, np.int64), np.full(n_words, -1, np.int64)
    for text in range(len(starts) - 1):
        for word in words[starts[text] : starts[text + 1]]:
            counts[word] += last[word] < text
            last[word] = text
    return counts


class SortedTexts(NamedTuple):
    """Candidates in lexicographic order, and the length of the prefix that each shares with the one before."""

    chars: NDArray[np.uint32]  # numbers in the candidates' own alphabet
    starts: Integers
    shared: Integers
    rows: Integers
    size_of: Integers  # by position in this order: index into the distinct sizes


class TextGroup(NamedTuple):
    """Queries that share the lanes of one vector."""

    equal: NDArray[Any]  # (A, W, L): which characters of the query are this one
    last: NDArray[Any]  # (W, L): ones where the lane has characters
    state: NDArray[Any]  # (D + 1, W, 2, L)
    distance: NDArray[Any]  # (L,)


@intrinsic
def advance_lanes(typing_context: Any, group: Any, chars: Any, begin: Any, start: Any, stop: Any) -> Any:
    """Advance all lanes from column ``start`` to column ``stop`` of the candidate that begins at ``begin``."""
    signature = types.void(group, chars, types.int64, types.int64, types.int64)
    bits = group.types[0].dtype.bitwidth

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        columns = _Columns(context, builder, signature.args[0], arguments[0])
        text = simd.ArrayPointer(context, builder, signature.args[1], arguments[1])
        walk = _Walk(simd.Lanes(context, builder, bits), columns, text, *arguments[2:])
        with builder.if_else(builder.icmp_signed("==", columns.words, simd.ONE64)) as (single, several):
            with single:
                walk.one_word()
            with several:
                walk.many_words()
        return context.get_dummy_value()

    return signature, generate


class _Columns:
    """The arrays of a group and the offsets of its stored columns."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        arrays = [
            simd.ArrayPointer(context, builder, part, builder.extract_value(value, place))
            for place, part in enumerate(kind.types)
        ]
        self.equal, self.last, self.state, self.distance = arrays
        self.builder, self.words = builder, self.last.length
        self.width = ir.Constant(simd.I64, simd.lane_count(kind.types[0].dtype.bitwidth))

    def plus_at(self, depth: Any, word: Any = simd.ZERO64) -> Any:
        """Return where the positive steps are stored; the negative ones follow. Deeper columns share the last row."""
        cap = self.builder.sub(self.state.length, simd.ONE64)
        row = self.builder.select(self.builder.icmp_signed("<", depth, cap), depth, cap)
        place = self.builder.add(self.builder.mul(row, self.words), word)
        return self.builder.mul(place, self.builder.add(self.width, self.width))

    def minus_at(self, depth: Any, word: Any = simd.ZERO64) -> Any:
        return self.builder.add(self.plus_at(depth, word), self.width)

    def equal_at(self, char: Any, word: Any = simd.ZERO64) -> Any:
        return self.builder.mul(self.builder.add(self.builder.mul(char, self.words), word), self.width)


class _Walk:
    """The loop over the characters of a candidate, for lanes of one word (in registers) or of several."""

    def __init__(
        self, lanes: simd.Lanes, columns: _Columns, text: simd.ArrayPointer, begin: Any, start: Any, stop: Any
    ) -> None:
        self.lanes, self.columns, self.text = lanes, columns, text
        self.begin, self.start, self.stop = begin, start, stop

    def one_word(self) -> None:
        lanes, columns, builder = self.lanes, self.columns, self.lanes.builder
        plus = lanes.variable(lanes.load(columns.state, columns.plus_at(self.start)))
        minus = lanes.variable(lanes.load(columns.state, columns.minus_at(self.start)))
        edge = (lanes.constant(1), lanes.constant(0))
        with cgutils.for_range_slice(builder, self.start, self.stop, simd.ONE64, simd.I64) as (column, _):
            char = self.text.scalar(builder.add(self.begin, column))
            hit = lanes.load(columns.equal, columns.equal_at(char))
            new_plus, new_minus, _, _ = _myers_step(lanes, builder.load(plus), builder.load(minus), hit, edge)
            builder.store(new_plus, plus)
            builder.store(new_minus, minus)
            self._store(builder.add(column, simd.ONE64), simd.ZERO64, new_plus, new_minus)

    def many_words(self) -> None:
        lanes, columns, builder = self.lanes, self.columns, self.lanes.builder
        rise, fall = lanes.variable(lanes.constant(1)), lanes.variable(lanes.constant(0))
        with cgutils.for_range_slice(builder, self.start, self.stop, simd.ONE64, simd.I64) as (column, _):
            char = self.text.scalar(builder.add(self.begin, column))
            builder.store(lanes.constant(1), rise)
            builder.store(lanes.constant(0), fall)
            with cgutils.for_range_slice(builder, simd.ZERO64, columns.words, simd.ONE64, simd.I64) as (word, _):
                plus = lanes.load(columns.state, columns.plus_at(column, word))
                minus = lanes.load(columns.state, columns.minus_at(column, word))
                hit = lanes.load(columns.equal, columns.equal_at(char, word))
                edge = (builder.load(rise), builder.load(fall))
                new_plus, new_minus, rise_out, fall_out = _myers_step(lanes, plus, minus, hit, edge)
                builder.store(rise_out, rise)
                builder.store(fall_out, fall)
                self._store(builder.add(column, simd.ONE64), word, new_plus, new_minus)

    def _store(self, depth: Any, word: Any, plus: Any, minus: Any) -> None:
        self.lanes.store(plus, self.columns.state, self.columns.plus_at(depth, word))
        self.lanes.store(minus, self.columns.state, self.columns.minus_at(depth, word))


def _myers_step(lanes: simd.Lanes, plus: Any, minus: Any, hit: Any, carry: tuple[Any, Any]) -> tuple[Any, ...]:
    """Process one character: return new vertical steps and the horizontal step out of this word (Hyyrö's form)."""
    builder, one, top = lanes.builder, lanes.constant(1), lanes.constant(lanes.bits - 1)
    rise_in, fall_in = carry
    hit_or_minus = builder.or_(hit, minus)
    seed = builder.or_(hit, fall_in)
    diagonal = builder.or_(builder.xor(builder.add(builder.and_(seed, plus), plus), plus), builder.or_(seed, minus))
    rise = builder.or_(minus, lanes.complement(builder.or_(diagonal, plus)))
    fall = builder.and_(plus, diagonal)
    rise_out, fall_out = builder.lshr(rise, top), builder.lshr(fall, top)
    rise = builder.or_(builder.shl(rise, one), rise_in)
    fall = builder.or_(builder.shl(fall, one), fall_in)
    new_plus = builder.or_(fall, lanes.complement(builder.or_(hit_or_minus, rise)))
    return new_plus, builder.and_(rise, hit_or_minus), rise_out, fall_out


@intrinsic
def texts_within(typing_context: Any, group: Any, depth: Any, limit: Any, size: Any) -> Any:
    """Compute the distances of all lanes after ``depth`` columns; return true if any is within its limit.

    The corner of the edit matrix is the depth plus all positive minus all negative steps down the last column.
    """
    signature = types.boolean(group, types.int64, limit, types.int64)
    bits = limit.dtype.bitwidth

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        columns = _Columns(context, builder, signature.args[0], arguments[0])
        limits = simd.ArrayPointer(context, builder, signature.args[2], arguments[2])
        lanes = simd.Lanes(context, builder, bits)
        total = lanes.variable(lanes.spread(arguments[1]))
        with cgutils.for_range_slice(builder, simd.ZERO64, columns.words, simd.ONE64, simd.I64) as (word, _):
            used = lanes.load(columns.last, builder.mul(word, columns.width))
            plus = lanes.load(columns.state, columns.plus_at(arguments[1], word))
            minus = lanes.load(columns.state, columns.minus_at(arguments[1], word))
            down = lanes.call("ctpop", builder.and_(plus, used))
            up = lanes.call("ctpop", builder.and_(minus, used))
            builder.store(builder.sub(builder.add(builder.load(total), down), up), total)
        corner = builder.load(total)
        lanes.store(corner, columns.distance, simd.ZERO64)
        return lanes.any_within(corner, lanes.load(limits, builder.mul(arguments[3], columns.width)))

    return signature, generate


@njit(nogil=True, cache=True)
def _scan_texts(candidates: SortedTexts, group: TextGroup, buffers: simd.Buffers, layout: simd.KeyLayout) -> None:
    chars, starts, shared, rows, size_of = candidates
    keys, counters, histogram, denominator, limit = buffers
    distance, deepest = group.distance, group.state.shape[0] - 2
    for place in range(len(rows)):
        begin = starts[place]
        depth = starts[place + 1] - begin
        advance_lanes(group, chars, begin, min(shared[place], deepest), depth)
        size = size_of[place]
        if texts_within(group, depth, limit, size):
            simd.offer_lanes(keys, counters, histogram, denominator, limit, layout, distance, size, rows[place])


@njit(nogil=True, cache=True)
def _fill_group(chars: NDArray[Any], starts: Integers, queries: Integers, group: TextGroup) -> None:
    """Set the match tables of the lanes; characters outside the candidates' alphabet match nothing."""
    bits = 8 * group.last.itemsize
    one = group.last.dtype.type(1)
    for lane in range(len(queries)):
        begin = starts[queries[lane]]
        for place in range(starts[queries[lane] + 1] - begin):
            bit = one << group.last.dtype.type(place % bits)
            group.last[place // bits, lane] |= bit
            char = chars[begin + place]
            if char < group.equal.shape[0]:
                group.equal[char, place // bits, lane] |= bit


@njit(nogil=True, cache=True)
def _fill_block(candidates: SortedTexts, group: TextGroup, accept_all: NDArray[Any], block: NDArray[Any]) -> None:
    """Compute the distances of every candidate (rows) to every lane (columns)."""
    deepest = group.state.shape[0] - 2
    for place in range(len(candidates.rows)):
        begin = candidates.starts[place]
        depth = candidates.starts[place + 1] - begin
        advance_lanes(group, candidates.chars, begin, min(candidates.shared[place], deepest), depth)
        texts_within(group, depth, accept_all, 0)
        block[candidates.rows[place]] = group.distance


@njit(nogil=True, cache=True)
def _shared_prefixes(chars: NDArray[np.uint32], starts: Integers) -> Integers:
    shared = np.zeros(len(starts) - 1, np.int64)
    for place in range(1, len(shared)):
        here, before = starts[place], starts[place - 1]
        most = min(starts[place + 1] - here, here - before)
        while shared[place] < most and chars[here + shared[place]] == chars[before + shared[place]]:
            shared[place] += 1
    return shared


class TextKernel:
    """Edit distances from groups of queries to all candidates."""

    ascending = False

    def __init__(self, queries: list[str], candidates: list[str], *, normalised: bool) -> None:
        order = np.array(sorted(range(len(candidates)), key=candidates.__getitem__), np.int64)
        sides = to_text_array(queries), to_text_array([candidates[row] for row in order])
        self.queries, texts, self.alphabet_size = number_characters(*sides)
        self.sizes, size_of = np.unique(texts.lengths if normalised else np.zeros(len(order)), return_inverse=True)
        shared = _shared_prefixes(texts.chars, texts.starts)
        self.candidates = SortedTexts(texts.chars, texts.starts, shared, order, size_of)
        self.n_candidates, self.normalised = len(order), normalised
        self.size_of = np.empty(len(order), np.int64)
        self.size_of[order] = size_of
        self.largest_numerator = int(max(texts.lengths.max(), self.queries.lengths.max(), 1))
        self.largest_denominator = self.largest_numerator if normalised else 1

    def tiles(self) -> list[Integers]:
        """Group queries that fit the same lanes, shortest lanes first."""
        lengths = self.queries.lengths
        bits = self._bits_for(lengths)
        words = -(-lengths // bits)
        order = np.lexsort((lengths, words, bits))
        cuts = np.flatnonzero(np.diff(bits[order]) | np.diff(np.maximum(words[order], 1))) + 1
        tiles = []
        for part in np.split(order, cuts):
            tiles += split_rows(part, simd.lane_count(int(bits[part[0]])))
        return tiles

    def bits_of(self, tile: Integers) -> int:
        return int(self._bits_for(self.queries.lengths[tile]).max())

    def denominators(self, tile: Integers) -> Integers:
        """Return the divisor of the edit distance, per distinct size and lane."""
        if not self.normalised:
            return np.ones((1, len(tile)), np.int64)
        return np.maximum(np.maximum(self.sizes[:, None], self.queries.lengths[tile][None, :]), 1)  # (S, L)

    def scan(self, tile: Integers, buffers: simd.Buffers, layout: simd.KeyLayout) -> None:
        _scan_texts(self.candidates, self._group(tile), buffers, layout)

    def block(self, tile: Integers) -> Floats:
        """Return the distances from a tile to every candidate, in the order of the candidates."""
        bits = self.bits_of(tile)
        block = np.empty((self.n_candidates, simd.lane_count(bits)), f"i{bits // 8}")
        no_limit = np.zeros((len(self.sizes), simd.lane_count(bits)), f"i{bits // 8}")
        _fill_block(self.candidates, self._group(tile), no_limit, block)
        edits = block[:, : len(tile)].T  # (L, n)
        return edits / self.denominators(tile)[self.size_of].T if self.normalised else edits.astype(np.float64)

    def _bits_for(self, lengths: Integers) -> Integers:
        narrowest = 16 if self.largest_numerator < 2**15 else 32
        return np.asarray(np.maximum(np.select([lengths <= 16, lengths <= 32], [16, 32], 64), narrowest))

    def _group(self, tile: Integers) -> TextGroup:
        bits = self.bits_of(tile)
        lanes, words = simd.lane_count(bits), max(1, -(-int(self.queries.lengths[tile].max()) // bits))
        kind = np.dtype(f"u{bits // 8}")
        columns = max(1, min(STORED_COLUMNS, STORED_BYTES // (512 * words), self.largest_numerator))
        state = np.empty((columns + 1, words, 2, lanes), kind)
        state[0, :, 0], state[0, :, 1] = np.iinfo(kind).max, 0
        equal = np.zeros((self.alphabet_size, words, lanes), kind)
        group = TextGroup(equal, np.zeros((words, lanes), kind), state, np.zeros(lanes, f"i{bits // 8}"))
        _fill_group(self.queries.chars, self.queries.starts, tile, group)
        return group
