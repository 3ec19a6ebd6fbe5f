"""A training step recorded once as a CUDA graph and replayed.

All parties of this process take part in the recording, so nothing here knows more than the split loop does; a party in
another process cannot be recorded, and the loop falls back to single launches. Steps keep their shapes: distinct rows
are padded to the most a batch can have (rows asked before, to which no pair points and which get no gradient).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsim.splitnn.party_model import PartyModel
from fedsim.splitnn.secondary_api import Secondary
from fedsim.splitnn.secondary_model import LocalSecondary
from fedsim.training.primary import BatchRequest, PartnerList, Primary, PrimaryRecords, RowRequest

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
