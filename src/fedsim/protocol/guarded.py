"""A secondary in this process behind the noise of one side or both, with a count of how much noise was really laid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedsim.protocol.cut_noise import CutNoise, of_step
from fedsim.splitnn.clip import clipped
from fedsim.splitnn.cut import Secondary


@dataclass(eq=False)
class Laid:
    """By how much numbers differ from what they were before the noise."""

    squares: float = 0.0
    numbers: int = 0

    def add(self, before: Tensor, after: Tensor) -> None:
        self.squares += float((after - before).double().square().sum())
        self.numbers += before.numel()

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / max(1, self.numbers))


@dataclass(eq=False, repr=False)
class Guarded:
    """A secondary behind the noise on its answers, or on the gradients sent to it."""

    party: Secondary
    answers: CutNoise | None = None
    sends: CutNoise | None = None
    laid: Laid = field(default_factory=Laid)
    _rows: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        """All that crosses unchanged is the party's own."""
        return getattr(self.party, name)

    def activations(self, rows: Tensor, step: int) -> Tensor:
        self._rows = rows
        reply = self.party.activations(rows, step)
        if self.answers is None:
            return reply
        noisy = self.answers.noisy(reply, rows.numpy(), of_step("activations", step))
        self.laid.add(reply, noisy)
        return noisy

    def descend(self, gradients: Tensor, step: int) -> None:
        if self.sends is not None and self._rows is not None:
            short = clipped(gradients, self.sends.clip)
            gradients = self.sends.protected(gradients, self._rows.numpy(), of_step("gradients", step))
            self.laid.add(short, gradients)
        self.party.descend(gradients, step)

    def infer(self, rows: Tensor) -> Tensor:
        reply = self.party.infer(rows)
        return reply if self.answers is None else self.answers.noisy(reply, rows.numpy(), "after training")
