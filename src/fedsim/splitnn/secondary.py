"""A secondary party in this process: its features, its local network, its optimiser.

Letters: U distinct rows, C width of the cut layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedsim.errors import SettingError
from fedsim.splitnn.features import FeatureTensors
from fedsim.splitnn.part import Part
from fedsim.splitnn.shelf import Shelf

ROWS_AT_ONCE = 65536  # of inference


@dataclass(eq=False)
class LocalSecondary:
    """Implements :class:`fedsim.splitnn.cut.Secondary`; without a shelf it keeps no checkpoints."""

    name: str
    width: int
    part: Part
    features: FeatureTensors
    shelf: Shelf | None = None
    _pending: tuple[int, Tensor] | None = field(default=None, init=False)

    @property
    def n_records(self) -> int:
        return len(self.features)

    @property
    def pending_shape(self) -> tuple[int, ...] | None:
        """Shape (U, C) of the activations that wait for their gradients, if any do."""
        return None if self._pending is None else tuple(self._pending[1].shape)

    def begin(self, total_steps: int) -> None:
        self.part.start(total_steps)
        self._pending = None
        if self.shelf:
            self.shelf = replace(self.shelf, job={**self.shelf.job, "steps": total_steps})

    def ask(self, rows: Tensor, step: int | None) -> None:
        """Nothing to do: whoever asks waits in this very process."""

    def activations(self, rows: Tensor, step: int) -> Tensor:
        self.part.begin(step)
        outputs: Tensor = self.part.network(self.features.take(rows), self.part.dropout)  # (U, C)
        self._pending = step, outputs
        return outputs.detach()

    def descend(self, gradients: Tensor, step: int) -> None:
        asked, outputs = self._pending or (None, gradients)
        if asked != step:
            raise SettingError(
                f"{self.name} was given gradients of step {step}, but its activations are of step {asked}; "
                "ask for activations first"
            )
        self._pending = None
        if outputs.requires_grad:
            outputs.backward(gradients)
        self.part.descend()

    @torch.no_grad()
    def infer(self, rows: Tensor) -> Tensor:
        pieces = [self.part.network(self.features.take(piece)) for piece in rows.split(ROWS_AT_ONCE)]
        return torch.cat(pieces) if pieces else torch.empty(0, self.width)

    def keep_best(self) -> None:
        self.part.keep_best()

    def use_best(self) -> None:
        self.part.use_best()

    def save(self, step: int) -> None:
        self._kept().save(step, self.part.tensors(), {})

    def restore(self, step: int) -> None:
        self.part.load(self._kept().load(step)[0])

    def forget_before(self, step: int) -> None:
        self._kept().forget_before(step)

    def _kept(self) -> Shelf:
        if self.shelf is None:
            raise SettingError(f"{self.name} keeps no checkpoints; give it a folder, or train without one")
        return self.shelf
