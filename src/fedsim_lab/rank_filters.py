"""FEDERAL numeric filters in rank form: two integers per field that have the Hamming distances of filters of any size.

With sorted pivots, the filter of a number is one run of ones, ``[low, high)``. Ranks need the pivots and reveal the
order of the values, so they serve only attacks, previews and simulations, in which one process holds the key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from fedsim.errors import InputError, SettingError
from fedsim.linkage import identifiers
from fedsim.linkage.encoding import Key, NumericFilter, Schema
from fedsim.linkage.encoding.schema import read_columns
from fedsim.linkage.metrics import Backend, FormulaBlocks, blocks_backend
from fedsim.linkage.search.runner import DistanceBlocks
from fedsim.types import Flags, Floats, Integers, Integers32

RankRuns = Integers32  # columns low, high of every field in turn


def schema_ranks(schema: Schema, records: Any, key: Key, table: str = "primary") -> Integers:
    """Return the first and last rank of each field, shape (records, 2 x fields).

    With the metric ``rank-hamming``, they yield the Hamming distances of the concatenated filters.
    """
    columns, ranks = read_columns(records, [field.column for field in schema.fields], table), []
    for index, field in enumerate(schema.fields):
        if not isinstance(field.encoding, NumericFilter):
            message = f"field {field.column!r} is {field.encoding.KIND}; only filters of numbers have ranks"
            raise SettingError(message, code="no-ranks")
        ranks.append(field.encoding.ranks(columns[field.column], schema.subkey(key, f"field {index}")))
    return np.hstack(ranks)


@dataclass(frozen=True)
class RankHamming:
    """Hamming distance of FEDERAL numeric filters given as ranks: columns low and high for each field in turn."""

    name: str = "rank-hamming"
    whole: bool = True

    def prepare(self, records: Any, table: str) -> RankRuns:
        runs = identifiers.numbers(records, table)
        valid = (
            runs.shape[1] % 2 == 0
            and (runs == np.floor(runs)).all()
            and (runs[:, 0::2] <= runs[:, 1::2]).all()
            and (runs >= 0).all()
        )
        if not valid or runs.max() > 2**30 / runs.shape[1]:
            message = f"the {table} table does not contain ranks; give two pivot ranks per field, 0 <= low <= high"
            raise InputError(message, code="not-ranks", table=table)
        return np.ascontiguousarray(runs.astype(np.int32))

    def blocks(self, left: RankRuns, right: RankRuns) -> DistanceBlocks:
        return FormulaBlocks(_rank_distances, left, right)

    def disjoint(self, left: RankRuns, right: RankRuns) -> Flags:
        low, high = np.maximum(left[:, 0::2], right[:, 0::2]), np.minimum(left[:, 1::2], right[:, 1::2])
        return np.asarray((high <= low).any(axis=1))

    def backends(self, queries: RankRuns, candidates: RankRuns, k: int) -> Sequence[Backend]:
        return [blocks_backend(self, queries, candidates)]


RANK_HAMMING = RankHamming()


@njit(nogil=True, cache=True)
def _rank_distances(left: RankRuns, right: RankRuns) -> Floats:
    """Return all Hamming distances: the lengths of both runs minus twice their overlap, summed over the fields."""
    distances = np.zeros((len(left), len(right)))
    columns = right.T.copy()  # contiguous, so that the inner loop runs in vector registers
    for query in range(len(left)):
        for side in range(0, left.shape[1], 2):
            low, high = left[query, side], left[query, side + 1]
            lows, highs = columns[side], columns[side + 1]
            for row in range(len(right)):
                overlap = max(np.int32(min(high, highs[row]) - max(low, lows[row])), np.int32(0))
                distances[query, row] += np.int32(high - low + highs[row] - lows[row] - 2 * overlap)
    return distances
