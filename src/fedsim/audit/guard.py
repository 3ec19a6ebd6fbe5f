"""A secondary behind the noise of one side, with a count of how much noise was really laid.

The mechanism is the one the parties use: where it lays less than it says, that is found here, whatever the attacks
achieve. Whether a party's process calls it is for the tests of the parties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedsim.attack.finding import Adversary, Estimate, Finding, timed
from fedsim.protocol.cut_noise import CutNoise, of_step
from fedsim.splitnn.clip import clipped
from fedsim.splitnn.cut import Secondary

DOUBT = 4.0  # deviations of chance


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


@timed
def missing_noise(laid: Laid, promised: float, who: Adversary, what: str) -> Finding:
    """How much of the promised deviation is not there: a mechanism left out, not an attack."""
    missing = 1.0 - laid.deviation / promised
    doubt = DOUBT / math.sqrt(2.0 * laid.numbers) if laid.numbers else 0.0
    measure, knew = "share of the promised noise that is missing", "what was sent, before and after the noise"
    return Finding(f"noise left out of {what}", who, measure, within(missing, doubt), 0.0, laid.numbers, knew)


def within(missing: float, doubt: float) -> Estimate:
    """A share and the doubt about it, as shares can be."""
    low, value, high = (min(1.0, max(0.0, missing + step)) for step in (-doubt, 0.0, doubt))
    return Estimate(value, low, high)
