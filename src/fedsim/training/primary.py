"""The primary's side of a training step and of a prediction, launched step by step or replayed as a CUDA graph.

Letters: n records, B records of a batch, K partners, U distinct rows, T outputs of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.splitnn.gates import Batch, Branch, Neighbours, PredictionTask, append_zero_row
from fedsim.splitnn.layers import FeatureTensors
from fedsim.splitnn.methods import Method
from fedsim.splitnn.party_model import PartyModel
from fedsim.splitnn.secondary_model import LocalSecondary, Secondary
from fedsim.training.data import NeighbourList
from fedsim.types import Floats

# Which rows a batch asks of a list's holders: each distinct row once, found on the host before the step
#
# Letters: n records, B records of a batch, K partners, U distinct rows.


PREFETCHED_BATCHES = 64  # questions are put together and moved to the device this many at a time
Rows = NDArray[Any]


@dataclass(frozen=True, eq=False)
class RowRequest:
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

    def questions(self, batches: Sequence[Rows]) -> Iterator[RowRequest]:
        """One question per batch of records."""
        for first in range(0, len(batches), PREFETCHED_BATCHES):
            found = [self._distinct(rows) for rows in batches[first : first + PREFETCHED_BATCHES]]
            device = self.similarity.device
            rows = torch.from_numpy(np.concatenate([rows for rows, _ in found])).to(device)
            position = torch.from_numpy(np.concatenate([position for _, position in found])).to(device)
            yield from map(
                RowRequest,
                rows.split([len(rows) for rows, _ in found]),
                position.split([len(position) for _, position in found]),
            )

    def branch(self, rows: Tensor, position: Tensor, activations: Sequence[Tensor]) -> Branch:
        """What the network above the cut sees of this list, for these records."""
        if self.has_gaps:
            activations = [append_zero_row(part) for part in activations]
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


def arrange_lists(
    lists: Sequence[NeighbourList], method: Method, rng: np.random.Generator, device: torch.device
) -> tuple[PartnerList, ...]:
    """All lists in the method's order, on the device."""
    return tuple(PartnerList.of(method.arrange(held.neighbours, rng), held.holders, device) for held in lists)


# The primary's side of a step and of a prediction, written once against the cut
#
# Letters: B records, T outputs of the task.


PREDICTION_RECORDS = 2048  # of prediction


@dataclass(frozen=True, eq=False)
class PrimaryRecords:
    """Primary records, resident on the device, with their lists of partners."""

    features: FeatureTensors
    lists: tuple[PartnerList, ...]


@dataclass(frozen=True, eq=False)
class Primary:
    """The party with the labels: its part of the model and what it is learning."""

    part: PartyModel
    task: PredictionTask

    def descend(self, records: PrimaryRecords, labels: Tensor, asked: BatchRequest, step: int) -> Tensor:
        """One training step for all parties; the loss stays on the device."""
        request_rows(records, asked.questions, step)
        self.part.begin(step)
        replies = [
            [holder.activations(question.rows, step).requires_grad_() for holder in partners.holders]
            for partners, question in zip(records.lists, asked.questions, strict=True)
        ]
        scores = self.part.network(build_batch(records, asked, replies), self.part.dropout)  # (B, opinions, T)
        loss = self.task.loss(scores, labels.index_select(0, asked.rows))
        loss.backward()  # Algorithm 1, line 12
        for partners, parts in zip(records.lists, replies, strict=True):
            for holder, part in zip(partners.holders, parts, strict=True):
                holder.descend(torch.zeros_like(part) if part.grad is None else part.grad, step)  # lines 14-15
        self.part.descend()  # line 13
        return loss.detach()

    @torch.no_grad()
    def predict(self, records: PrimaryRecords, rows: Rows) -> tuple[Floats, Tensor]:
        """Predictions (n, T) and scores of these records; every distinct partner row is asked for once."""
        questions, replies = _infer_partners(records, rows)
        numbers = torch.from_numpy(rows).to(self.part.device)
        scores = []
        for first in range(0, len(rows), PREDICTION_RECORDS):
            here = slice(first, first + PREDICTION_RECORDS)
            asked = BatchRequest(
                numbers[here], [RowRequest(question.rows, question.position[here]) for question in questions]
            )
            scores.append(self.part.network(build_batch(records, asked, replies)))
        everything = torch.cat(scores)
        return self.task.predict(everything).double().cpu().numpy().astype(np.float64), everything

    @torch.no_grad()
    def batch(self, records: PrimaryRecords, rows: Rows) -> Batch:
        """These records as the network sees them when nothing is dropped."""
        questions, replies = _infer_partners(records, rows)
        return build_batch(records, BatchRequest(torch.from_numpy(rows).to(self.part.device), questions), replies)


@dataclass(frozen=True, eq=False)
class BatchRequest:
    """The records of a batch and what they ask of every list."""

    rows: Tensor  # (B,)
    questions: Sequence[RowRequest]


def request_rows(records: PrimaryRecords, questions: Sequence[RowRequest], step: int | None) -> None:
    """Let every holder of every list begin before the first answer is waited for."""
    for partners, question in zip(records.lists, questions, strict=True):
        for holder in partners.holders:
            holder.ask(question.rows, step)


def build_batch(records: PrimaryRecords, asked: BatchRequest, replies: Sequence[Sequence[Tensor]]) -> Batch:
    """The records of a batch with what the holders of every list replied."""
    branches = [
        partners.branch(asked.rows, question.position, parts)
        for partners, question, parts in zip(records.lists, asked.questions, replies, strict=True)
    ]
    return Batch(records.features.take(asked.rows), branches)


def _infer_partners(records: PrimaryRecords, rows: Rows) -> tuple[list[RowRequest], list[list[Tensor]]]:
    questions = [next(partners.questions([rows])) for partners in records.lists]
    request_rows(records, questions, None)
    replies = [
        [holder.infer(question.rows) for holder in partners.holders]
        for partners, question in zip(records.lists, questions, strict=True)
    ]
    return questions, replies


WARMUP_STEPS = 3  # single launches that warm the libraries up; they train like all others
StepFunction = Callable[[BatchRequest, int], Tensor]


def choose_step_function(primary: Primary, records: PrimaryRecords, labels: Tensor, batch: int) -> StepFunction:
    """How to take a step: recorded on a GPU that holds all parties, launch by launch elsewhere."""

    def plain(asked: BatchRequest, step: int) -> Tensor:
        return primary.descend(records, labels, asked, step)

    holders = [holder for partners in records.lists for holder in partners.holders]
    if not labels.is_cuda or not all(isinstance(holder, LocalSecondary) for holder in holders):
        return plain
    return CudaGraphStep(plain, [primary.part, *_local_models(holders)], records.lists, batch)


class CudaGraphStep:
    """Takes whole batches by replay, others and the first few launch by launch."""

    def __init__(
        self, plain: StepFunction, parts: Sequence[PartyModel], lists: Sequence[PartnerList], batch: int
    ) -> None:
        self.plain, self.parts, self.lists, self.batch, self.taken = plain, parts, lists, batch, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        device = parts[0].device
        self.asked = BatchRequest(
            torch.zeros(batch, dtype=torch.int64, device=device), [_allocate_request(entry, batch) for entry in lists]
        )
        self.loss = torch.zeros((), device=device)

    def __call__(self, asked: BatchRequest, step: int) -> Tensor:
        self.taken += 1
        if len(asked.rows) != self.batch or self.taken <= WARMUP_STEPS:
            return self.plain(asked, step)
        self._fill(asked)
        for part in self.parts:
            part.begin(step)
        if self.graph is None:
            self.graph = self._record(step)
        self.graph.replay()
        return self.loss

    def _fill(self, asked: BatchRequest) -> None:
        self.asked.rows.copy_(asked.rows)
        for partners, place, question in zip(self.lists, self.asked.questions, asked.questions, strict=True):
            place.rows[: len(question.rows)].copy_(question.rows)
            place.position.copy_(question.position)
            if partners.has_gaps:  # nobody's place is behind the padding
                place.position.masked_fill_(place.position == len(question.rows), len(place.rows))

    def _record(self, step: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for part in self.parts:
            graph.register_generator_state(part.dropout)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self.loss = self.plain(self.asked, step)
        return graph


def _local_models(holders: Sequence[Secondary]) -> list[PartyModel]:
    return [holder.part for holder in holders if isinstance(holder, LocalSecondary)]


def _allocate_request(partners: PartnerList, batch: int) -> RowRequest:
    """Space for the most distinct rows a batch can ask for."""
    device, k = partners.similarity.device, partners.partner.shape[1]
    most = min(partners.holders[0].n_records, batch * k)
    return RowRequest(
        torch.zeros(most, dtype=torch.int32, device=device), torch.zeros((batch, k), dtype=torch.int32, device=device)
    )
