"""Tables with many ties, and an engine that searches them in small tiles."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fedsim.errors import InputError
from fedsim.types import EncodedTable
from fedsim_ops.search_tiles import CandidateChunk, LocalEngine, QueryTile, TileBest, search_by_tiles

RNG = np.random.default_rng(5)
PLACES = [np.round(RNG.uniform((50, 4), (51, 6), (n, 2)), 1) for n in (150, 120)]  # a grid, with many ties
FILTERS = [EncodedTable(RNG.integers(0, 256, (n, 2), np.uint8), 16, "f") for n in (150, 120)]
NAMES = [["".join(RNG.choice([*"ab "], 6)) + "x" for _ in range(n)] for n in (150, 120)]
TABLES = {
    "great-circle": PLACES,
    "euclidean": PLACES,
    "hamming": FILTERS,
    "dice": FILTERS,
    "levenshtein": NAMES,
    "qgram-dice": NAMES,
}
COLUMNS = ("partner", "distance", "similarity", "next_distance")


class ByTiles(LocalEngine):
    """An engine that searches small tiles, the last one first, and notes them."""

    def __init__(self, fails_after: int = sys.maxsize) -> None:
        self.searched, self.fails_after = list[int](), fails_after

    def search(self, *terms: Any) -> Any:
        return search_by_tiles(self, *terms)

    def search_tiles(self, chunk: CandidateChunk, tiles: Iterable[QueryTile]) -> Iterator[tuple[int, TileBest, str]]:
        for found in [*super().search_tiles(chunk, tiles)][::-1]:
            if len(self.searched) == self.fails_after:
                raise InputError("out of luck", code="stopped")
            self.searched.append(found[0])
            yield found
