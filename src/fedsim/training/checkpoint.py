"""Checkpoints of a whole job: every party writes its own folder, the primary last.

So what the primary has, all have. Two are kept: one that is damaged leaves the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from fedsim.errors import FileError
from fedsim.splitnn.cut import Secondary
from fedsim.splitnn.part import Part
from fedsim.splitnn.shelf import DamagedCheckpoint, Shelf
from fedsim.training.history import Epoch, History

LOSS = "epoch/loss"


@dataclass(frozen=True, eq=False)
class Progress:
    """How far a run has come: whole epochs, steps taken of the next one, and their loss summed over records.

    The sum stays the tensor it is, so that a run that goes on from it adds up to the same bits.
    """

    history: History = ()
    steps: int = 0
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))


@dataclass(frozen=True, eq=False)
class Checkpoints:
    """The primary's shelf, and the secondaries that follow its lead."""

    shelf: Shelf
    part: Part
    secondaries: Sequence[Secondary]

    def save(self, step: int, progress: Progress) -> None:
        """Write the state after ``step`` steps everywhere, then let go of all but this one and the one before."""
        for secondary in self.secondaries:
            secondary.save(step)
        before = self.shelf.steps()
        facts = {"history": [asdict(epoch) for epoch in progress.history], "steps": progress.steps}
        self.shelf.save(step, {**self.part.tensors(), LOSS: progress.loss}, facts)
        if before:
            self.shelf.forget_before(before[-1])
            for secondary in self.secondaries:
                secondary.forget_before(before[-1])

    def restore(self) -> Progress:
        """Bring every party back to the last state that all can read; to the start if nothing was ever kept."""
        steps, faults = self.shelf.steps(), []
        for step in reversed(steps):
            try:
                return self._restore(step)
            except DamagedCheckpoint as fault:
                faults.append(str(fault))
        if faults:
            raise FileError(f"no checkpoint can be read ({'; '.join(faults)}); start anew in another folder")
        return Progress()

    def _restore(self, step: int) -> Progress:
        tensors, facts = self.shelf.load(step)
        for secondary in self.secondaries:
            secondary.restore(step)
        self.part.load(tensors)
        try:
            history = tuple(Epoch(**epoch) for epoch in facts["history"])
            return Progress(history, facts.get("steps", 0), tensors.get(LOSS, torch.zeros(())))
        except (KeyError, TypeError):
            raise DamagedCheckpoint(f"the primary's checkpoint of step {step} has no history") from None
