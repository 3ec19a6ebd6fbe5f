"""What crossed the cut, kept for the attacks on it.

Letters: U distinct rows, C width of the cut layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fedsim.errors import InputError
from fedsim.splitnn.cut import Secondary
from fedsim.types import Floats, Integers


@dataclass(frozen=True, eq=False, repr=False)
class Crossing:
    """One training step: rows asked for, activations given, gradients sent back."""

    step: int
    rows: Integers  # (U,)
    activations: Floats  # (U, C)
    gradients: Floats  # (U, C)


@dataclass(eq=False, repr=False)
class Eavesdropper:
    """A secondary that notes what crosses and changes nothing; ``party`` does the work.

    ``first_step`` leaves out the beginning of training, where gradients are long but say little.
    """

    party: Secondary
    first_step: int = 0
    crossings: list[Crossing] = field(default_factory=list)
    _asked: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    def __getattr__(self, name: str) -> Any:
        """All that is not listened to is the party's own."""
        return getattr(self.party, name)

    def activations(self, rows: Tensor, step: int) -> Tensor:
        reply = self.party.activations(rows, step)
        self._asked = rows, reply
        return reply

    def descend(self, gradients: Tensor, step: int) -> None:
        if self._asked and step >= self.first_step:
            rows, reply = (_array(tensor) for tensor in self._asked)
            self.crossings.append(Crossing(step, rows.astype(np.int64), reply, _array(gradients)))
        self._asked = None
        self.party.descend(gradients, step)


def mean_by_row(rows: Integers, values: Floats) -> tuple[Integers, Floats]:
    """Distinct rows and the mean of their values: fresh noise averages out over the steps in which a row was sent.

    >>> [part.tolist() for part in mean_by_row(np.array([4, 2, 4]), np.array([[1.0], [5.0], [3.0]]))]
    [[2, 4], [[5.0], [2.0]]]
    """
    if not len(rows):
        raise InputError("nothing crossed the cut; train at least one step")
    distinct, place, count = np.unique(rows, return_inverse=True, return_counts=True)
    total = np.zeros((len(distinct), values.shape[1]))
    np.add.at(total, place, values)
    return distinct, total / count[:, None]


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy().copy()
