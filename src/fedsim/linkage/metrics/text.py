"""Distances between texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.linkage import identifiers
from fedsim.linkage.metric import Backend, by_blocks
from fedsim.linkage.search.blocks import Blocks
from fedsim.linkage.search.run import LaneSearch, Search
from fedsim.linkage.search.text import TextKernel


@dataclass(frozen=True)
class Levenshtein:
    """Insertions, deletions and substitutions between two texts; normalised: divided by the longer length (paper)."""

    normalised: bool = False

    @property
    def name(self) -> str:
        return "levenshtein-normalised" if self.normalised else "levenshtein"

    @property
    def whole(self) -> bool:
        return not self.normalised

    def prepare(self, records: Any, table: str) -> list[str]:
        return identifiers.strings(records, table)

    def blocks(self, left: list[str], right: list[str]) -> Blocks:
        return TextKernel(left, right, normalised=self.normalised)

    def backends(self, queries: list[str], candidates: list[str], k: int) -> Sequence[Backend]:
        def lanes() -> Search:
            return LaneSearch(TextKernel(queries, candidates, normalised=self.normalised))

        return [
            Backend("lanes", "bit-parallel edit distance of many queries at once", lanes),
            by_blocks(self, queries, candidates),
        ]
