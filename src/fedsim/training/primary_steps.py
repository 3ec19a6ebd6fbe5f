"""The primary's side of a training step and of a prediction, launched step by step or replayed as a CUDA graph.

Letters: n records, B records of a batch, K partners, U distinct rows, C width of the cut layer, M opinions per record,
T outputs of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.splitnn import gates, layers, methods, party_model, secondary_model
from fedsim.storage.tensor_file import scratch_array
from fedsim.training.data import NeighbourList
from fedsim.types import Floats, Links

PREFETCHED_BATCHES = 64  # requests are computed on the host and moved to the device this many at a time
PREDICTION_RECORDS = 2048  # records per forward pass outside training
ARRANGED_RECORDS = 1 << 16  # whose partners are put in order at a time
Rows = NDArray[Any]


@dataclass(frozen=True, eq=False)
class RowRequest:
    """Distinct rows in ascending order, and the place of every pair among them (U where there is no partner)."""

    rows: Tensor  # (U,)
    position: Tensor  # (B, K)


@dataclass(frozen=True, eq=False)
class BatchRequest:
    """The records of a batch and the rows that they need of every list."""

    rows: Tensor  # (B,)
    requests: Sequence[RowRequest]


@dataclass(eq=False)
class PartnerList:
    """One list of partners: rows on the host, similarities on the device, and the parties that hold those rows."""

    partner: Rows  # (n, K)
    similarity: Tensor  # (n, K, F)
    holders: tuple[secondary_model.Secondary, ...]

    @classmethod
    def of(
        cls,
        neighbours: Links,
        holders: tuple[secondary_model.Secondary, ...],
        device: torch.device,
        arrange: Callable[[Links], Links] = lambda part: part,
        folder: Path | None = None,
    ) -> PartnerList:
        """Arrange every record's partners, some records at a time; large lists lie in files in the folder."""
        none, n_records = arrange(neighbours.take(slice(0))), len(neighbours)
        partner = scratch_array((n_records, none.k), np.int32, folder)
        similarity = scratch_array((n_records, *none.similarity.shape[1:]), np.float32, folder)
        for first in range(0, n_records, ARRANGED_RECORDS):
            here = slice(first, first + ARRANGED_RECORDS)
            # Partners are compared in double precision, whatever precision they are stored in.
            doubles = neighbours.similarity[here].astype(np.float64, copy=False)
            part = arrange(Links(neighbours.partner[here], doubles))
            partner[here], similarity[here] = part.partner, part.similarity
        return cls(partner, torch.from_numpy(similarity).to(device), holders)

    def __post_init__(self) -> None:
        n_rows = self.holders[0].n_records
        self.has_gaps = bool(self.partner.min(initial=0) < 0)
        self._seen, self._place = np.zeros(n_rows + 1, dtype=bool), np.zeros(n_rows + 1, dtype=np.int32)

    def requests(self, batches: Sequence[Rows]) -> Iterator[RowRequest]:
        """Yield one request per batch of records."""
        device = self.similarity.device
        for first in range(0, len(batches), PREFETCHED_BATCHES):
            distinct = [self._distinct(rows) for rows in batches[first : first + PREFETCHED_BATCHES]]
            rows = send_array(np.concatenate([rows for rows, _ in distinct]), device)
            position = send_array(np.concatenate([position for _, position in distinct]), device)
            yield from map(
                RowRequest,
                rows.split([len(rows) for rows, _ in distinct]),
                position.split([len(position) for _, position in distinct]),
            )

    def branch(self, rows: Tensor, position: Tensor, activations: Sequence[Tensor]) -> gates.Branch:
        """Return what the network above the cut sees of this list, for these records."""
        if self.has_gaps:  # position U means a further row of zeros
            activations = [torch.cat([part, part.new_zeros(1, part.shape[1])]) for part in activations]  # (U + 1, C)
        return gates.Branch(tuple(activations), position, self.similarity.index_select(0, rows))

    def _distinct(self, rows: Rows) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return distinct partner rows and positions, by marking rows, which is faster than sorting.

        Row -1 (no partner) marks the last place, which is then cleared.
        """
        wanted = self.partner[rows]  # (B, K)
        self._seen[wanted] = True
        self._seen[-1] = False
        distinct = np.flatnonzero(self._seen).astype(np.int32)  # (U,)
        self._seen[distinct] = False
        self._place[distinct] = np.arange(len(distinct), dtype=np.int32)
        self._place[-1] = len(distinct)
        return distinct, self._place[wanted]


def arrange_lists(
    lists: Sequence[NeighbourList],
    method: methods.Method,
    rng: np.random.Generator,
    device: torch.device,
    folder: Path | None = None,
) -> tuple[PartnerList, ...]:
    """Return all lists in the method's order, on the device."""
    arrange = partial(method.arrange, rng=rng)
    return tuple(PartnerList.of(entry.neighbours, entry.holders, device, arrange, folder) for entry in lists)


@dataclass(frozen=True, eq=False)
class PrimaryRecords:
    """Primary records on the device, with their lists of partners."""

    features: layers.FeatureTensors
    lists: tuple[PartnerList, ...]


@dataclass(frozen=True, eq=False)
class Primary:
    """The party with the labels: its share of the model and the task.

    ``party_dropout`` is the share of the records of a step that do without a list of partners, for each list.
    """

    model: party_model.PartyModel
    task: gates.PredictionTask
    party_dropout: float = 0.0

    @property
    def members(self) -> int:
        """N, the number of networks above the cut."""
        return len(methods.member_networks(self.model.network))

    def descend(
        self, records: PrimaryRecords, labels: Tensor, request: BatchRequest, step: int, weights: Tensor | None = None
    ) -> Tensor:
        """Take one training step for all parties; the loss stays on the device."""
        with tensor_float32(self.model.device):
            return self._descend(records, labels, request, step, weights)

    def _descend(
        self, records: PrimaryRecords, labels: Tensor, request: BatchRequest, step: int, weights: Tensor | None
    ) -> Tensor:
        announce_rows(records, request.requests, step)
        self.model.begin(step)
        replies = [
            [holder.activations(wanted.rows, step).requires_grad_() for holder in partners.holders]
            for partners, wanted in zip(records.lists, request.requests, strict=True)
        ]
        batch = build_batch(records, request, replies)
        if self.party_dropout:
            drawn = torch.rand(len(request.rows), len(replies), generator=self.model.dropout, device=self.model.device)
            batch = replace(batch, absent=drawn < self.party_dropout)
        scores = self.model.network(batch, self.model.dropout)  # (B, M, T)
        own_weights = None if weights is None else weights.index_select(0, request.rows)
        loss = self.task.loss(scores, labels.index_select(0, request.rows), own_weights)
        loss.backward()  # Algorithm 1, line 12
        for partners, activations in zip(records.lists, replies, strict=True):
            for holder, part in zip(partners.holders, activations, strict=True):
                holder.descend(torch.zeros_like(part) if part.grad is None else part.grad, step)  # lines 14-15
        self.model.descend()  # line 13
        return loss.detach()

    def step_function(
        self, records: PrimaryRecords, labels: Tensor, batch: int, weights: Tensor | None = None
    ) -> StepFunction:
        """Return how to take a step: recorded on a GPU that holds all parties, kernel by kernel elsewhere."""
        plain = partial(self.descend, records, labels, weights=weights)
        holders = [holder for partners in records.lists for holder in partners.holders]
        local = [holder.model for holder in holders if isinstance(holder, secondary_model.LocalSecondary)]
        if not labels.is_cuda or len(local) < len(holders):
            return plain
        return CudaGraphStep(plain, [self.model, *local], records.lists, batch)

    @torch.no_grad()
    def predict(self, records: PrimaryRecords, rows: Rows) -> tuple[Floats, Tensor]:
        """Return predictions (n, T) and scores of these records; every distinct partner row is fetched once."""
        requests, replies = _infer_partners(records, rows)
        on_device = torch.from_numpy(rows).to(self.model.device)
        scores = []
        size = max(1, PREDICTION_RECORDS // self.members)
        for first in range(0, len(rows), size):
            here = slice(first, first + size)
            wanted = [RowRequest(request.rows, request.position[here]) for request in requests]
            scores.append(self.model.network(build_batch(records, BatchRequest(on_device[here], wanted), replies)))
        all_scores = torch.cat(scores)  # (n, M, T)
        return self.task.predict(all_scores).double().cpu().numpy().astype(np.float64), all_scores

    def spread(self, scores: Tensor) -> Floats:
        """Return how far the members disagree: the deviation of their first outputs, (n, N * M, T) -> (n,)."""
        by_member = scores.unflatten(1, (self.members, -1)).transpose(0, 1)  # (N, n, M, T)
        found = torch.stack([self.task.predict(member)[:, 0] for member in by_member])  # (N, n)
        return found.double().std(dim=0, correction=0).cpu().numpy()

    @torch.no_grad()
    def batch(self, records: PrimaryRecords, rows: Rows) -> gates.Batch:
        """Return these records as the network sees them without dropout."""
        requests, replies = _infer_partners(records, rows)
        return build_batch(records, BatchRequest(torch.from_numpy(rows).to(self.model.device), requests), replies)


@contextmanager
def tensor_float32(device: torch.device) -> Iterator[None]:
    """Let a GPU multiply float32 numbers with ten bits of mantissa, which costs no accuracy (docs/performance.md)."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before or device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def send_array(array: Rows, device: torch.device) -> Tensor:
    """Copy an array to a device; the host does not wait for a GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def announce_rows(records: PrimaryRecords, requests: Sequence[RowRequest], step: int | None) -> None:
    """Let every holder of every list start before the first answer is waited for."""
    for partners, request in zip(records.lists, requests, strict=True):
        for holder in partners.holders:
            holder.ask(request.rows, step)


def build_batch(records: PrimaryRecords, request: BatchRequest, replies: Sequence[Sequence[Tensor]]) -> gates.Batch:
    """Return the records of a batch with the activations that the holders of every list sent."""
    branches = [
        partners.branch(request.rows, wanted.position, activations)
        for partners, wanted, activations in zip(records.lists, request.requests, replies, strict=True)
    ]
    away = [isinstance(partners.holders[0], secondary_model.AbsentSecondary) for partners in records.lists]
    absent = torch.tensor(away, device=request.rows.device).expand(len(request.rows), -1) if any(away) else None
    return gates.Batch(records.features.take(request.rows), branches, absent)


def _infer_partners(records: PrimaryRecords, rows: Rows) -> tuple[list[RowRequest], list[list[Tensor]]]:
    requests = [next(partners.requests([rows])) for partners in records.lists]
    announce_rows(records, requests, None)
    replies = [
        [holder.infer(request.rows) for holder in partners.holders]
        for partners, request in zip(records.lists, requests, strict=True)
    ]
    return requests, replies


# A training step recorded once as a CUDA graph and replayed.
#
# All parties of this process take part in the recording, so nothing here knows more than the split loop does. A party
# in another process cannot be recorded; the loop then launches kernels one by one. The shapes of a recorded step depend
# on the number of its records alone: a secondary is asked for all its rows or for one per pair, whichever is less, and
# not for distinct rows.


WARMUP_STEPS = 3  # steps before the recording, to warm up the libraries; they train like all others
StepFunction = Callable[[BatchRequest, int], Tensor]


class CudaGraphStep:
    """Takes full batches by replay; smaller ones and the first few steps kernel by kernel.

    It needs the records of a request and nothing else.
    """

    def __init__(
        self,
        plain: StepFunction,
        models: Sequence[party_model.PartyModel],
        lists: Sequence[PartnerList],
        batch: int,
    ) -> None:
        self.plain, self.models, self.batch, self.taken = plain, models, batch, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        device = models[0].device
        self.lists = [FixedRequests.of(entry, device) for entry in lists]
        self.rows = torch.zeros(batch, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)

    def __call__(self, request: BatchRequest, step: int) -> Tensor:
        self.taken += 1
        if len(request.rows) != self.batch or self.taken <= WARMUP_STEPS:
            return self._descend(request.rows, step)
        self.rows.copy_(request.rows)  # which the recorded kernels read
        for model in self.models:
            model.begin(step)
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            for model in self.models:
                self.graph.register_generator_state(model.dropout)
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph):
                self.loss = self._descend(self.rows, step)
        self.graph.replay()
        return self.loss

    def _descend(self, rows: Tensor, step: int) -> Tensor:
        return self.plain(BatchRequest(rows, [entry.request(rows) for entry in self.lists]), step)


@dataclass(frozen=True, eq=False)
class FixedRequests:
    """Requests of one list whose shapes depend on the number of records alone, computed on the device."""

    partner: Tensor  # (n, K)
    n_rows: int
    has_gaps: bool

    @classmethod
    def of(cls, partners: PartnerList, device: torch.device) -> FixedRequests:
        partner = torch.from_numpy(np.asarray(partners.partner)).to(device)
        return cls(partner, partners.holders[0].n_records, partners.has_gaps)

    def request(self, rows: Tensor) -> RowRequest:
        """Return a request for all rows of the secondary, or for one per pair if those are fewer."""
        wanted = self.partner.index_select(0, rows)  # (B, K)
        n_asked = min(self.n_rows, wanted.numel())
        asked = torch.arange(n_asked, dtype=wanted.dtype, device=wanted.device)
        every = n_asked == self.n_rows
        position = wanted if every else asked.view_as(wanted)
        if self.has_gaps:
            position = position.masked_fill(wanted < 0, n_asked)
            wanted = wanted.clamp(min=0)
        return RowRequest(asked if every else wanted.flatten(), position)
