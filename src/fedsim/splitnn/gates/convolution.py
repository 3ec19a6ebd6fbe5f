"""The paper's merge gate: a convolution along the sorted partners, then a perceptron (section 4.2, "Merge Gate").

Letters: B records, K partners, R outputs per pair, H channels, k kernel length, L = K + k - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn.gates.merge import MergeShape, Weighted
from fedsim.splitnn.layers import Dropout, Perceptron, split_linear


@dataclass(frozen=True)
class ConvolutionMerge:
    """A k x 1 convolution over each list ("full" padding), ReLU, dropout, one hidden layer, dropout, the score."""

    channels: int = 8
    kernel: int = 7
    hidden: int = 400
    dropout: float = 0.2

    def build(self, shape: MergeShape) -> nn.Module:
        return ConvolvedMerge(shape, self)


class Convolution(nn.Module):
    """A k x 1 kernel along the partners: (B, K, R) -> (B, H * L * R)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        if channels < 1 or kernel < 1:
            raise SettingError(f"a convolution of {channels} channels and {kernel} rows; both are at least 1")
        self.shape = channels, kernel
        self.kernel: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, 1, channels, (kernel, 1))

    def forward(self, outputs: Tensor) -> Tensor:
        """The rows shifted k times under a small matrix: the sums of a 2-D convolution, five times faster on a CPU."""
        rows, step = outputs.flatten(1), outputs.shape[2]  # (B, K * R)
        last = self.shape[1] - 1
        shifted = [F.pad(rows, ((last - tap) * step, tap * step)) for tap in range(last + 1)]
        kernel = self.kernel.weight[:, 0, :, 0].expand(len(rows), -1, -1)  # (B, H, k)
        bias = self.kernel.bias[None, :, None]  # type: ignore[index]
        convolved = torch.baddbmm(bias, kernel, torch.stack(shifted, dim=1))  # (B, H, L * R)
        return F.relu(convolved, inplace=True).flatten(1)

    def width(self, partners: int, outputs: int) -> int:
        """How many numbers per record come out."""
        channels, kernel = self.shape
        return channels * (partners + kernel - 1) * outputs


class ConvolvedMerge(nn.Module):
    """One convolution per list; what they find stands side by side before the hidden layer."""

    def __init__(self, shape: MergeShape, sizes: ConvolutionMerge) -> None:
        super().__init__()
        kernels = [Convolution(sizes.channels, sizes.kernel) for _ in shape.partners]
        inputs = sum(kernel.width(k, shape.outputs) for kernel, k in zip(kernels, shape.partners, strict=True))
        self.kernels = nn.ModuleList(kernels)
        self.dropout = Dropout(sizes.dropout)
        self.perceptron = Perceptron([inputs, sizes.hidden, shape.task.outputs], sizes.dropout)

    def forward(self, lists: Sequence[Weighted], primary: Tensor, generator: torch.Generator | None) -> Tensor:
        found = [kernel(weighted.outputs) for kernel, weighted in zip(self.kernels, lists, strict=True)]
        parts = split_linear(self.perceptron.first, [self.dropout(part, generator) for part in found])
        return self.perceptron.rest(sum(parts[1:], start=parts[0]), generator).unsqueeze(1)  # (B, 1, T)
