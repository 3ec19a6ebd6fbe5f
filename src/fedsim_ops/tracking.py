"""A hook of the training loop that logs to TensorBoard.

The estimators and the primary's party file name them by the setting ``tracking``; or pass them as ``hooks=[...]`` to
:func:`fedsim.training.train`. Each library is imported when its hook is created.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError
from fedsim.training import Epoch, Hook, TrainingOutline
from fedsim.training.data import Metrics

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


def tracking_hook(tracking: str, folder: Path | None = None) -> Hook:
    """Return the hook that the setting ``tracking`` names.

    Parameters
    ----------
    tracking
        ``tensorboard:FOLDER``, or ``tensorboard`` if a folder is given.
    folder
        Where the event files go if the setting names no folder.
    """
    kind, _, place = tracking.partition(":")
    if kind == "tensorboard" and (place or folder):
        return TensorBoardHook(Path(place or folder or ""))
    message = f"tracking='{kind}' is not known; give tensorboard:FOLDER"
    raise SettingError(message, code="unknown-tracking")
