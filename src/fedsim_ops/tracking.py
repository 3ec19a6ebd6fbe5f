"""Hooks of the training loop that log to MLflow and TensorBoard.

The estimators and the primary's party file name them by the setting ``tracking``; or pass them as ``hooks=[...]`` to
:func:`fedsim.training.train`. Each library is imported when its hook is created.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError
from fedsim.training import Epoch, Hook, TrainingOutline
from fedsim.training.data import Metrics

log = logging.getLogger(__name__)


class MLflowHook(Hook):
    """Log a training run to MLflow (package ``mlflow``, or ``mlflow-skinny``).

    The active MLflow run is used, or one is started and ended. Device, number of epochs and the other numbers of the
    configuration are logged as parameters. Every epoch logs ``loss``, ``validation_loss`` and ``validation_<metric>``
    with the epoch's number as the step; at the end ``best_validation_<metric>`` and ``test_<metric>`` are logged.

    Parameters
    ----------
    uri
        Where MLflow stores runs, such as ``http://127.0.0.1:5000``; by default as MLflow is set.
    name
        Name of the run if it is started here.

    Examples
    --------
    >>> import mlflow  # doctest: +SKIP
    >>> with mlflow.start_run():  # doctest: +SKIP
    ...     train(primary, secondaries, split, config, hooks=[MLflowHook()])
    """

    def __init__(self, uri: str | None = None, name: str | None = None) -> None:
        try:
            self._mlflow: Any = import_module("mlflow")
        except ImportError as error:
            message = "tracking by MLflow requires the package mlflow; install fedsim-vfl[tracking]"
            raise SettingError(message, code="missing-package", package="mlflow") from error
        self._uri, self._name, self._run = uri, name, ""

    def started(self, outline: TrainingOutline) -> None:
        try:
            if self._uri:
                self._mlflow.set_tracking_uri(self._uri)
            if self._run:  # training continues after a partner was restarted
                self._mlflow.start_run(run_id=self._run)
            elif self._mlflow.active_run() is None:
                self._run = self._mlflow.start_run(run_name=self._name).info.run_id
            numbers = {name: value for name, value in outline.job.items() if isinstance(value, int | float)}
            self._mlflow.log_params({**numbers, "epochs": outline.epochs, "device": outline.device})
        except self._mlflow.exceptions.MlflowException as error:
            message = f"MLflow cannot start a run ({type(error).__name__}); check tracking, or try mlflow.start_run()"
            raise SettingError(message, code="tracking-failed") from error

    def epoch_ended(self, epoch: Epoch) -> None:
        values = {"loss": epoch.loss, "validation_loss": epoch.validation_loss}
        values |= {f"validation_{name}": value for name, value in epoch.validation.items()}
        self._send(partial(self._mlflow.log_metrics, values, step=epoch.number))

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        parts = {("best_validation" if part == "validation" else part): values for part, values in metrics.items()}
        values = {f"{part}_{name}": value for part, values in parts.items() for name, value in values.items()}
        self._send(partial(self._mlflow.log_metrics, values))
        if self._run:
            self._send(self._mlflow.end_run)

    def failed(self) -> None:
        if self._run:
            self._send(partial(self._mlflow.end_run, "FAILED"))

    def _send(self, call: Callable[[], Any]) -> None:
        """Log a failure instead of ending a training of several organisations for it."""
        try:
            call()
        except self._mlflow.exceptions.MlflowException as error:
            log.warning("MLflow rejected the metrics (%s); training continues", type(error).__name__)


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
        self._folder = folder
        self._writer: Any = None
        for module in WRITER_MODULES:
            try:
                self._module: Any = import_module(module)
                break
            except ImportError:
                continue
        else:
            message = "tracking by TensorBoard requires a writer of event files; install fedsim-vfl[tracking]"
            raise SettingError(message, code="missing-package", package=WRITER_MODULES[0])

    def started(self, outline: TrainingOutline) -> None:
        self._writer = self._module.SummaryWriter(str(self._folder))

    def epoch_ended(self, epoch: Epoch) -> None:
        self._writer.add_scalar("loss/training", epoch.loss, epoch.number)
        self._writer.add_scalar("loss/validation", epoch.validation_loss, epoch.number)
        for name, value in epoch.validation.items():
            self._writer.add_scalar(f"validation/{name}", value, epoch.number)
        self._writer.flush()

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        for name, value in metrics.get("test", {}).items():
            self._writer.add_scalar(f"test/{name}", value, 0)
        self._writer.close()

    def failed(self) -> None:
        self._writer.close()


def tracking_hook(tracking: str, name: str | None = None, folder: Path | None = None) -> Hook:
    """Return the hook that the setting ``tracking`` names.

    Parameters
    ----------
    tracking
        ``tensorboard:FOLDER``, ``mlflow``, or ``mlflow:URI``.
    name
        Name of the run.
    folder
        Where the event files of ``tensorboard`` go if it names no folder.
    """
    kind, _, place = tracking.partition(":")
    if kind == "tensorboard" and (place or folder):
        return TensorBoardHook(Path(place or folder or ""))
    if kind == "mlflow":
        return MLflowHook(place or None, name)
    message = f"tracking='{kind}' is not known; give tensorboard:FOLDER, mlflow or mlflow:URI"
    raise SettingError(message, code="unknown-tracking")
