"""The training loop: epochs of batches, validation, the best epoch kept, patience, checkpoints, hooks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import SettingError
from fedsim.splitnn.cut import Secondary
from fedsim.training.checkpoint import Checkpoints, Progress
from fedsim.training.config import Config
from fedsim.training.exchange import Rows
from fedsim.training.graphed import Descend, descend_by
from fedsim.training.history import Epoch, History, Journal, has_ended, is_better
from fedsim.training.hooks import Hook
from fedsim.training.labels import Target
from fedsim.training.metrics import Metrics
from fedsim.training.primary import Asked, Primary, Records
from fedsim.types import Floats, Split


@dataclass(frozen=True, eq=False)
class Job:
    """All that takes part in a run."""

    config: Config
    target: Target
    split: Split
    labels: Rows  # as the user gave them
    records: Records
    primary: Primary
    secondaries: Sequence[Secondary]
    checkpoints: Checkpoints | None = None
    journal: Journal | None = None
    hooks: Sequence[Hook] = ()
    clock: Callable[[], float] = time.perf_counter
    scaled: Tensor = field(init=False)
    descend: Descend = field(init=False)

    def __post_init__(self) -> None:
        scaled = torch.from_numpy(self.target.inwards(self.labels)).to(self.primary.part.device)
        object.__setattr__(self, "scaled", scaled)
        object.__setattr__(self, "descend", descend_by(self.primary, self.records, scaled, self.config.batch))

    @property
    def steps_per_epoch(self) -> int:
        return self.config.steps_per_epoch(len(self.split.train))

    def is_due(self, taken: int) -> bool:
        """Whether a checkpoint follows these steps of an epoch; after the last one the epoch's own does."""
        every = self.config.save_steps
        return every is not None and taken % every == 0 and taken < self.steps_per_epoch


def run(job: Job, progress: Progress) -> History:
    """Train from there to the end, and leave every party with its best weights."""
    while not has_ended(progress.history, job.config.epochs, job.config.patience):
        progress = Progress((*progress.history, _epoch(job, progress)))
        _keep(job, progress)
        for hook in job.hooks:
            hook.epoch_ended(progress.history[-1])
    job.primary.part.use_best()
    for secondary in job.secondaries:
        secondary.use_best()
    return progress.history


def _keep(job: Job, progress: Progress) -> None:
    """A checkpoint where one is due after an epoch, and a line in the journal."""
    ended = has_ended(progress.history, job.config.epochs, job.config.patience)
    if job.checkpoints and (ended or len(progress.history) % job.config.save_every == 0):
        job.checkpoints.save(len(progress.history) * job.steps_per_epoch, progress)
    if job.journal:
        job.journal.add("epoch", asdict(progress.history[-1]))


def measure(job: Job, rows: Rows) -> tuple[Floats, Metrics, float]:
    """Predictions in the user's terms, their metrics and the loss, for some records."""
    predictions, scores = job.primary.predict(job.records, rows)
    numbers = torch.from_numpy(rows).to(job.scaled.device)
    loss = job.target.task.loss(scores, job.scaled.index_select(0, numbers))
    found = job.target.outwards(predictions)
    return found, job.target.measure(found, job.labels[rows]), float(loss)


def _epoch(job: Job, progress: Progress) -> Epoch:
    began, history = job.clock(), progress.history
    loss = float(_steps(job, progress)) / len(job.split.train)
    _, metrics, validation_loss = measure(job, job.split.validation)
    if not math.isfinite(loss + validation_loss):
        raise SettingError(
            f"the loss is no longer finite in epoch {len(history) + 1}; choose a learning rate below "
            f"{job.config.optimiser.rate}"
        )
    best = is_better(metrics, history)
    if best:
        job.primary.part.keep_best()
        for secondary in job.secondaries:
            secondary.keep_best()
    return Epoch(len(history) + 1, loss, validation_loss, metrics, job.clock() - began, best)


def _steps(job: Job, progress: Progress) -> Tensor:
    """The steps that are left of an epoch; gives the loss of all its steps, summed over records."""
    epoch, total = len(progress.history), progress.loss.to(job.scaled.device, copy=True)
    for taken, asked in enumerate(batches(job, epoch, progress.steps), start=progress.steps):
        step = epoch * job.steps_per_epoch + taken
        total += job.descend(asked, step) * len(asked.rows)
        if job.checkpoints and job.is_due(taken + 1):
            job.checkpoints.save(step + 1, Progress(progress.history, taken + 1, total))
        for hook in job.hooks:
            hook.stepped(step)
    return total


def batches(job: Job, epoch: int, first: int = 0) -> Iterator[Asked]:
    """The training records in this epoch's order, with what each batch from the first asks of every list."""
    order = torch.randperm(len(job.split.train), generator=job.primary.part.chance.generator("batches", epoch))
    rows = np.asarray(job.split.train)[order.numpy()][first * job.config.batch :]
    parts = np.split(rows, range(job.config.batch, len(rows), job.config.batch))
    numbers = torch.from_numpy(rows).to(job.scaled.device).split(job.config.batch)
    questions = [partners.questions(parts) for partners in job.records.lists]
    for place in numbers:
        yield Asked(place, [next(question) for question in questions])
