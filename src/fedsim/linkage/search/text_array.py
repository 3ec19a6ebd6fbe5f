"""Strings as arrays of numbers."""

import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.types import Integers


class TextArray(NamedTuple):
    """Strings as one array of code points and the positions where each begins."""

    chars: NDArray[np.uint32]
    starts: Integers

    @property
    def lengths(self) -> Integers:
        return np.diff(self.starts)


def to_text_array(strings: list[str]) -> TextArray:
    """Convert Unicode strings to one number per code point.

    >>> to_text_array(["né", ""]).lengths.tolist()
    [2, 0]
    """
    chars = np.frombuffer("".join(strings).encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    return TextArray(chars, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))


def number_characters(queries: TextArray, candidates: TextArray) -> tuple[TextArray, TextArray, int]:
    """Return both with characters numbered by the candidates' alphabet, and the size of that alphabet.

    Characters that occur only in queries get the number after the last.

    >>> queries, candidates, size = number_characters(to_text_array(["bx"]), to_text_array(["ab"]))
    >>> queries.chars.tolist(), candidates.chars.tolist(), size
    ([1, 2], [0, 1], 2)
    """
    present = np.zeros(sys.maxunicode + 1, bool)
    present[candidates.chars] = True
    size = int(present.sum())
    number_of = np.full(len(present), size, np.uint32)
    number_of[present] = np.arange(size, dtype=np.uint32)
    return (
        queries._replace(chars=number_of[queries.chars]),
        candidates._replace(chars=number_of[candidates.chars]),
        size,
    )
