"""The primary's side of a step and of a prediction, written once against the cut.

Letters: B records, T outputs of the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim.splitnn.features import FeatureTensors
from fedsim.splitnn.links import Batch
from fedsim.splitnn.part import Part
from fedsim.splitnn.tasks import Task
from fedsim.training.exchange import PartnerList, Question, Rows
from fedsim.types import Floats

RECORDS_AT_ONCE = 2048  # of prediction


@dataclass(frozen=True, eq=False)
class Records:
    """Primary records, resident on the device, with their lists of partners."""

    features: FeatureTensors
    lists: tuple[PartnerList, ...]


@dataclass(frozen=True, eq=False)
class Primary:
    """The party with the labels: its part of the model and what it is learning."""

    part: Part
    task: Task

    def descend(self, records: Records, labels: Tensor, asked: Asked, step: int) -> Tensor:
        """One training step for all parties; the loss stays on the device."""
        ask_all(records, asked.questions, step)
        self.part.begin(step)
        replies = [
            [holder.activations(question.rows, step).requires_grad_() for holder in partners.holders]
            for partners, question in zip(records.lists, asked.questions, strict=True)
        ]
        scores = self.part.network(batch_of(records, asked, replies), self.part.dropout)  # (B, opinions, T)
        loss = self.task.loss(scores, labels.index_select(0, asked.rows))
        loss.backward()  # Algorithm 1, line 12
        for partners, parts in zip(records.lists, replies, strict=True):
            for holder, part in zip(partners.holders, parts, strict=True):
                holder.descend(torch.zeros_like(part) if part.grad is None else part.grad, step)  # lines 14-15
        self.part.descend()  # line 13
        return loss.detach()

    @torch.no_grad()
    def predict(self, records: Records, rows: Rows) -> tuple[Floats, Tensor]:
        """Predictions (n, T) and scores of these records; every distinct partner row is asked for once."""
        questions, replies = _inferred(records, rows)
        numbers = torch.from_numpy(rows).to(self.part.device)
        scores = []
        for first in range(0, len(rows), RECORDS_AT_ONCE):
            here = slice(first, first + RECORDS_AT_ONCE)
            asked = Asked(numbers[here], [Question(question.rows, question.position[here]) for question in questions])
            scores.append(self.part.network(batch_of(records, asked, replies)))
        everything = torch.cat(scores)
        return self.task.predict(everything).double().cpu().numpy().astype(np.float64), everything

    @torch.no_grad()
    def batch(self, records: Records, rows: Rows) -> Batch:
        """These records as the network sees them when nothing is dropped."""
        questions, replies = _inferred(records, rows)
        return batch_of(records, Asked(torch.from_numpy(rows).to(self.part.device), questions), replies)


@dataclass(frozen=True, eq=False)
class Asked:
    """The records of a batch and what they ask of every list."""

    rows: Tensor  # (B,)
    questions: Sequence[Question]


def ask_all(records: Records, questions: Sequence[Question], step: int | None) -> None:
    """Let every holder of every list begin before the first answer is waited for."""
    for partners, question in zip(records.lists, questions, strict=True):
        for holder in partners.holders:
            holder.ask(question.rows, step)


def batch_of(records: Records, asked: Asked, replies: Sequence[Sequence[Tensor]]) -> Batch:
    """The records of a batch with what the holders of every list replied."""
    branches = [
        partners.branch(asked.rows, question.position, parts)
        for partners, question, parts in zip(records.lists, asked.questions, replies, strict=True)
    ]
    return Batch(records.features.take(asked.rows), branches)


def _inferred(records: Records, rows: Rows) -> tuple[list[Question], list[list[Tensor]]]:
    questions = [next(partners.questions([rows])) for partners in records.lists]
    ask_all(records, questions, None)
    replies = [
        [holder.infer(question.rows) for holder in partners.holders]
        for partners, question in zip(records.lists, questions, strict=True)
    ]
    return questions, replies
