"""FEDERAL filters of text: keyed random hashing of q-grams (paper, appendix "Additional Background").

Every position of a q-gram is drawn anew from a keyed stream. Double hashing, ``(h1 + i * h2) mod bits``, is cheaper,
but leaves a q-gram only ``bits`` squared possible patterns, and those "atoms" can be told apart and read back
(Kroll and Steinmetzer 2015).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.linkage.encoding.checks import check_bits, check_flag, check_real, check_whole, settle
from fedsim.linkage.encoding.columns import Column
from fedsim.linkage.encoding.stream import words
from fedsim.linkage.encoding.tiles import pack_rows
from fedsim.types import Bits

# Lone surrogates: no valid text holds them, so no text can pass for a padded one.
_START, _END = "\ud800", "\udfff"
MAX_GRAM = 8
MAX_HASHES = 1024


@dataclass(frozen=True)
class StringFilter:
    """Filters of text by its set of ``q``-grams, each setting ``hashes`` of ``bits`` positions.

    ``padded`` marks both ends, so that first and last letters count as much as others; ``normalised`` compares texts
    as :func:`normalise` leaves them. 20 hashes into 1,024 bits fill a third of a filter of game titles (22 letters):
    fewer find fewer of the nearest titles, more crowd longer ones.
    """

    KIND: ClassVar[str] = "string"

    q: int = 2
    hashes: int = 20
    bits: int = 1024
    padded: bool = True
    normalised: bool = True

    def __post_init__(self) -> None:
        settle(self)
        check_whole("q", self.q, low=1, high=MAX_GRAM)
        check_whole("hashes", self.hashes, low=1, high=MAX_HASHES)
        check_bits(self.bits)
        check_flag("padded", self.padded)
        check_flag("normalised", self.normalised)

    @classmethod
    def sized(
        cls, *, edit_distance: int, hashes: int, collision: float, delta: float, mean_grams: float, q: int = 2
    ) -> StringFilter:
        """The filter with the size of the paper's code, rounded up to whole bytes.

        Sized so that texts ``edit_distance`` apart, of ``mean_grams`` q-grams on average, exceed the ``collision``
        rate with probability below ``delta``.
        """
        code = cls(q=q, hashes=hashes)
        check_whole("edit_distance", edit_distance, low=1, high=1 << 16)
        check_real("collision", collision, above=0, below=1)
        check_real("delta", delta, above=1e-9, below=1)
        check_real("mean_grams", mean_grams, above=0, below=1e9)
        tolerated = math.ceil(4 * edit_distance * hashes * collision) + 1
        bits = math.ceil(2 * edit_distance * hashes * mean_grams / (tolerated * delta))
        return replace(code, bits=bits + -bits % 8)

    def grams(self, text: str) -> set[str]:
        """The distinct q-grams of a text; a text too short to have one is its own.

        >>> sorted(StringFilter(q=2, padded=False).grams("anna"))
        ['an', 'na', 'nn']
        """
        if self.padded:
            text = _START * (self.q - 1) + text + _END * (self.q - 1)
        return {text[start : start + self.q] for start in range(max(1, len(text) - self.q + 1))}

    def encode(self, column: Column, subkey: bytes) -> Bits:
        """One packed filter per text."""
        return self._encode(self._prepared(column, column.texts()), [""] * len(column), subkey)

    def encode_salted(self, column: Column, salt: Column, subkey: bytes) -> Bits:
        """One packed filter per text whose hashes depend on the record's salt.

        Records with different salts get unrelated filters, however alike their texts are.
        """
        return self._encode(self._prepared(column, column.texts()), self._prepared(salt, salt.labels()), subkey)

    def _prepared(self, column: Column, texts: list[str]) -> list[str]:
        prepared = [normalise(text) for text in texts] if self.normalised else texts
        for row, text in enumerate(prepared):
            if not text:
                raise column.fault(row, "the text is empty; fill it in or leave the record out")
            if not _is_unicode(text):
                raise column.fault(row, "the text is no valid Unicode; read the table with its right encoding")
        return prepared

    def _encode(self, texts: Sequence[str], salts: Sequence[str], subkey: bytes) -> Bits:
        return pack_rows(len(texts), self.bits, lambda rows: self._tile(texts[rows], salts[rows], subkey))

    def _tile(self, texts: Sequence[str], salts: Sequence[str], subkey: bytes) -> NDArray[np.bool_]:
        number: dict[str, int] = {}
        occurrences: list[int] = []
        ends: list[int] = []
        for text, salt in zip(texts, salts, strict=True):
            # The length in front keeps salt "a" with gram "bc" apart from salt "ab" with gram "c".
            prefix = f"{len(salt)}:{salt}"
            occurrences += [number.setdefault(prefix + gram, len(number)) for gram in self.grams(text)]
            ends.append(len(occurrences))
        # The remainder favours low positions by less than bits / 2**64.
        drawn = words(subkey, (token.encode("utf-8", "surrogatepass") for token in number), self.hashes)
        positions = (drawn % np.uint64(self.bits)).astype(np.int64)
        row = np.repeat(np.arange(len(texts)), np.diff(ends, prepend=0))
        tile = np.zeros(len(texts) * self.bits, dtype=np.bool_)
        tile[(row * self.bits)[:, np.newaxis] + positions[occurrences]] = True
        return tile.reshape(len(texts), self.bits)


def normalise(text: str) -> str:
    """Text with compatibility forms, letter case and runs of white space made alike (NFKC, case folding).

    >>> normalise("  Straße\\u00a0 No. ② ")
    'strasse no. 2'
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
