"""Values that occur nowhere by chance, and a search for them in whatever encoding.

The numbers are floats of the form 5e mm mm 71 (bytes): 2.3e18 to 9.2e18, far from any weight, activation or count, in
both orders of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np

WORD = "kanarie"
LENGTH = 12  # characters of a number that are enough to know it by


@dataclass
class Canaries:
    """The values planted at one party."""

    rng: np.random.Generator
    numbers: list[float] = field(default_factory=list)
    wholes: list[int] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers) + len(self.wholes) + len(self.words)

    def draw_numbers(self, count: int) -> list[float]:
        middle = self.rng.choice(1 << 16, count, replace=False).astype(np.uint32)
        found = (0x5E000071 + (middle << 8)).astype(np.uint32).view(np.float32).astype(np.float64).tolist()
        self.numbers += found
        return found

    def draw_wholes(self, count: int) -> list[int]:
        found = self.rng.integers(2 * 10**15, 9 * 10**15, count).tolist()
        self.wholes += found
        return found

    def draw_words(self, count: int) -> list[str]:
        found = [f"{WORD}{self.rng.integers(10**9)}" for _ in range(count)]
        self.words += found
        return found

    def in_bytes(self, content: bytes) -> set[str]:
        """The ways in which any of them occurs."""
        texts, eights, fours = _patterns(tuple(self.numbers), tuple(self.wholes))
        checks = {
            "a word": WORD.encode() in content.lower() and any(word.encode() in content.lower() for word in self.words),
            "a number as text": not texts.isdisjoint(_tokens(content)),
            "eight bytes": _has(content, eights, range(8)),
            "four bytes": _has(content, fours, [0]),
        }
        return {how for how, found in checks.items() if found}


@cache
def _patterns(numbers: tuple[float, ...], wholes: tuple[int, ...]) -> tuple[set[bytes], np.ndarray, np.ndarray]:
    """These values as text and in eight and four bytes of either order, sorted."""
    texts = {str(value)[:LENGTH].encode() for value in (*numbers, *wholes)}
    doubles, singles = np.array([*numbers, *wholes], np.float64), np.array(numbers, np.float32)
    eights = np.concatenate([doubles.view(np.uint64), np.array(wholes, np.int64).view(np.uint64)])
    fours = singles.view(np.uint32)
    return texts, *(np.sort(np.concatenate([words, words.byteswap()])) for words in (eights, fours))


def _tokens(content: bytes) -> Iterator[bytes]:
    for token in re.findall(rb"[0-9.]{%d,}" % LENGTH, content):
        for start in range(len(token) - LENGTH + 1):
            yield token[start : start + LENGTH]


def _has(content: bytes, patterns: np.ndarray, starts: Iterable[int]) -> bool:
    """Whether any of the sorted patterns stands in the bytes, at a multiple of their size after any of the starts."""
    for start in starts:
        count = (len(content) - start) // patterns.itemsize
        if count > 0:
            words = np.frombuffer(content, patterns.dtype, count, start)
            if (patterns[np.searchsorted(patterns[:-1], words)] == words).any():
                return True
    return False
