"""Kinds of tokens: how the cells of an identifier become hashes that similar cells have in common.

Both parties turn their own records into tokens; what a record shares with a row is their similarity. A kind is public
and fixed: it holds no secret, nothing in it depends on either table, and integers alone decide, so that every machine
computes the same tokens. In the margins, T is the number of tokens and S that of tokens that records share with rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import ClassVar, Protocol

import numpy as np

from fedsim.linkage.encoding.column_encodings import IdentifierColumn
from fedsim.linkage.words import LEGAL_FORMS, WordRules
from fedsim.privacy.geodesy import EARTH_RADIUS, great_circle_metres
from fedsim.types import AnyArray, Bits, Flags, Floats, Integers, Words
from fedsim.validation import convert_scalars, validate_integer, validate_number

METRES_PER_DEGREE = np.pi / 180 * EARTH_RADIUS
MIN_COSINE = 0.01  # bands at the poles
MAX_CELL = 2.0**40
TEXTS_AT_ONCE = 20_000
ALONE, NO_SHARE = 0, -1  # the share of a token that opens a row by itself, and of one that does not help to open it


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of many records, in order of the records.

    ``record`` (T,) is the row of each token, ``token`` (T,) its hash, ``part`` (T,) the part of the kind that it
    belongs to. Tokens of a record with the same ``share`` (T,) count once towards opening it; one that is
    :data:`ALONE` is enough. ``hint`` (T,) is the finest cell of the record, for a party that opens
    it, or 0.
    """

    record: Integers
    token: Words
    part: Bits
    share: AnyArray
    hint: Integers

    def take(self, chosen: Flags | Integers | slice) -> Tokens:
        """Return some of the tokens."""
        record, token, part = self.record[chosen], self.token[chosen], self.part[chosen]
        return Tokens(record, token, part, self.share[chosen], self.hint[chosen])


@dataclass(frozen=True, eq=False)
class SharedTokens:
    """What the tokens of records have in common with a table of ``rows`` rows.

    ``pair`` (S,) numbers pairs of record and row from 0, ``part`` (S,) is the token's part, ``length`` (S,) the number
    of rows in its list. ``record`` and ``hint`` have one value per pair, ``own`` are all tokens of the records, and
    ``columns`` their cells.
    """

    pair: Integers
    part: Bits
    length: Integers
    record: Integers
    hint: Integers
    own: Tokens
    columns: Sequence[IdentifierColumn]
    rows: int


class TokenKind(Protocol):
    """One kind of identifier, which reads ``COLUMNS`` columns of cells of type ``CELLS``.

    ``RIVALS`` says whether a row that resembles many records counts less for each of them. ``OPENS`` says what a record
    and a row must have in common for the record to open the row. The tokens of a row are nested cells, narrowest first,
    if the kind is ``NESTED``: then rows may be grouped by them.
    """

    KIND: ClassVar[str]
    CELLS: ClassVar[str]
    COLUMNS: ClassVar[int]
    RIVALS: ClassVar[bool]
    OPENS: ClassVar[str]
    NESTED: ClassVar[bool]

    @property
    def cap(self) -> int:
        """Tokens of more rows than this are not listed; the whole of a text may have more."""
        ...

    @property
    def shown(self) -> str:
        """How precisely an opened row shows its cell; empty if it shows only what it has in common with a record."""
        ...

    @property
    def most(self) -> tuple[int, int]:
        """The most tokens by which a record looks for rows, and under which a row is listed."""
        ...

    def row_tokens(self, columns: Sequence[IdentifierColumn]) -> Tokens:
        """Return the tokens under which rows are listed."""
        ...

    def query_tokens(self, columns: Sequence[IdentifierColumn]) -> Tokens:
        """Return the tokens by which records look for rows."""
        ...

    def listed(self, tokens: Tokens, length: Integers) -> Flags:
        """Return which tokens of rows are listed, given the lengths of their lists, (T,)."""
        ...

    def middle(self, hint: Integers, level: Integers) -> Integers:
        """Return the finest cell in the middle of the cells of these levels around finest cells, (n,)."""
        ...

    def similarity(self, shared: SharedTokens) -> Floats:
        """Return the similarity of every pair, between 0 and 1."""
        ...


def mix(*parts: AnyArray | int) -> Words:
    """Return 64-bit hashes of arrays of integers, element by element (finaliser of splitmix64).

    >>> bool(mix(1, 2) == mix(2, 1))
    False
    """
    state = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            state = (state ^ np.asarray(part).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def hash_texts(texts: Iterable[str]) -> Words:
    """Return 64-bit hashes of texts.

    Nothing rests on their resistance to collisions: a collision is one false common token, a deviating party may send
    any token anyway, and among 100 million tokens the chance that any two are equal is 0.03 %.
    """
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def distinct(values: AnyArray) -> AnyArray:
    """Return distinct values, ascending: ``numpy.unique``, which takes ten times as long for millions of integers.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered: AnyArray = np.sort(values)
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]])


def _tokens_of_texts(texts: list[str], tokens_of: Callable[[str], tuple[Words, Bits, AnyArray]]) -> Tokens:
    """Return the tokens of all texts, some texts at a time, because there are more than a hundred of each."""
    starts = range(0, max(1, len(texts)), TEXTS_AT_ONCE)
    parts = [_tokens_of_some(texts[start : start + TEXTS_AT_ONCE], tokens_of) for start in starts]
    columns, arrays = [list(arrays) for arrays in zip(*parts, strict=True)], []
    parts.clear()
    for column in columns:
        arrays.append(np.concatenate(column))
        column.clear()
    counts, token, part, share = arrays
    record, hint = np.repeat(np.arange(len(texts)), counts), np.broadcast_to(np.int64(0), token.shape)
    return Tokens(record, token, part, share, hint)


def _tokens_of_some(
    texts: list[str], tokens_of: Callable[[str], tuple[Words, Bits, AnyArray]]
) -> tuple[Integers, Words, Bits, AnyArray]:
    """Return the number of tokens of every text, and the tokens of all; equal texts are worked on once."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    found = [tokens_of(text) for text in numbers]
    which = np.array([numbers[text] for text in texts], np.int64)
    lengths = np.array([len(token) for token, _, _ in found], np.int64)
    counts, starts = lengths[which], (np.cumsum(lengths) - lengths)[which]
    place = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    token, part, share = (np.concatenate(arrays)[place] for arrays in zip(*(found or [tokens_of("")]), strict=True))
    return counts, token, part, share


# Text

SAMPLED, JOINED, DELETED, WHOLE = range(4)  # the parts of a text's tokens
SAMPLES_PER_VOTE = 20  # a word or a whole name counts as many samples as one in this many
WHOLE_CAP = 50
MIN_DELETION, DELETION_WORDS = 5, 2  # letters of a word in which a typing error is looked for; words per text


@dataclass(frozen=True)
class TextTokens:
    """Names and titles: what similar texts with typing errors, missing and reordered words have in common.

    A text has tokens of four parts: pairs of consistent samples (min-hashes) of its words and their 3-grams; its words,
    and neighbouring words written as one; its two longest words, also with any one letter left out; and the whole
    text, its words sorted. All legal forms are shortened first. Tokens of one word are one share of a row's key, also
    in another field, so a single common word opens nothing; the whole text opens the row by itself. A row of one word
    opens with this word, also with a letter left out, or with two of its features.

    Parameters
    ----------
    samples
        Pairs of samples; more find more and cost more.
    words
        At most this many words and joined words.
    deletions
        At most this many words with a letter left out.
    cap
        Tokens of more rows than this are left out of the table (of more than 50, for the whole text).

    Examples
    --------
    >>> kind = TextTokens()
    >>> names = [IdentifierColumn(["Belgor Marine Ltd", "Marine Belgor Limited"], "name")]
    >>> found = kind.row_tokens(names)
    >>> bool(found.token[found.part == WHOLE][0] == found.token[found.part == WHOLE][1])
    True
    """

    KIND: ClassVar[str] = "text"
    CELLS: ClassVar[str] = "text"
    COLUMNS: ClassVar[int] = 1
    RIVALS: ClassVar[bool] = True
    OPENS: ClassVar[str] = "two words, or two parts of a single word,"
    NESTED: ClassVar[bool] = False
    shown: ClassVar[str] = ""

    samples: int = 80
    words: int = 24
    deletions: int = 23
    cap: int = 5

    @property
    def most(self) -> tuple[int, int]:
        tokens = self.samples + self.words + self.deletions + 1
        return tokens, tokens

    def __post_init__(self) -> None:
        convert_scalars(self)
        for name in ("samples", "words", "deletions", "cap"):
            validate_integer(getattr(self, name), name, least=1, most=1000)

    def row_tokens(self, columns: Sequence[IdentifierColumn]) -> Tokens:
        return _tokens_of_texts(columns[0].texts(), self._tokens_of)

    query_tokens = row_tokens

    def listed(self, tokens: Tokens, length: Integers) -> Flags:
        return np.asarray(length <= np.where(tokens.part == WHOLE, WHOLE_CAP, self.cap))

    def middle(self, hint: Integers, level: Integers) -> Integers:
        return hint

    def similarity(self, shared: SharedTokens) -> Floats:
        vote, pairs = self.samples / SAMPLES_PER_VOTE, len(shared.record)
        rarity = np.log((1 + shared.rows) / shared.length)
        deleted = shared.part == DELETED
        weight = np.where(shared.part == SAMPLED, 1.0, vote)
        score = np.bincount(shared.pair[~deleted], (weight * rarity)[~deleted], pairs).astype(np.float64)
        total, count = (np.bincount(shared.pair[deleted], of, pairs) for of in (rarity[deleted], None))
        score = score + vote * total / np.maximum(count, 1)
        own = shared.own
        worth = np.where(own.part == SAMPLED, 1.0, np.where(own.part == DELETED, 0.0, vote))
        most = np.bincount(own.record, worth).astype(np.float64)  # of no token: integers
        most[own.record[own.part == DELETED]] += vote  # once: an assignment, not a sum
        return np.asarray(score / (most[shared.record] * np.log(1 + shared.rows)))

    def _tokens_of(self, text: str) -> tuple[Words, Bits, AnyArray]:
        sequence = _RULES.split(text)
        words = list(dict.fromkeys(sequence))
        if not words:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.int64)
        shares: dict[frozenset[str], int] = {}

        def share(*of: str) -> int:
            """Return the share that all tokens of a word, or of a pair of words, have in common in every field."""
            words = frozenset(of)
            if words not in shares:
                digest = hashlib.blake2b("\0".join(sorted(words)).encode(), digest_size=7).digest()
                shares[words] = 1 + int.from_bytes(digest)
            return shares[words]

        joined = {left + right: share(left, right) for left, right in pairwise(sequence)}
        joined |= {word: share(word) for word in words}
        long = sorted((word for word in words if len(word) >= MIN_DELETION and word.isalpha()), key=_by_length)
        cut = {word: dict.fromkeys([word, *(word[:at] + word[at + 1 :] for at in range(len(word)))]) for word in long}
        times = Counter(chain.from_iterable(cut.values()))
        deleted = {
            part: share(word) if times[part] == 1 else NO_SHARE for word in long[:DELETION_WORDS] for part in cut[word]
        }
        sampled, origins = self._samples(words)
        joined, deleted = (dict(list(of.items())[:n]) for of, n in ((joined, self.words), (deleted, self.deletions)))
        parts = (
            sampled,
            mix(JOINED, hash_texts(joined)),
            mix(DELETED, hash_texts(deleted)),
            mix(WHOLE, hash_texts([" ".join(sorted(sequence))])),
        )
        sampled_shares = []
        for left, right in origins:
            both = left & right  # what one word has by itself must not be two shares
            names = (*both,) if both else (min(left), min(right))
            sampled_shares.append(NO_SHARE if len(both) > 1 else share(*names))
        numbers = np.array([*sampled_shares, *joined.values(), *deleted.values(), ALONE], np.int64)
        part = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(tokens) for tokens in parts])
        return np.concatenate(parts), part, numbers if len(words) > 1 else np.where(part == SAMPLED, numbers, ALONE)

    def _samples(self, words: list[str]) -> tuple[Words, list[tuple[set[str], set[str]]]]:
        """Return the tokens of sampled pairs, and the words in which both features of each pair occur.

        The features of a single word stand for themselves, so that one of them alone does not open a row.
        """
        origin: dict[str, set[str]] = defaultdict(set)
        for word in words:
            padded = f" {word} "
            for feature in (*(padded[at : at + 3] for at in range(len(word))), f"word {word}"):
                origin[feature].add(word)
        features = hash_texts(origin)
        origins = list(origin.values()) if len(words) > 1 else [{feature} for feature in origin]
        chosen = mix(features[:, np.newaxis], np.arange(2 * self.samples)).argmin(axis=0).reshape(-1, 2)
        tokens = mix(SAMPLED, np.arange(self.samples), *features[chosen].T)
        return tokens, [(origins[left], origins[right]) for left, right in chosen.tolist()]


_RULES = WordRules(legal_forms=tuple(LEGAL_FORMS))


def _by_length(word: str) -> tuple[int, str]:
    return -len(word), word


@dataclass(frozen=True)
class CodeTokens:
    """Codes and other values that are equal or not; a row opens with this one token.

    Parameters
    ----------
    cap
        Values of more rows than this are left out of the table.

    Examples
    --------
    >>> CodeTokens().row_tokens([IdentifierColumn(["DE1", "DE1"], "code")]).record.tolist()
    [0, 1]
    """

    KIND: ClassVar[str] = "code"
    CELLS: ClassVar[str] = "key"
    COLUMNS: ClassVar[int] = 1
    RIVALS: ClassVar[bool] = False
    OPENS: ClassVar[str] = "the value"
    NESTED: ClassVar[bool] = True
    shown: ClassVar[str] = ""
    most: ClassVar[tuple[int, int]] = (1, 1)

    cap: int = 50

    def __post_init__(self) -> None:
        convert_scalars(self)
        validate_integer(self.cap, "cap", least=1)

    def row_tokens(self, columns: Sequence[IdentifierColumn]) -> Tokens:
        token = hash_texts(columns[0].labels())
        zeros = np.zeros(len(token), np.int64)
        return Tokens(np.arange(len(token)), token, zeros.astype(np.uint8), zeros + ALONE, zeros)

    query_tokens = row_tokens

    def listed(self, tokens: Tokens, length: Integers) -> Flags:
        return np.asarray(length <= self.cap)

    def middle(self, hint: Integers, level: Integers) -> Integers:
        return hint

    def similarity(self, shared: SharedTokens) -> Floats:
        return np.ones(len(shared.record))


# Numbers, dates and places: cells of grids, each twice as wide as the one before


def _near_cells(position: Floats, width: float, reach: int) -> Integers:
    """Return the numbers of the nearest cells of an axis, (n, 2 * reach): ``reach`` on either side."""
    nearest_edge = np.floor(position / width + 0.5).astype(np.int64)
    return np.asarray(nearest_edge[:, np.newaxis] + np.arange(-reach, reach))


def _grid_tokens(cells: Sequence[tuple[Integers, ...]], narrowest: int, hint: Integers) -> Tokens:
    """Return a token for every cell of every level, narrowest first; each axis has the shape (n, cells)."""
    n, levels = len(hint), list(enumerate(cells, narrowest))
    token = np.concatenate([mix(level, *axes) for level, axes in levels], axis=1)
    part = np.concatenate([np.full(axes[0].shape, level, np.uint8) for level, axes in levels], axis=1)
    record = np.repeat(np.arange(n), token.shape[1])
    share = np.full(len(record), ALONE, np.int64)
    return Tokens(record, token.ravel(), part.ravel(), share, np.repeat(hint, token.shape[1]))


def _middle_cells(finest: Integers, level: Integers) -> Integers:
    """Return the finest cells right of the middle of cells of some levels; a finest cell is its own middle."""
    return np.asarray((finest >> level << level) + (1 << level >> 1))


def _leaves(tokens: Tokens, length: Integers, cap: int) -> Flags:
    """Return which token of each row is that of its widest cell within the cap: a leaf of an adaptive grid."""
    level = np.where(length <= cap, tokens.part.astype(np.int64), -1)
    widest = np.full(int(tokens.record.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(widest, tokens.record, level)
    return np.asarray((level >= 0) & (level == widest[tokens.record]))


def _validate_grid(width: object, levels: int, narrowest: int, cap: int, reach: int, scale: object) -> None:
    validate_number(width, "width", above=0)
    validate_integer(levels, "levels", least=1, most=32)
    validate_integer(narrowest, "narrowest", least=0, most=levels - 1)
    validate_integer(cap, "cap", least=1)
    validate_integer(reach, "reach", least=1, most=8)
    validate_number(scale, "scale", above=0)


@dataclass(frozen=True)
class NumberTokens:
    """Numbers by bins of several widths.

    A row is listed once, under its widest bin of at most ``cap`` rows. It shows its finest bin to a party
    that opens it, and its distance is that of the record's number from the middle of this bin.

    Parameters
    ----------
    width
        Of the finest bin: no number is shown more precisely.
    levels
        How many widths there are, each twice the one before.
    narrowest
        The first of these widths in which rows are listed and records look for them, counted from 0, the finest: wider
        bins cost fewer tokens.
    cap
        A bin of more rows is left to narrower bins; a row whose narrowest one has more is not listed.
    reach
        Records look into this many bins on either side, at every width.
    scale
        The distance at which numbers have similarity 1/2, in widths of the finest bin.

    Examples
    --------
    >>> NumberTokens(width=5).row_tokens([IdentifierColumn([36.5], "age")]).hint[0]
    np.int64(7)
    """

    KIND: ClassVar[str] = "number"
    CELLS: ClassVar[str] = "number"
    COLUMNS: ClassVar[int] = 1
    RIVALS: ClassVar[bool] = False
    OPENS: ClassVar[str] = "a bin"
    NESTED: ClassVar[bool] = True

    width: float
    levels: int = 16
    narrowest: int = 0
    cap: int = 64
    reach: int = 2
    scale: float = 8.0

    def __post_init__(self) -> None:
        convert_scalars(self)
        _validate_grid(self.width, self.levels, self.narrowest, self.cap, self.reach, self.scale)

    @property
    def shown(self) -> str:
        return f"to {self.width:g}"

    @property
    def most(self) -> tuple[int, int]:
        return (self.levels - self.narrowest) * 2 * self.reach, 1

    def row_tokens(self, columns: Sequence[IdentifierColumn]) -> Tokens:
        finest = np.floor(self._positions(columns) / self.width).astype(np.int64)
        return _grid_tokens(
            [(finest[:, np.newaxis] >> level,) for level in range(self.narrowest, self.levels)], self.narrowest, finest
        )

    def query_tokens(self, columns: Sequence[IdentifierColumn]) -> Tokens:
        at = self._positions(columns)
        near = [(_near_cells(at, self.width * 2.0**level, self.reach),) for level in range(self.narrowest, self.levels)]
        return _grid_tokens(near, self.narrowest, np.zeros(len(at), np.int64))

    def listed(self, tokens: Tokens, length: Integers) -> Flags:
        return _leaves(tokens, length, self.cap)

    def middle(self, hint: Integers, level: Integers) -> Integers:
        return _middle_cells(hint, level)

    def similarity(self, shared: SharedTokens) -> Floats:
        middle = (shared.hint + 0.5) * self.width
        distance = np.abs(self._positions(shared.columns)[shared.record] - middle) / self.width
        return np.asarray(self.scale / (self.scale + distance))

    def _positions(self, columns: Sequence[IdentifierColumn]) -> Floats:
        numbers: Floats = columns[0].days() if self.CELLS == "date" else columns[0].numbers()
        columns[0].refuse(
            np.abs(numbers) > self.width * MAX_CELL, "is too large for bins of this width", "outside-range"
        )
        return numbers


@dataclass(frozen=True)
class DateTokens(NumberTokens):
    """Dates by bins of several widths in days; see :class:`NumberTokens`.

    Examples
    --------
    >>> from datetime import date
    >>> DateTokens().row_tokens([IdentifierColumn([date(1970, 1, 3)], "born")]).hint[0]
    np.int64(2)
    """

    KIND: ClassVar[str] = "date"
    CELLS: ClassVar[str] = "date"

    width: float = 1.0

    @property
    def shown(self) -> str:
        return f"to {self.width:g} days"


@dataclass(frozen=True)
class PlaceTokens:
    """Places by cells of several widths, from latitude and longitude in degrees; see :class:`NumberTokens`.

    The widest cells divide the globe into bands of latitude; within a band, cells are squares. Cells on both sides of
    the 180th meridian are not neighbours.

    Parameters
    ----------
    metres
        Width of the finest cell: no place is shown more precisely.
    levels, narrowest, cap, reach
        As for :class:`NumberTokens`.
    scale
        The distance at which places have similarity 1/2, in widths of the finest cell.

    Examples
    --------
    >>> here = [IdentifierColumn([1.3], "latitude"), IdentifierColumn([103.8], "longitude")]
    >>> kind = PlaceTokens(metres=100, levels=4)
    >>> len(kind.row_tokens(here).token), len(kind.query_tokens(here).token)
    (4, 64)
    """

    KIND: ClassVar[str] = "place"
    CELLS: ClassVar[str] = "number"
    COLUMNS: ClassVar[int] = 2
    RIVALS: ClassVar[bool] = False
    OPENS: ClassVar[str] = "a cell"
    NESTED: ClassVar[bool] = True

    metres: float = 100.0
    levels: int = 10
    narrowest: int = 0
    cap: int = 64
    reach: int = 2
    scale: float = 8.0

    def __post_init__(self) -> None:
        convert_scalars(self)
        _validate_grid(self.metres, self.levels, self.narrowest, self.cap, self.reach, self.scale)
        validate_number(self.metres, "metres", least=0.1)

    @property
    def shown(self) -> str:
        return f"to {self.metres:g} metres"

    @property
    def most(self) -> tuple[int, int]:
        return (self.levels - self.narrowest) * (2 * self.reach) ** 2, 1

    def row_tokens(self, columns: Sequence[IdentifierColumn]) -> Tokens:
        places = _places(columns)
        north = np.floor(places[:, 0] * METRES_PER_DEGREE / self.metres).astype(np.int64)
        east = np.floor(self._east(places[:, 1], north, 0) / self.metres).astype(np.int64)
        cells = [
            (north[:, np.newaxis] >> level, east[:, np.newaxis] >> level)
            for level in range(self.narrowest, self.levels)
        ]
        return _grid_tokens(cells, self.narrowest, (north << 32) | (east & 0xFFFFFFFF))

    def query_tokens(self, columns: Sequence[IdentifierColumn]) -> Tokens:
        places, cells = _places(columns), []
        for level in range(self.narrowest, self.levels):
            width = self.metres * 2.0**level
            north = _near_cells(places[:, 0] * METRES_PER_DEGREE, width, self.reach)  # (n, 2 reach)
            side = north.shape[1]
            north = np.repeat(north, side, axis=1)  # every band has columns of its own
            east = self._east(places[:, 1, np.newaxis], north, level)  # (n, side ** 2)
            offsets = np.tile(np.arange(-self.reach, self.reach), side)
            cells.append((north, np.floor(east / width + 0.5).astype(np.int64) + offsets))
        return _grid_tokens(cells, self.narrowest, np.zeros(len(places), np.int64))

    def listed(self, tokens: Tokens, length: Integers) -> Flags:
        return _leaves(tokens, length, self.cap)

    def middle(self, hint: Integers, level: Integers) -> Integers:
        north, east = (_middle_cells(axis, level) for axis in (hint >> 32, hint.astype(np.int32).astype(np.int64)))
        return (north << 32) | (east & 0xFFFFFFFF)

    def similarity(self, shared: SharedTokens) -> Floats:
        distance = great_circle_metres(_places(shared.columns)[shared.record], self.middles(shared.hint)) / self.metres
        return np.asarray(self.scale / (self.scale + distance))

    def middles(self, hint: Integers) -> Floats:
        """Return latitude and longitude of the middle of the finest cell that rows show, (n,) -> (n, 2)."""
        north, east = hint >> 32, hint.astype(np.int32).astype(np.int64)
        latitude = (north + 0.5) * self.metres / METRES_PER_DEGREE
        longitude = (east + 0.5) * self.metres / self._east(np.ones(len(north)), north, 0)
        return np.column_stack([np.clip(latitude, -90.0, 90.0), np.clip(longitude, -180.0, 180.0)])

    def _east(self, longitude: Floats, north: Integers, level: int) -> Floats:
        """Return metres east of the prime meridian, measured along the middle of the cell's band."""
        band = north >> (self.levels - 1 - level)
        middle = (band + 0.5) * self.metres * 2.0 ** (self.levels - 1) / METRES_PER_DEGREE
        return np.asarray(longitude * METRES_PER_DEGREE * np.maximum(np.cos(np.radians(middle)), MIN_COSINE))


def _places(columns: Sequence[IdentifierColumn]) -> Floats:
    degrees = []
    for column, limit in zip(columns, (90, 180), strict=True):
        values = column.numbers()
        rule = f"is outside -{limit} to {limit} degrees; correct it, or swap latitude and longitude"
        column.refuse(np.abs(values) > limit, rule, "outside-range")
        degrees.append(values)
    return np.column_stack(degrees)
