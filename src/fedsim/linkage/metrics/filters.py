"""Distances between encoded identifiers: bit filters, and FEDERAL numeric filters in rank form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError
from fedsim.linkage import identifiers
from fedsim.linkage.metric import GPU, Backend, PlainBlocks, by_blocks
from fedsim.linkage.search.bits import BitKernel, Words, ones_in, words_of
from fedsim.linkage.search.blocks import Blocks
from fedsim.linkage.search.cells import CellSearch, share_evaluated
from fedsim.linkage.search.ranks import RankKernel, Runs
from fedsim.linkage.search.run import LaneSearch, Search
from fedsim.types import Floats

CELLS_PAY_BELOW = 0.05  # a pair in a ring costs about twenty times a pair in the flat scan
FEWEST_QUERIES_FOR_CELLS = 4096  # fewer do not repay building the cells


@dataclass(frozen=True)
class Hamming:
    """Number of differing bits of two filters."""

    name: str = "hamming"
    whole: bool = True

    def prepare(self, records: Any, table: str) -> Words:
        return words_of(identifiers.filters(records, table))

    def blocks(self, left: Words, right: Words) -> Blocks:
        return PlainBlocks(_differing_bits, left, right)

    def disjoint(self, left: Words, right: Words) -> NDArray[np.bool_]:
        return _nothing_common(left, right)

    def backends(self, queries: Words, candidates: Words, k: int) -> Sequence[Backend]:
        def gpu() -> Search:
            from fedsim.linkage.search.gpu import hamming_search  # noqa: PLC0415 - torch takes seconds to import

            return hamming_search(queries, candidates)

        return [
            Backend(
                "cells",
                f"rings around centres: a sample needed less than {CELLS_PAY_BELOW:.0%} of the pairs",
                lambda: CellSearch(queries, candidates),
                pays=lambda: (
                    len(queries) >= FEWEST_QUERIES_FOR_CELLS
                    and share_evaluated(queries, candidates, k) < CELLS_PAY_BELOW
                ),
            ),
            Backend(
                "flat",
                f"popcount of every pair of {64 * candidates.shape[1]}-bit filters",
                lambda: LaneSearch(BitKernel(queries, candidates, by_ones=False)),
            ),
            by_blocks(self, queries, candidates),
            Backend(GPU, "matrix product of the bits on the GPU", gpu),
        ]


@dataclass(frozen=True)
class Dice:
    """One minus twice the common ones over the ones of both filters; two empty filters are equal."""

    name: str = "dice"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> Words:
        return words_of(identifiers.filters(records, table))

    def blocks(self, left: Words, right: Words) -> Blocks:
        return PlainBlocks(_dice_distances, left, right)

    def disjoint(self, left: Words, right: Words) -> NDArray[np.bool_]:
        return _nothing_common(left, right)

    def backends(self, queries: Words, candidates: Words, k: int) -> Sequence[Backend]:
        flat = Backend(
            "flat", "popcount of every pair", lambda: LaneSearch(BitKernel(queries, candidates, by_ones=True))
        )
        return [flat, by_blocks(self, queries, candidates)]


def _differing_bits(left: Words, right: Words) -> Floats:
    total = np.zeros((len(left), len(right)), np.int64)
    for word in range(left.shape[1]):
        total += np.bitwise_count(left[:, word, None] ^ right[None, :, word])
    return total.astype(np.float64)


def _nothing_common(left: Words, right: Words) -> NDArray[np.bool_]:
    return np.asarray(~(left & right).any(axis=1))


def _dice_distances(left: Words, right: Words) -> Floats:
    ones = ones_in(left)[:, None] + ones_in(right)[None, :]
    return np.asarray(_differing_bits(left, right) / np.maximum(ones, 1))


@dataclass(frozen=True)
class RankHamming:
    """Hamming distance of FEDERAL numeric filters in rank form: columns low, high of every field in turn."""

    name: str = "rank-hamming"
    whole: bool = True

    def prepare(self, records: Any, table: str) -> Runs:
        runs = identifiers.numbers(records, table)
        sound = (
            runs.shape[1] % 2 == 0
            and (runs == np.floor(runs)).all()
            and (runs[:, 0::2] <= runs[:, 1::2]).all()
            and (runs >= 0).all()
        )
        if not sound or runs.max() > 2**30 / runs.shape[1]:
            raise InputError(
                f"the {table} table holds no runs; give low and high pivot ranks per field, 0 <= low <= high"
            )
        return np.ascontiguousarray(runs.astype(np.int32))

    def blocks(self, left: Runs, right: Runs) -> Blocks:
        return PlainBlocks(_differing_ranks, left, right)

    def disjoint(self, left: Runs, right: Runs) -> NDArray[np.bool_]:
        low, high = np.maximum(left[:, 0::2], right[:, 0::2]), np.minimum(left[:, 1::2], right[:, 1::2])
        return np.asarray((high <= low).any(axis=1))

    def backends(self, queries: Runs, candidates: Runs, k: int) -> Sequence[Backend]:
        flat = Backend(
            "flat", "two integers per field of every pair", lambda: LaneSearch(RankKernel(queries, candidates))
        )
        return [flat, by_blocks(self, queries, candidates)]


def _differing_ranks(left: Runs, right: Runs) -> Floats:
    total = np.zeros((len(left), len(right)), np.int64)
    for side in range(0, left.shape[1], 2):
        low = np.maximum(left[:, side, None], right[None, :, side])
        high = np.minimum(left[:, side + 1, None], right[None, :, side + 1])
        ones = (left[:, side + 1] - left[:, side])[:, None] + (right[:, side + 1] - right[:, side])[None, :]
        total += ones - 2 * np.maximum(high - low, 0)
    return total.astype(np.float64)
