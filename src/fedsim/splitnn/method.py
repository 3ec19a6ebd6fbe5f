"""What a method is: which partners it uses, what runs below the cut, and the network above it.

A method is a frozen description; ``build`` turns it into the primary's module. To add one: a file in ``methods/``, a
line in its ``__init__`` and a line in ``tests/contract/test_method.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from torch import nn

from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.links import BranchShape
from fedsim.splitnn.local import Bare, Local
from fedsim.splitnn.tasks import Task


class Partners(Enum):
    """What a method asks of the lists."""

    NONE = "no secondary takes part"
    EVERY = "every record has K partners"
    SOME = "a record may have none, written as row -1"


@dataclass(frozen=True, eq=False)
class Blueprint:
    """What the primary's network is built for."""

    features: Features  # the primary's training rows
    local: Local
    branches: tuple[BranchShape, ...]
    task: Task


class Method(Protocol):
    """A way to learn from linked records; its module maps (Batch, generator) to scores (B, opinions, outputs)."""

    @property
    def partners(self) -> Partners: ...

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        """The partners it uses, in its order; done once, before training and before prediction."""

    def below(self, local: Local) -> Local | Bare:
        """What the secondaries run, given what the job has for all parties."""

    def build(self, plan: Blueprint) -> nn.Module:
        """The primary's network, its weights not drawn yet."""
