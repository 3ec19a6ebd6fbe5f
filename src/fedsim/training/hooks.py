"""Hooks of the training loop: progress bar, MLflow, TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError
from fedsim.training.labels import Metrics
from fedsim.training.loop import Epoch, Hook, TrainingOutline

# A bar with loss, metric and time left; rich is imported when the run starts


class ProgressBar(Hook):
    """Shows a run on a terminal, and nothing where no terminal is."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def started(self, outline: TrainingOutline) -> None:
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


# Metrics into the MLflow run that is active, or a new one


class MLflowHook(Hook):
    """Logs the outline as parameters and every epoch as metrics."""

    def __init__(self) -> None:
        try:
            self._mlflow: Any = import_module("mlflow")
        except ImportError as error:
            raise SettingError("the MLflow hook needs the package mlflow; install it") from error

    def started(self, outline: TrainingOutline) -> None:
        self._mlflow.log_params({"epochs": outline.epochs, "device": outline.device})

    def epoch_ended(self, epoch: Epoch) -> None:
        seen = {"loss": epoch.loss, "validation_loss": epoch.validation_loss}
        seen |= {f"validation_{name}": value for name, value in epoch.validation.items()}
        self._mlflow.log_metrics(seen, step=epoch.number)

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        found = {f"{part}_{name}": value for part, seen in metrics.items() for name, value in seen.items()}
        self._mlflow.log_metrics(found)


# TensorBoard event files, written by tensorboardX or, failing that, by torch's own writer


WRITER_MODULES = ("tensorboardX", "torch.utils.tensorboard")


class TensorBoardHook(Hook):
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
    for module in WRITER_MODULES:
        try:
            return import_module(module).SummaryWriter
        except ImportError:
            continue
    raise SettingError("the TensorBoard hook needs a writer; install tensorboardX")
