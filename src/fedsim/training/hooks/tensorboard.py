"""TensorBoard event files, written by tensorboardX or, failing that, by torch's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError
from fedsim.training.history import Epoch
from fedsim.training.hooks import Hook
from fedsim.training.metrics import Metrics

WRITERS = ("tensorboardX", "torch.utils.tensorboard")


class TensorBoard(Hook):
    """One scalar per epoch for loss and every metric."""

    def __init__(self, folder: Path) -> None:
        self._writer = _writer_class()(str(folder))

    def epoch_ended(self, epoch: Epoch) -> None:
        self._writer.add_scalar("loss/training", epoch.loss, epoch.number)
        self._writer.add_scalar("loss/validation", epoch.validation_loss, epoch.number)
        for name, value in epoch.validation.items():
            self._writer.add_scalar(f"validation/{name}", value, epoch.number)

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        for name, value in metrics.get("test", {}).items():
            self._writer.add_scalar(f"test/{name}", value, 0)
        self._writer.close()


def _writer_class() -> Any:
    for module in WRITERS:
        try:
            return import_module(module).SummaryWriter
        except ImportError:
            continue
    raise SettingError("the TensorBoard hook needs a writer; install tensorboardX")
