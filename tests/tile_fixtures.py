"""Tables with many ties, and an engine that searches them in small tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np

from fedsim.linkage.soft_linkage import SearchMemory
from fedsim.types import EncodedTable
from fedsim_ops.search_tiles import CandidateChunk, QueryTile, TileBest, search_by_tiles, search_tile

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


class LocalEngine:
    """An engine in this process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def check(self) -> None: ...

    def describe(self) -> str:
        return "this machine"

    def search(self, *terms: Any) -> Any:
        return search_by_tiles(self, *terms)

    def search_tiles(self, chunk: CandidateChunk, tiles: Iterable[QueryTile]) -> Iterator[tuple[int, TileBest, str]]:
        memory = SearchMemory()
        for tile in tiles:
            yield tile.number, *search_tile(chunk, tile, memory)


class ByTiles(LocalEngine):
    """An engine that searches small tiles, the last one first."""

    def search_tiles(self, chunk: CandidateChunk, tiles: Iterable[QueryTile]) -> Iterator[tuple[int, TileBest, str]]:
        yield from [*super().search_tiles(chunk, tiles)][::-1]
