"""How the paper encoded identifiers before it compared them by Hamming distance (FEDERAL filters)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NumberFilters:
    """Settings for ``NumericFilter.sized``: each number is a filter of its own, ``threshold`` in the column's unit."""

    epsilon: float
    delta: float
    threshold: float


@dataclass(frozen=True)
class TextFilters:
    """Settings of the string filters: ``q``-grams, ``hashes`` per gram, and what their size was chosen for."""

    q: int
    hashes: int
    edits: int
    collisions: float
    delta: float


SINGLE_TABLE = NumberFilters(epsilon=0.1, delta=0.1, threshold=0.1)
TITLES = TextFilters(q=4, hashes=10, edits=1, collisions=0.05, delta=0.1)
