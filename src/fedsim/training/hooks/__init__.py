"""Watch a run without changing it: progress bars, trackers, early stops of your own (raise to end the run)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fedsim.training.history import Epoch
from fedsim.training.metrics import Metrics


@dataclass(frozen=True)
class Outline:
    """What is about to run; ``job`` is the configuration as plain values."""

    epochs: int
    steps_per_epoch: int
    epochs_done: int
    device: str
    job: Mapping[str, Any]


class Hook(Protocol):
    """Called by the training loop; inherit and override what you need."""

    def started(self, outline: Outline) -> None:
        """Before the first step."""
        return

    def stepped(self, step: int) -> None:
        """After every training step; steps count from zero."""
        return

    def epoch_ended(self, epoch: Epoch) -> None:
        """After validation and checkpoint."""
        return

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        """After the test, with the metrics of every part of the split."""
        return

    def failed(self) -> None:
        """Instead of ``ended`` where the run was broken off."""
        return
