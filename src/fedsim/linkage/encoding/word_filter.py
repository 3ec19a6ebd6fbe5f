"""Keyed bit filters for names and titles, in which rare words set more ones than frequent words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding.column_encodings import (
    MAX_HASHES,
    MAX_Q,
    TILE_BYTES,
    IdentifierColumn,
    StringFilter,
    normalise_text,
    pack_rows,
)
from fedsim.linkage.words import WordRules, WordTable, WordWeights, tabulate_words
from fedsim.privacy.keyed_prng import shake_words
from fedsim.types import Bits, Integers
from fedsim.validation import (
    convert_scalars,
    validate_filter_bits,
    validate_flag,
    validate_integer,
)

# A longer word sets about as many ones as a word of this many letters. Otherwise "Gesellschaft", though frequent, would
# outweigh a rare name of six letters; of 3 to 8 letters, this value found the most company names, titles and people.
FULL_LETTERS = 5
# A list of common words represents this many texts; by Zipf's law, one in r + 1 of them contains the word of rank r.
LISTED_TEXTS = 10_000
MAX_COMMON_WORDS = LISTED_TEXTS // 2 - 1  # with more words, the last would count as a word of one text
MAX_FILL = 0.5  # of the bits of a filter; beyond it filters of long texts resemble everything


@dataclass(frozen=True)
class WordFilter:
    """Filters for names and titles: the q-grams of each word, with more ones for rarer words.

    A word that occurs in one record sets ``hashes`` ones per q-gram, a word that occurs in all records only one. Every
    party counts the words of its own column, so the counts never leave it; a word that resembles a much more frequent
    one counts as a misspelling of it. Word order and punctuation do not matter. Compare such filters with Dice: by
    Hamming distance, a long text is far from every other text.

    The number of ones reveals how many words a record has and how rare they are.

    Parameters
    ----------
    q
        Letters per q-gram; the ends of every word are marked.
    hashes, bits
        Each q-gram of a rare word sets this many of the bits. 16 of 1,024 fill 13 percent of a filter of company names
        (22 letters) and 27 percent for 38 letters: :func:`choose_word_filter` chooses more bits for longer texts.
    tolerant
        Whether a misspelling of a frequent word counts as frequent.
    common_words
        Common words that the parties agree on, most frequent first, instead of counting their own: weights follow
        Zipf's law, and all other words count as rare.
    legal_forms, drop_legal_forms
        How a text is split into words; see :class:`fedsim.linkage.words.WordRules`.

    Examples
    --------
    >>> column = IdentifierColumn(["Belgor Marine Ltd", "Halver Paper Ltd", "Marine Belgor, LTD."])
    >>> bits = WordFilter().encode(column, bytes(32))
    >>> bool((bits[0] == bits[2]).all())
    True
    """

    KIND: ClassVar[str] = "words"
    CELLS: ClassVar[str] = "text"
    # Settings of earlier versions, with the values that everyone used: descriptions, and so fingerprints, have them.
    REMOVED: ClassVar[Mapping[str, Any]] = {"casefold": True, "strip_accents": True, "abbreviations": []}

    q: int = 2
    hashes: int = 16
    bits: int = 1024
    tolerant: bool = True
    common_words: tuple[str, ...] = ()
    legal_forms: tuple[str, ...] = ()
    drop_legal_forms: bool = False

    def __post_init__(self) -> None:
        convert_scalars(self)
        validate_integer(self.q, "q", least=1, most=MAX_Q)
        validate_integer(self.hashes, "hashes", least=1, most=MAX_HASHES)
        validate_filter_bits(self.bits)
        for name in ("tolerant", "drop_legal_forms"):
            validate_flag(getattr(self, name), name)
        for name in ("common_words", "legal_forms"):
            given = getattr(self, name)
            if not isinstance(given, tuple) or not all(isinstance(item, str) for item in given):
                raise SettingError(f"{name} must be a list of text", code="invalid-type", name=name)
        if len(self.common_words) > MAX_COMMON_WORDS:
            message = f"{len(self.common_words)} common_words; give at most {MAX_COMMON_WORDS}, the most frequent"
            raise SettingError(message, code="too-many-words", limit=MAX_COMMON_WORDS)
        if any(len(words) != 1 for words in self.rules.split_all(self.common_words)):
            raise SettingError("common_words must be single words", code="not-a-word", name="common_words")

    @cached_property
    def rules(self) -> WordRules:
        """How a text is split into words."""
        return WordRules(self.legal_forms, self.drop_legal_forms)

    def fit(self, column: IdentifierColumn) -> dict[str, Any]:
        """Return the word counts of a party's column, in JSON types.

        Words that occur in one text are left out, because unlisted words have the same weight. With ``common_words``
        there is nothing to count.
        """
        return self._count_words(self._tabulate(column))

    def encode(self, column: IdentifierColumn, subkey: bytes, fit: Mapping[str, Any] | None = None) -> Bits:
        """Return one packed filter per text; word weights come from ``fit``, or from this column by default."""
        return self._encode(column, [""], np.zeros(len(column), np.int64), subkey, fit)

    def encode_salted(
        self, column: IdentifierColumn, salt: IdentifierColumn, subkey: bytes, fit: Mapping[str, Any] | None = None
    ) -> Bits:
        """Return one packed filter per text; records with different salts get unrelated filters."""
        labels = [normalise_text(label) for label in salt.labels()]
        empty = np.array([not label for label in labels], np.bool_)
        salt.refuse(empty, "is empty; fill it in or drop the record", "empty-text")
        number = {label: place for place, label in enumerate(dict.fromkeys(labels))}
        salts = np.fromiter(map(number.__getitem__, labels), np.int64, len(labels))
        return self._encode(column, list(number), salts, subkey, fit)

    def ones_per_gram(self, words: Sequence[str], fit: Mapping[str, Any]) -> Integers:
        """Return how many ones each q-gram of a word sets; at least one."""
        lengths = np.fromiter(map(len, words), np.float64, len(words))
        shares = self._weights(fit).of(words) * np.minimum(1.0, FULL_LETTERS / np.maximum(1, lengths))
        return np.maximum(1, np.rint(self.hashes * shares)).astype(np.int64)

    def normal_form(self, text: str) -> str:
        """Return a normal form that is equal for all texts with equal filters: the distinct words, sorted.

        >>> WordFilter().normal_form("Marine, BELGOR")
        'belgor marine'
        """
        return " ".join(sorted(set(self.rules.split(text)))) or normalise_text(text)

    def grams(self, text: str) -> set[str]:
        """Return the distinct q-grams of the words of a text.

        >>> len(WordFilter().grams("Marine, Belgor")), len(WordFilter().grams("Belgor"))
        (14, 7)
        """
        return {gram for word in self.normal_form(text).split() for gram in StringFilter(q=self.q).grams(word)}

    def _count_words(self, table: WordTable) -> dict[str, Any]:
        if self.common_words:
            return {}
        counts = sorted(zip(table.vocabulary, table.document_counts().tolist(), strict=True))
        return {"texts": len(table.starts) - 1, "counts": {word: count for word, count in counts if count > 1}}

    def _weights(self, fit: Mapping[str, Any]) -> WordWeights:
        if self.common_words:
            words = self.rules.split_all(self.common_words)
            counts = {word: LISTED_TEXTS // (rank + 2) for rank, (word,) in reversed(list(enumerate(words)))}
            return WordWeights(counts, LISTED_TEXTS, self.tolerant)
        try:
            return WordWeights(dict(fit["counts"]), fit["texts"], self.tolerant)
        except (KeyError, TypeError, ValueError, SettingError):
            message = "the word counts are damaged or belong to another schema; train or encode again"
            raise InputError(message, code="bad-word-counts") from None

    def _tabulate(self, column: IdentifierColumn) -> WordTable:
        """Return the words of all texts; a text without letters or digits, such as "$", is one word."""
        texts = column.texts()
        table = tabulate_words(texts, self.rules)
        rows = np.flatnonzero(np.diff(table.starts) == 0)
        symbols = [normalise_text(texts[row]) for row in rows]
        empty = np.zeros(len(texts), np.bool_)
        empty[rows] = [not symbol for symbol in symbols]
        column.refuse(empty, "is empty; fill it in or drop the record", "empty-text")
        if not len(rows):
            return table
        number = {word: place for place, word in enumerate(dict.fromkeys([*table.vocabulary, *symbols]))}
        words = np.insert(table.words, table.starts[rows], [number[symbol] for symbol in symbols])
        added = np.zeros(len(texts) + 1, np.int64)
        added[rows + 1] = 1
        return WordTable(list(number), words, table.starts + np.cumsum(added))

    def _encode(
        self,
        column: IdentifierColumn,
        salts: Sequence[str],
        salt_of: Integers,
        subkey: bytes,
        fit: Mapping[str, Any] | None,
    ) -> Bits:
        """Return the union of the word filters of every text; a word has a different filter for every salt."""
        table = self._tabulate(column)
        ones = self.ones_per_gram(table.vocabulary, self._count_words(table) if fit is None else fit)
        salted = np.repeat(salt_of, np.diff(table.starts)) * len(table.vocabulary) + table.words
        filters = np.empty((len(column), self.bits // 8), np.uint8)
        step = max(1, 16 * TILE_BYTES // self.bits)
        for first in range(0, len(column), step):
            starts = table.starts[first : first + step + 1]
            distinct, position = np.unique(salted[starts[0] : starts[-1]], return_inverse=True)
            salt, word = np.divmod(distinct, len(table.vocabulary))
            # The length distinguishes salt "a" with gram "bc" from salt "ab" with gram "c".
            prefixes = [f"{len(salts[place])}:{salts[place]}" for place in salt]
            tile = self._word_filters([table.vocabulary[place] for place in word], prefixes, ones[word], subkey)
            filters[first : first + step] = _unions(tile, position, starts - starts[0])
        return filters

    def _word_filters(self, words: Sequence[str], prefixes: Sequence[str], ones: Integers, subkey: bytes) -> Bits:
        """Return one packed filter per word.

        A gram sets the first positions of its keyed stream. A word with more ones therefore includes the positions that
        other words set for the same gram, and two texts share as many of its ones as the smaller weight allows.
        """
        grams_of = StringFilter(q=self.q).grams  # the same marks at the ends
        number: dict[str, int] = {}
        grams, ends = [], []
        for word, prefix in zip(words, prefixes, strict=True):
            grams += [number.setdefault(prefix + gram, len(number)) for gram in grams_of(word)]
            ends.append(len(grams))
        # The remainder favours low positions by less than bits / 2**64.
        drawn = shake_words(subkey, (gram.encode("utf-8", "surrogatepass") for gram in number), int(ones.max()))
        positions = (drawn % np.uint64(self.bits)).astype(np.int64)
        gram, borders = np.array(grams, np.int64), np.concatenate([[0], ends])

        def tile(rows: slice) -> NDArray[np.bool_]:
            own = gram[borders[rows.start] : borders[rows.stop]]  # (grams of these words,)
            row = np.repeat(np.arange(rows.stop - rows.start), np.diff(borders[rows.start : rows.stop + 1]))
            chosen = np.arange(positions.shape[1]) < ones[rows][row, np.newaxis]  # (grams, hashes)
            bits = np.zeros((rows.stop - rows.start, self.bits), dtype=np.bool_)
            bits[np.broadcast_to(row[:, np.newaxis], chosen.shape)[chosen], positions[own][chosen]] = True
            return bits

        return pack_rows(len(words), self.bits, tile)


def _unions(word_filters: Bits, words: Integers, starts: Integers) -> Bits:
    """Return, for every text, the bits that are ones in any of its words."""
    wide = word_filters.view(np.uint64) if word_filters.shape[1] % 8 == 0 else word_filters  # faster by the word
    return np.bitwise_or.reduceat(wide[words], starts[:-1], axis=0).view(np.uint8)


def choose_word_filter(texts: Sequence[str], start: WordFilter | None = None) -> WordFilter:
    """Return ``start``, or a larger filter in which at most half of the bits are ones for 95 % of the texts.

    The larger filter has twice the bits, and fewer hashes if needed. The longest texts do not count, because a text of
    thousands of letters fills any filter.

    Parameters
    ----------
    texts
        A column, or a sample of it; texts may be missing.
    start
        The filter for short texts.

    Examples
    --------
    >>> choose_word_filter(["Belgor Marine Ltd"] * 3 + ["Halver Paper"]).bits
    1024
    """
    start = start or WordFilter()
    filled = [text for text in texts if text and text.strip()]
    if not filled:
        return start
    ones = np.bitwise_count(start.encode(IdentifierColumn(filled), bytes(32))).sum(axis=1)
    fill = min(float(np.quantile(ones, 0.95)) / start.bits, 1 - 1 / start.bits)
    # k random positions fill 1 - exp(-k / bits) of a filter.
    if fill <= MAX_FILL:
        return start
    draws = -start.bits * np.log1p(-fill)
    bits = 2 * start.bits
    hashes = int(start.hashes * min(1.0, -bits * np.log1p(-MAX_FILL) / draws))
    return replace(start, bits=bits, hashes=max(1, hashes))
