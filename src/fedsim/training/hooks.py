"""Ready-made hooks of the training loop: a progress bar, MLflow and TensorBoard.

Pass them as ``hooks=[...]`` to :func:`fedsim.training.train`. For your own, inherit from
:class:`fedsim.training.Hook`. Each library is imported when its hook is created.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError
from fedsim.training.data import Metrics
from fedsim.training.loop import Epoch, Hook, TrainingOutline


class ProgressBar(Hook):
    """Show epochs, loss, validation metric and remaining time on a terminal; elsewhere a line per epoch."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._epochs = 0

    def started(self, outline: TrainingOutline) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        console = Console(stderr=True)
        columns = TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.fields[scores]}")
        self._epochs = outline.epochs
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(
            "training",
            total=outline.epochs * outline.steps_per_epoch,
            completed=outline.epochs_done * outline.steps_per_epoch,
            epoch=outline.epochs_done + 1,
            scores="",
        )
        self._bar.start()

    def stepped(self, step: int) -> None:
        self._bar.update(self._task, completed=step + 1)

    def epoch_ended(self, epoch: Epoch) -> None:
        metric, value = next(iter(epoch.validation.items()))
        scores = f"loss {epoch.loss:.4g}, validation {metric} {value:.4g}"
        self._bar.update(self._task, epoch=epoch.number + 1, scores=scores)
        if self._bar.disable:
            print(f"epoch {epoch.number} of {self._epochs}: {scores} ({epoch.seconds:.1f} s)", file=sys.stderr)

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        self._bar.stop()

    def failed(self) -> None:
        self._bar.stop()


class MLflowHook(Hook):
    """Log a training run to MLflow (package ``mlflow``).

    The active MLflow run is used, or a new one is started. Number of epochs and device are logged as parameters. Every
    epoch logs ``loss``, ``validation_loss`` and ``validation_<metric>`` with the epoch's number as the step; at the end
    ``validation_<metric>`` and ``test_<metric>`` of the best epoch are logged.

    Examples
    --------
    >>> import mlflow  # doctest: +SKIP
    >>> with mlflow.start_run():  # doctest: +SKIP
    ...     train(primary, secondaries, split, config, hooks=[MLflowHook()])
    """

    def __init__(self) -> None:
        try:
            self._mlflow: Any = import_module("mlflow")
        except ImportError as error:
            raise SettingError("MLflowHook requires the package mlflow; install it", code="missing-package") from error

    def started(self, outline: TrainingOutline) -> None:
        self._mlflow.log_params({"epochs": outline.epochs, "device": outline.device})

    def epoch_ended(self, epoch: Epoch) -> None:
        values = {"loss": epoch.loss, "validation_loss": epoch.validation_loss}
        values |= {f"validation_{name}": value for name, value in epoch.validation.items()}
        self._mlflow.log_metrics(values, step=epoch.number)

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        self._mlflow.log_metrics(
            {f"{part}_{name}": value for part, values in metrics.items() for name, value in values.items()}
        )


WRITER_MODULES = ("tensorboardX", "torch.utils.tensorboard")


class TensorBoardHook(Hook):
    """Write TensorBoard event files (package ``tensorboardX``, or ``tensorboard`` through torch).

    Every epoch adds the scalars ``loss/training``, ``loss/validation`` and ``validation/<metric>``; at the end
    ``test/<metric>`` is added. Show them with ``tensorboard --logdir FOLDER``.

    Parameters
    ----------
    folder
        Where the event files are written.
    """

    def __init__(self, folder: Path) -> None:
        for module in WRITER_MODULES:
            try:
                self._writer = import_module(module).SummaryWriter(str(folder))
                break
            except ImportError:
                continue
        else:
            message = "TensorBoardHook requires a writer of event files; install tensorboardX"
            raise SettingError(message, code="missing-package")

    def epoch_ended(self, epoch: Epoch) -> None:
        self._writer.add_scalar("loss/training", epoch.loss, epoch.number)
        self._writer.add_scalar("loss/validation", epoch.validation_loss, epoch.number)
        for name, value in epoch.validation.items():
            self._writer.add_scalar(f"validation/{name}", value, epoch.number)

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        for name, value in metrics.get("test", {}).items():
            self._writer.add_scalar(f"test/{name}", value, 0)
        self._writer.close()
