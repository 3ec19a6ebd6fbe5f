"""The primary's hook that reports every epoch to NVFlare's server."""

from collections.abc import Mapping

from nvflare.client.tracking import SummaryWriter

from fedsim.training import Epoch, Hook
from fedsim_nvflare.components import EPOCHS_TAG


class EpochReporter(Hook):
    """Reports the number of every finished epoch to NVFlare's server.

    Parameters
    ----------
    metrics
        Whether to report the validation metrics too.
    """

    def __init__(self, *, metrics: bool) -> None:
        self._writer, self._metrics = SummaryWriter(), metrics

    def epoch_ended(self, epoch: Epoch) -> None:
        values: Mapping[str, float] = epoch.validation if self._metrics else {}
        for name, value in {
            EPOCHS_TAG: epoch.number,
            **{f"validation_{name}": v for name, v in values.items()},
        }.items():
            self._writer.add_scalar(name, float(value), global_step=epoch.number)
