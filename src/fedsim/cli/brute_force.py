"""The slow, obvious answer the demo holds the fast one against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.privacy.plane import EARTH_RADIUS
from fedsim.types import Floats, Integers


def nearest_places(queries: Sequence[Floats], candidates: Floats, k: int) -> tuple[Integers, Floats]:
    """Partners and great-circle distances in metres of every (latitude, longitude): all pairs, then sorted."""
    here, there = np.radians(np.asarray(queries))[:, None, :], np.radians(candidates)[None, :, :]
    half = np.sin((here - there) / 2) ** 2
    square = half[..., 0] + np.cos(here[..., 0]) * np.cos(there[..., 0]) * half[..., 1]
    return _best(2 * EARTH_RADIUS * np.arcsin(np.sqrt(square)), k)


def nearest_names(queries: Sequence[str], candidates: Sequence[str], k: int) -> tuple[Integers, Floats]:
    """Partners and edit distances of every query.

    >>> nearest_names(["marine"], ["ocean", "marina", "marine"], 2)[0]
    array([[2, 1]])
    """
    return _best(np.array([edit_distances(query, candidates) for query in queries], dtype=np.float64), k)


def edit_distances(query: str, candidates: Sequence[str]) -> Integers:
    """The textbook table, one column of it for all candidates at once.

    >>> edit_distances("kitten", ["sitting", ""])
    array([3, 6])
    """
    lengths = np.array([len(name) for name in candidates])
    letters = np.zeros((len(candidates), int(lengths.max())), dtype=np.int64)
    for row, name in enumerate(candidates):
        letters[row, : len(name)] = [ord(letter) for letter in name]
    before: Integers = np.tile(np.arange(letters.shape[1] + 1), (len(candidates), 1))
    for deleted, letter in enumerate(query, start=1):
        here = np.empty_like(before)
        here[:, 0] = deleted
        for place in range(letters.shape[1]):
            kept = before[:, place] + (letters[:, place] != ord(letter))
            here[:, place + 1] = np.minimum(kept, np.minimum(before[:, place + 1], here[:, place]) + 1)
        before = here
    distances: Integers = before[np.arange(len(candidates)), lengths]
    return distances


def _best(apart: Floats, k: int) -> tuple[Integers, Floats]:
    order = np.argsort(apart, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(apart, order, axis=1)
