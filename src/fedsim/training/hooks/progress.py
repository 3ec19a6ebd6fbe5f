"""A bar with loss, metric and time left; rich is imported when the run starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsim.training.history import Epoch
from fedsim.training.hooks import Hook, Outline
from fedsim.training.metrics import Metrics


class ProgressBar(Hook):
    """Shows a run on a terminal, and nothing where no terminal is."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def started(self, outline: Outline) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        console = Console(stderr=True)
        columns = TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.fields[seen]}")
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(
            "training",
            total=outline.epochs * outline.steps_per_epoch,
            completed=outline.epochs_done * outline.steps_per_epoch,
            epoch=outline.epochs_done + 1,
            seen="",
        )
        self._bar.start()

    def stepped(self, step: int) -> None:
        self._bar.update(self._task, completed=step + 1)

    def epoch_ended(self, epoch: Epoch) -> None:
        metric, value = next(iter(epoch.validation.items()))
        seen = f"loss {epoch.loss:.4g}, validation {metric} {value:.4g}"
        self._bar.update(self._task, epoch=epoch.number + 1, seen=seen)

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        self._bar.stop()

    def failed(self) -> None:
        self._bar.stop()
