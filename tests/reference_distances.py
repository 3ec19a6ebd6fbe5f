"""Slow, obvious distances between two identifiers, written from their definitions alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from fedsim.linkage.words import WordRules, WordWeights, tabulate_words


def euclidean(left: Any, right: Any) -> float:
    total = 0.0
    for here, there in zip(left, right, strict=True):
        total += (here - there) * (here - there)
    return math.sqrt(total)


def great_circle(left: Any, right: Any) -> float:
    (north, east), (other_north, other_east) = (map(math.radians, place) for place in (left, right))
    up, across = math.sin((other_north - north) / 2), math.sin((other_east - east) / 2)
    return 2 * 6_371_008.8 * math.asin(math.sqrt(up**2 + math.cos(north) * math.cos(other_north) * across**2))


def levenshtein(left: str, right: str) -> int:
    row = list(range(len(right) + 1))
    for i, here in enumerate(left, 1):
        previous, row[0] = row[0], i
        for j, there in enumerate(right, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (here != there))
    return row[-1]


def normalised_levenshtein(left: str, right: str) -> float:
    longer = max(len(left), len(right))
    return levenshtein(left, right) / longer if longer else 0.0


def _grams(word: str, q: int) -> list[str]:
    marked = f"\t{word}\t"
    return [marked[start : start + q] for start in range(len(marked) - q + 1)]


def qgram_dice(candidates: list[str], q: int = 2) -> Callable[[str, str], float]:
    """Weighted Dice distance with the words of these candidates."""
    weights = WordWeights.fit(tabulate_words(candidates, WordRules()))

    def vector(text: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for word in WordRules().split(text):
            weight = max(1, round(100 * float(weights.of([word])[0])))
            for gram in _grams(word, q):
                total[gram] += weight
        return total

    def distance(left: str, right: str) -> float:
        ours, theirs = vector(left), vector(right)
        total = sum(ours.values()) + sum(theirs.values())
        return (total - 2 * sum((ours & theirs).values())) / total if total else 0.0

    return distance


def hamming(left: Any, right: Any) -> int:
    return sum(int(here ^ there).bit_count() for here, there in zip(left.tolist(), right.tolist(), strict=True))


def dice(left: Any, right: Any) -> float:
    ones = sum(int(byte).bit_count() for byte in [*left.tolist(), *right.tolist()])
    common = sum(int(here & there).bit_count() for here, there in zip(left.tolist(), right.tolist(), strict=True))
    return (ones - 2 * common) / ones if ones else 0.0


def rank_hamming(left: Any, right: Any) -> int:
    total = 0
    for side in range(0, len(left), 2):
        ours, theirs = set(range(left[side], left[side + 1])), set(range(right[side], right[side + 1]))
        total += len(ours ^ theirs)
    return total


def hamming_of_ranks(left: Any, right: Any) -> Any:
    """Hamming distances of the filters behind pairs of ranks; leading axes broadcast."""
    shared = np.minimum(left[..., 1], right[..., 1]) - np.maximum(left[..., 0], right[..., 0])
    return (left[..., 1] - left[..., 0]) + (right[..., 1] - right[..., 0]) - 2 * np.maximum(shared, 0)


def nearest(queries: Any, candidates: Any, distance: Callable[[Any, Any], float], k: int) -> tuple[Any, Any]:
    """The K nearest by sorting every pair by (distance, candidate row)."""
    ranked = [
        sorted((distance(query, candidate), row) for row, candidate in enumerate(candidates))[:k] for query in queries
    ]
    rows = np.array([[row for _, row in best] for best in ranked])
    return rows, np.array([[value for value, _ in best] for best in ranked])
