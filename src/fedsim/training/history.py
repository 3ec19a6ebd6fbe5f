"""Epochs, the training log, and checkpoints of all parties of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsim.errors import FileError
from fedsim.splitnn.checkpoint_store import CheckpointStore, DamagedCheckpoint
from fedsim.splitnn.party_model import PartyModel
from fedsim.splitnn.secondary_api import Secondary
from fedsim.training.metrics import Metrics, selection_key

# What happened in training, as plain records and as lines of JSON


@dataclass(frozen=True)
class Epoch:
    """One epoch: mean training loss, validation loss and metrics, how long it took, whether it is the best so far."""

    number: int  # counts from 1
    loss: float
    validation_loss: float
    validation: Metrics
    seconds: float
    best: bool


History = tuple[Epoch, ...]


def best_epoch(history: History) -> Epoch | None:
    """The last epoch that was better than all before it."""
    return next((epoch for epoch in reversed(history) if epoch.best), None)


def is_better(metrics: Metrics, history: History) -> bool:
    """Whether an epoch with these validation metrics would be the best so far."""
    best = best_epoch(history)
    return best is None or selection_key(metrics) > selection_key(best.validation)


def should_stop(history: History, epochs: int, patience: int | None) -> bool:
    """All epochs done, or too many without a better one."""
    best = best_epoch(history)
    waited = len(history) - best.number if best else 0
    return len(history) >= epochs or (patience is not None and waited >= patience)


@dataclass(frozen=True)
class TrainingLog:
    """A file with one JSON object per line: the start, every epoch, the end."""

    path: Path

    def begin(self, start: Mapping[str, Any], history: Sequence[Epoch]) -> None:
        """Write the file anew up to where a resumed run stands: a line lost to a kill comes back, none comes twice."""
        lines = [_json_line("start", start), *(_json_line("epoch", asdict(epoch)) for epoch in history)]
        part = self.path.with_name(f".{self.path.name}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text("".join(lines))
            part.replace(self.path)
        except OSError as error:
            raise _write_error(self.path, error) from error

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Append one line and flush it to the disk."""
        try:
            with self.path.open("a") as file:
                file.write(_json_line(event, facts))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _write_error(self.path, error) from error


def _json_line(event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"event": event, **facts}) + "\n"


def _write_error(path: Path, error: OSError) -> FileError:
    return FileError(f"cannot write {path}: {error.strerror}; check folder and space")


# Checkpoints of a whole job: every party writes its own folder, the primary last
#
# So what the primary has, all have. Two are kept: one that is damaged leaves the one before it.


EPOCH_LOSS = "epoch/loss"


@dataclass(frozen=True, eq=False)
class TrainingProgress:
    """How far a run has come: whole epochs, steps taken of the next one, and their loss summed over records.

    The sum stays the tensor it is, so that a run that goes on from it adds up to the same bits.
    """

    history: History = ()
    steps: int = 0
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))


@dataclass(frozen=True, eq=False)
class RunCheckpoints:
    """The primary's shelf, and the secondaries that follow its lead."""

    checkpoint_store: CheckpointStore
    part: PartyModel
    secondaries: Sequence[Secondary]

    def save(self, step: int, progress: TrainingProgress) -> None:
        """Write the state after ``step`` steps everywhere, then let go of all but this one and the one before."""
        for secondary in self.secondaries:
            secondary.save(step)
        before = self.checkpoint_store.steps()
        facts = {"history": [asdict(epoch) for epoch in progress.history], "steps": progress.steps}
        self.checkpoint_store.save(step, {**self.part.tensors(), EPOCH_LOSS: progress.loss}, facts)
        if before:
            self.checkpoint_store.forget_before(before[-1])
            for secondary in self.secondaries:
                secondary.forget_before(before[-1])

    def restore(self) -> TrainingProgress:
        """Bring every party back to the last state that all can read; to the start if nothing was ever kept."""
        steps, faults = self.checkpoint_store.steps(), []
        for step in reversed(steps):
            try:
                return self._restore(step)
            except DamagedCheckpoint as fault:
                faults.append(str(fault))
        if faults:
            raise FileError(f"no checkpoint can be read ({'; '.join(faults)}); start anew in another folder")
        return TrainingProgress()

    def _restore(self, step: int) -> TrainingProgress:
        tensors, facts = self.checkpoint_store.load(step)
        for secondary in self.secondaries:
            secondary.restore(step)
        self.part.load(tensors)
        try:
            history = tuple(Epoch(**epoch) for epoch in facts["history"])
            return TrainingProgress(history, facts.get("steps", 0), tensors.get(EPOCH_LOSS, torch.zeros(())))
        except (KeyError, TypeError):
            raise DamagedCheckpoint(f"the primary's checkpoint of step {step} has no history") from None
