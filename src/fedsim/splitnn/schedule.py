"""How the learning rate runs over a job; every party computes it from the step number alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """A factor on the learning rate."""

    def factor(self, step: int, total_steps: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The same rate throughout, as in the paper."""

    def factor(self, step: int, total_steps: int) -> float:
        return 1.0


@dataclass(frozen=True)
class WarmCosine:
    """A straight rise over the first share of the steps, then half a cosine down to ``floor``.

    >>> [round(WarmCosine(warm=0.5, floor=0.0).factor(step, 8), 2) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.85, 0.5, 0.15]
    """

    warm: float = 0.05
    floor: float = 0.01

    def factor(self, step: int, total_steps: int) -> float:
        warm_steps = max(1, round(self.warm * total_steps))
        if step < warm_steps:
            return (step + 1) / warm_steps
        done = (step - warm_steps) / max(1, total_steps - warm_steps)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * min(1.0, done))) / 2
