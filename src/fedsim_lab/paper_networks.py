"""What the primary runs under the preset ``paper``: the paper's merge gate (section 4.2), and the configuration.

The merge gate is a convolution along the sorted partners, then a perceptron. Letters: B records of a batch, K partners
of a list, R outputs per pair, T outputs of the task, H channels, k kernel length, L = K + k - 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn import FedSim, methods
from fedsim.splitnn.gates import MergeShape, WeightedOutputs
from fedsim.splitnn.layers import Dropout, Perceptron
from fedsim.training import Config, MinMaxLabel
from fedsim_lab.paper_preset import PAPER


@dataclass(frozen=True)
class ConvolutionMerge:
    """A k x 1 convolution over each list ("full" padding), ReLU, dropout, one hidden layer, dropout and the score."""

    channels: int = 8
    kernel: int = 7
    hidden: int = 400
    dropout: float = 0.2

    def build(self, shape: MergeShape) -> nn.Module:
        return ConvolutionMergeNetwork(shape, self)


class Convolution(nn.Module):
    """A k x 1 kernel along the partners: (B, K, R) -> (B, H * L * R)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        if channels < 1 or kernel < 1:
            message = f"channels={channels}, kernel={kernel}; a convolution needs at least 1 of each"
            raise SettingError(message, code="empty-convolution")
        self.kernel: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, 1, channels, (kernel, 1))

    def forward(self, outputs: Tensor) -> Tensor:
        """Multiply k shifted copies of the rows by a small matrix: a 2-D convolution, five times faster on a CPU."""
        rows, step = outputs.flatten(1), outputs.shape[2]  # (B, K * R)
        last = self.kernel.weight.shape[2] - 1
        shifted = [F.pad(rows, ((last - tap) * step, tap * step)) for tap in range(last + 1)]
        kernel = self.kernel.weight[:, 0, :, 0].expand(len(rows), -1, -1)  # (B, H, k)
        bias = self.kernel.bias[None, :, None]  # type: ignore[index]
        convolved = torch.baddbmm(bias, kernel, torch.stack(shifted, dim=1))  # (B, H, L * R)
        return F.relu(convolved, inplace=True).flatten(1)


class ConvolutionMergeNetwork(nn.Module):
    """One convolution per list; their outputs are concatenated before the hidden layer."""

    def __init__(self, shape: MergeShape, sizes: ConvolutionMerge) -> None:
        super().__init__()
        self.kernels = nn.ModuleList([Convolution(sizes.channels, sizes.kernel) for _ in shape.partners])
        lengths = [k + sizes.kernel - 1 for k in shape.partners]
        self.list_widths = [sizes.channels * length * shape.outputs for length in lengths]  # H * L * R
        self.dropout = Dropout(sizes.dropout)
        inputs = sum(self.list_widths) + shape.matched
        self.perceptron = Perceptron([inputs, sizes.hidden, shape.task.outputs], sizes.dropout)

    def forward(self, lists: Sequence[WeightedOutputs], primary: Tensor, generator: torch.Generator | None) -> Tensor:
        convolved = [kernel(weighted.outputs) for kernel, weighted in zip(self.kernels, lists, strict=True)]
        parts = [self.dropout(part, generator) for part in convolved]  # each (B, H * L * R)
        parts += [self.dropout(part, generator) for weighted in lists for part in weighted.matched]
        return self.perceptron.on_parts(parts, generator).unsqueeze(1)  # (B, 1, T)


def paper_preset(method: methods.Method | None = None, *, epochs: int = 100, batch: int = 128, seed: int = 0) -> Config:
    """Return the paper's network, LAMB and min-max label, with the sizes of its dataset ``hdb``.

    Parameters
    ----------
    method
        A method other than FedSim with the paper's sizes.
    epochs, batch, seed
        As in :class:`Config`.
    """
    method = method or FedSim(merge=ConvolutionMerge())
    return Config(method, PAPER.local, PAPER.optimiser, MinMaxLabel(), epochs=epochs, batch=batch, seed=seed)
