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


def jaro_winkler(left: str, right: str) -> float:
    """Winkler's distance; the characters of ``right`` are matched in turn."""
    if not left or not right:
        return 0.0 if left == right else 1.0
    reach = max(0, max(len(left), len(right)) // 2 - 1)
    free, ours, theirs = set(range(len(left))), [], []
    for place, char in enumerate(right):
        equal = [other for other in sorted(free) if abs(other - place) <= reach and left[other] == char]
        if equal:
            free.remove(equal[0])
            ours.append(equal[0])
            theirs.append(char)
    if not ours:
        return 1.0
    swapped = sum(left[place] != char for place, char in zip(sorted(ours), theirs, strict=True))
    matches = len(ours)
    jaro = (matches / len(left) + matches / len(right) + (matches - swapped // 2) / matches) / 3
    prefix = 0
    while prefix < min(4, len(left), len(right)) and left[prefix] == right[prefix]:
        prefix += 1
    return max(0.0, 1 - (jaro + prefix * 0.1 * (1 - jaro) if jaro > 0.7 else jaro))


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


def tfidf_cosine(candidates: list[str], q: int = 3) -> Callable[[str, str], float]:
    """TF-IDF cosine distance with the frequencies of these candidates."""

    def count(text: str) -> Counter[str]:
        return Counter(gram for word in WordRules().split(text) for gram in _grams(word, q))

    texts_with = Counter(gram for text in candidates for gram in count(text))

    def vector(text: str) -> dict[str, int]:
        inverse = {gram: math.log((1 + len(candidates)) / (1 + texts_with[gram])) + 1 for gram in count(text)}
        return {gram: times * round(100 * inverse[gram]) for gram, times in count(text).items()}

    def distance(left: str, right: str) -> float:
        ours, theirs = vector(left), vector(right)
        sizes = [float(sum(weight**2 for weight in side.values())) for side in (ours, theirs)]
        if 0 in sizes:
            return float(sizes[0] != sizes[1])
        common = sum(weight * theirs.get(gram, 0) for gram, weight in ours.items())
        return max(0.0, 1.0 - common / math.sqrt(sizes[0] * sizes[1]))

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
