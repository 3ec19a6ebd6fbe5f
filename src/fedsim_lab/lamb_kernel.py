"""LAMB in two launches on a CUDA device; torch's kernels use 65,536 weights per block, too many for a small network."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsim.errors import DeviceError
from fedsim_lab import nvrtc

if TYPE_CHECKING:
    from fedsim_lab.paper_preset import RunningLamb

log = logging.getLogger("fedsim.lab")

MOST_TENSORS = 32  # per launch: their pointers are its arguments
THREADS = 256
PIECE = 2048  # weights per block


@cache
def compile_kernels(device: torch.device) -> nvrtc.Module:
    """Return the kernels of ``lamb.cu`` for a device, compiled once per process."""
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}", f"-DMOST_TENSORS={MOST_TENSORS}", f"-DTHREADS={THREADS}"]
    source = Path(__file__).with_name("lamb.cu").read_text(encoding="utf-8")
    return nvrtc.Module(nvrtc.compile_source(nvrtc.load_compiler(str(torch.version.cuda)), source, options))


def launch(device: torch.device, name: str, blocks: int, *structures: Sequence[Tensor]) -> None:
    """Start a kernel of ``lamb.cu``."""
    stream = torch.cuda.current_stream(device).cuda_stream
    compile_kernels(device).launch(name, (blocks, 1), (THREADS, 1), structures, shared=0, stream=stream)


class LambKernel:
    """LAMB steps for up to MOST_TENSORS tensors, which must be float32, contiguous and on one device.

    ``settings`` holds the decay, both betas, eps and the maximum weight norm.
    """

    def __init__(
        self, weights: Sequence[Tensor], means: Sequence[Tensor], squares: Sequence[Tensor], settings: Tensor
    ) -> None:
        self.weights, self.moments, self.settings = weights, (means, squares), settings
        self.device = settings.device
        self.moves = [torch.empty_like(tensor) for tensor in weights]
        pieces, ranges = list[tuple[int, int, int, int]](), list[tuple[int, int]]()
        for place, tensor in enumerate(weights):
            size, first = tensor.numel(), len(pieces)
            pieces += [(place, start, min(start + PIECE, size), 0) for start in range(0, size, PIECE)]
            ranges.append((first, len(pieces)))
        self.pieces = torch.tensor(pieces, dtype=torch.int32, device=self.device)
        self.ranges = torch.tensor(ranges, dtype=torch.int32, device=self.device)
        self.sums = torch.empty(len(pieces), 2, device=self.device)
        self._null = torch.empty(0, device=self.device)  # its address is zero

    def step(self, rate: Tensor) -> None:
        """Update every weight; a tensor without a gradient is updated by its moments and decay only."""
        gradients = [self._null if tensor.grad is None else tensor.grad.contiguous() for tensor in self.weights]
        padding = [self._null] * (MOST_TENSORS - len(gradients))
        columns = (self.weights, gradients, *self.moments, self.moves)
        tensors = [tensor for column in columns for tensor in (*column, *padding)]
        plan = (self.pieces, self.ranges, self.sums, self.settings, rate)
        for kernel in ("lamb_move", "lamb_step"):
            launch(self.device, kernel, len(self.pieces), tensors, plan)


def start_kernels(optimiser: RunningLamb) -> list[LambKernel]:
    """Return the kernels for all parameters; an empty list if they cannot be compiled, which is only slower."""
    try:
        compile_kernels(optimiser.device)
    except DeviceError as fault:
        log.warning("LAMB falls back to torch's slower kernels: %s", fault)
        return []
    own = optimiser.settings
    numbers = torch.tensor([own.decay, *own.betas, own.eps, optimiser.greatest_norm], device=optimiser.device)
    groups = [slice(first, first + MOST_TENSORS) for first in range(0, len(optimiser.parameters), MOST_TENSORS)]
    return [LambKernel(optimiser.parameters[of], optimiser.means[of], optimiser.squares[of], numbers) for of in groups]
