"""What a metric is, and what it can offer to the planner.

A metric prepares records (checks them, brings them into the search's form), computes blocks of plain distances, and
lists its exact searches, best first. A metric without a search of its own offers ``by_blocks`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedsim.linkage.search.blocks import QUERIES_PER_TILE, Blocks, BlockSearch
from fedsim.linkage.search.distinct import Records, count
from fedsim.linkage.search.run import Search
from fedsim.linkage.search.tiles import tiles_of
from fedsim.types import Floats, Integers


@dataclass(frozen=True)
class Backend:
    """One way to search, why it is offered, how to start it, and a test whether it pays where that is not known."""

    name: str
    reason: str
    start: Callable[[], Search]
    pays: Callable[[], bool] = lambda: True


GPU = "gpu"  # the one backend name the planner treats apart


class Metric(Protocol):
    """A distance between identifiers; ``whole`` says that all its values are whole numbers."""

    @property
    def name(self) -> str: ...

    @property
    def whole(self) -> bool: ...

    def prepare(self, records: Any, table: str) -> Records: ...

    def blocks(self, left: Records, right: Records) -> Blocks: ...

    def backends(self, queries: Records, candidates: Records, k: int) -> Sequence[Backend]: ...


@runtime_checkable
class Saturating(Protocol):
    """A metric that goes flat: it can say which pairs have nothing in common, in all or in one of their fields."""

    def disjoint(self, left: Records, right: Records) -> NDArray[np.bool_]: ...


def by_blocks(metric: Metric, queries: Records, candidates: Records) -> Backend:
    """The search that needs nothing but blocks of distances."""
    return Backend("blocks", "plain distances of every pair", lambda: BlockSearch(queries, candidates, metric.blocks))


def distances(metric: Metric, left: Records, right: Records) -> Floats:
    """All distances between two small sets of prepared records."""
    blocks, n_left = metric.blocks(left, right), count(left)
    return np.vstack([blocks.block(tile) for tile in tiles_of(n_left, QUERIES_PER_TILE)])


@dataclass(frozen=True)
class PlainBlocks:
    """Blocks of a formula over two arrays of records."""

    formula: Callable[[Any, Any], Floats]
    left: Any
    right: Any

    def block(self, tile: Integers) -> Floats:
        return self.formula(self.left[tile], self.right)
