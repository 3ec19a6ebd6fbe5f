"""Metrics into the MLflow run that is active, or a new one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fedsim.errors import SettingError
from fedsim.training.history import Epoch
from fedsim.training.hooks import Hook, Outline
from fedsim.training.metrics import Metrics


class MLflow(Hook):
    """Logs the outline as parameters and every epoch as metrics."""

    def __init__(self) -> None:
        try:
            self._mlflow: Any = import_module("mlflow")
        except ImportError as error:
            raise SettingError("the MLflow hook needs the package mlflow; install it") from error

    def started(self, outline: Outline) -> None:
        self._mlflow.log_params({"epochs": outline.epochs, "device": outline.device})

    def epoch_ended(self, epoch: Epoch) -> None:
        seen = {"loss": epoch.loss, "validation_loss": epoch.validation_loss}
        seen |= {f"validation_{name}": value for name, value in epoch.validation.items()}
        self._mlflow.log_metrics(seen, step=epoch.number)

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        found = {f"{part}_{name}": value for part, seen in metrics.items() for name, value in seen.items()}
        self._mlflow.log_metrics(found)
