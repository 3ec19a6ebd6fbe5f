"""Which rows a batch asks of a list's holders: each distinct row once, found on the host before the step.

Letters: n records, B records of a batch, K partners, U distinct rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.splitnn.cut import Secondary
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.links import Branch, with_nobody
from fedsim.splitnn.method import Method
from fedsim.training.data import HeldList

BATCHES_AHEAD = 64  # questions are put together and moved to the device this many at a time
Rows = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Question:
    """Distinct rows in ascending order, and the place of every pair among them (U where there is no partner)."""

    rows: Tensor  # (U,)
    position: Tensor  # (B, K)


@dataclass(eq=False)
class PartnerList:
    """One list of partners: rows on the host, similarities on the device, and the parties that hold those rows."""

    partner: Rows  # (n, K)
    similarity: Tensor  # (n, K)
    holders: tuple[Secondary, ...]

    @classmethod
    def of(cls, neighbours: Neighbours, holders: tuple[Secondary, ...], device: torch.device) -> PartnerList:
        similarity = torch.from_numpy(neighbours.similarity.astype(np.float32)).to(device)
        return cls(neighbours.partner.astype(np.int32), similarity, holders)

    def __post_init__(self) -> None:
        n_rows = self.holders[0].n_records
        self.has_gaps = bool((self.partner < 0).any())
        self._seen, self._place = np.zeros(n_rows + 1, dtype=bool), np.zeros(n_rows + 1, dtype=np.int32)

    def questions(self, batches: Sequence[Rows]) -> Iterator[Question]:
        """One question per batch of records."""
        for first in range(0, len(batches), BATCHES_AHEAD):
            found = [self._distinct(rows) for rows in batches[first : first + BATCHES_AHEAD]]
            device = self.similarity.device
            rows = torch.from_numpy(np.concatenate([rows for rows, _ in found])).to(device)
            position = torch.from_numpy(np.concatenate([position for _, position in found])).to(device)
            yield from map(
                Question,
                rows.split([len(rows) for rows, _ in found]),
                position.split([len(position) for _, position in found]),
            )

    def branch(self, rows: Tensor, position: Tensor, activations: Sequence[Tensor]) -> Branch:
        """What the network above the cut sees of this list, for these records."""
        if self.has_gaps:
            activations = [with_nobody(part) for part in activations]
        return Branch(tuple(activations), position, self.similarity.index_select(0, rows))

    def _distinct(self, rows: Rows) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Distinct partner rows by marking, faster than sorting; -1 marks the last place, which is then taken out."""
        wanted = self.partner[rows]  # (B, K)
        self._seen[wanted] = True
        self._seen[-1] = False
        distinct = np.flatnonzero(self._seen).astype(np.int32)  # (U,)
        self._seen[distinct] = False
        self._place[distinct] = np.arange(len(distinct), dtype=np.int32)
        self._place[-1] = len(distinct)
        return distinct, self._place[wanted]


def arranged(
    lists: Sequence[HeldList], method: Method, rng: np.random.Generator, device: torch.device
) -> tuple[PartnerList, ...]:
    """All lists in the method's order, on the device."""
    return tuple(PartnerList.of(method.arrange(held.neighbours, rng), held.holders, device) for held in lists)
