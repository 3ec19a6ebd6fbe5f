"""What every party runs under the preset ``paper``: the authors' local network, and LAMB.

A secondary imports this module, so nothing here is above the cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from fedsim.splitnn.layers import Local
from fedsim.splitnn.party_model import Moments, Schedule
from fedsim.splitnn.secondary_model import Preset
from fedsim_lab.lamb_kernel import start_kernels


@dataclass(frozen=True)
class Constant:
    """The same rate throughout, as in the paper."""

    def factor(self, step: int, total_steps: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Lamb:
    """LAMB as the authors used it (You et al., 2020): no bias correction, a trust ratio per tensor."""

    rate: float = 1e-3
    decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    greatest_norm: float = 10.0
    schedule: Schedule = field(default_factory=Constant)

    def start(self, parameters: Iterable[nn.Parameter], total_steps: int) -> RunningLamb:
        return RunningLamb(self, parameters, total_steps)


class RunningLamb(Moments):
    """LAMB in one pass over memory instead of nine, without waiting for the device.

    torch's fused Adam kernel, run on the decayed weights with rate -1 and a step so late that its bias correction is 1,
    adds m / (sqrt(v) + eps) to them and updates both moments. CUDA devices use a kernel of our own.
    """

    def __init__(self, settings: Lamb, parameters: Iterable[nn.Parameter], total_steps: int) -> None:
        super().__init__(settings, parameters, total_steps)
        self.greatest_norm = settings.greatest_norm
        self._kernels = start_kernels(self) if self.has_kernel else []
        if not self._kernels:
            self._moves = [torch.empty_like(parameter) for parameter in self.parameters]
            self._late = torch.full((), 1e9, device=self.device)  # 0.999 ** 1e9 is zero

    @property
    def has_kernel(self) -> bool:
        return self.device.type == "cuda" and torch.version.cuda is not None

    @torch.no_grad()
    def step(self) -> None:
        for kernel in self._kernels:
            kernel.step(self.rate)
        if self.parameters and not self._kernels:
            self._step()

    def _step(self) -> None:
        for move, parameter in zip(self._moves, self.parameters, strict=True):
            torch.mul(parameter, self.settings.decay, out=move)
        every = range(len(self.parameters))
        self.fused(torch._fused_adam_, every, self._moves, self._late, lr=-1.0, weight_decay=0.0)
        # The trust ratio of a tensor is the norm of its weights divided by the norm of its update, or 1 if either is 0.
        weights = torch.stack(torch._foreach_norm(self.parameters)).clamp_(max=self.greatest_norm)
        lengths = torch.stack(torch._foreach_norm(self._moves))
        ratio = torch.where((weights > 0) & (lengths > 0), weights / lengths, torch.ones_like(weights))
        torch._foreach_addcmul_(self.parameters, self._moves, list(ratio.mul_(-self.rate).unbind()))


PAPER = Preset(Local(hidden=(200,), cut=100), Lamb(rate=1e-3, decay=1e-4), "fedsim_lab.paper_networks:paper_preset")
