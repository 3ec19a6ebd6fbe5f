"""The interface at the cut: everything that the primary can request from a secondary.

Only three things cross while training: distinct row numbers out, activations in, gradients out. Weights, optimiser and
chance stay on their side; the step number lets each side draw and schedule by itself and go back to a checkpoint.

An attempt at a job begins with ``begin``, then ``restore`` if there is a checkpoint. A step is ``ask``,
``activations``, ``descend``; a prediction is ``ask``, ``infer``. Tensors come and go on the device of the rows.

Letters: U distinct rows, C width of the cut layer.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Secondary(Protocol):
    """A party below the cut, as the primary sees it."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int:
        """C; a party elsewhere may tell it, and its number of records, no sooner than in ``begin``."""

    @property
    def n_records(self) -> int: ...

    def begin(self, total_steps: int) -> None:
        """Start anew with drawn weights, whatever an earlier attempt left; ``restore`` or step 0 comes next."""

    def ask(self, rows: Tensor, step: int | None) -> None:
        """These rows are fetched next, for this training step or (none) by ``infer``: who is elsewhere begins now."""

    def activations(self, rows: Tensor, step: int) -> Tensor:
        """Cut layer of these distinct rows, (U,) -> (U, C), for training step ``step``."""

    def descend(self, gradients: Tensor, step: int) -> None:
        """Gradients (U, C) of the activations given last; the secondary finishes the step by itself."""

    def infer(self, rows: Tensor) -> Tensor:
        """Cut layer of these distinct rows with nothing dropped and nothing remembered."""

    def keep_best(self) -> None:
        """Remember the weights as they are: this epoch is the best so far."""

    def use_best(self) -> None:
        """Go back to the weights remembered last."""

    def save(self, step: int) -> None:
        """Write a checkpoint of the state after ``step`` steps; it is on the disk when this returns."""

    def restore(self, step: int) -> None:
        """Go back to the checkpoint of ``step``; raises DamagedCheckpoint where it cannot be read."""

    def forget_before(self, step: int) -> None:
        """Checkpoints older than this are no longer needed by anyone."""
