"""LAMB as the authors used it (You et al., 2020): no bias correction, weight norm at most 10, a trust ratio per tensor.

One pass over memory instead of nine: torch's fused Adam kernel, run on the decayed weights with rate -1 and a step so
late that its bias correction is 1, adds m / (sqrt(v) + eps) to them and updates both moments. Nothing waits for the
device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.splitnn.chance import CPU
from fedsim.splitnn.optimiser import gradient, scalar
from fedsim.splitnn.schedule import Constant, Schedule

LATE = 1e9  # 0.999 ** LATE is zero


@dataclass(frozen=True)
class Lamb:
    """Settings; ``over`` starts it on a party's own parameters."""

    rate: float = 1e-3
    decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    greatest_norm: float = 10.0
    schedule: Schedule = field(default_factory=Constant)

    def over(self, parameters: Iterable[nn.Parameter], total_steps: int) -> RunningLamb:
        return RunningLamb(self, list(parameters), total_steps)


class RunningLamb:
    """LAMB with its moments."""

    def __init__(self, settings: Lamb, parameters: list[nn.Parameter], total_steps: int) -> None:
        self.settings, self.total_steps = settings, total_steps
        self.parameters: list[Tensor] = [*parameters]
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self._moves = [torch.empty_like(parameter) for parameter in parameters]
        self._late = [torch.full((), LATE, device=parameter.device) for parameter in parameters]
        self._rate = scalar(parameters[0].device if parameters else CPU)

    def begin(self, step: int) -> None:
        self._rate.fill_(-self.settings.rate * self.settings.schedule.factor(step, self.total_steps))

    @torch.no_grad()
    def move(self) -> None:
        if not self.parameters:
            return
        self._update_moves()
        factors = self._trust_ratios().mul_(self._rate)
        torch._foreach_addcmul_(self.parameters, self._moves, list(factors.unbind()))

    def _update_moves(self) -> None:
        """decay * parameter + m / (sqrt(v) + eps), for every parameter."""
        beta1, beta2 = self.settings.betas
        for move, parameter in zip(self._moves, self.parameters, strict=True):
            torch.mul(parameter, self.settings.decay, out=move)
        torch._fused_adam_(
            self._moves,
            [gradient(parameter) for parameter in self.parameters],
            self.means,
            self.squares,
            [],
            self._late,
            lr=-1.0,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=self.settings.eps,
            amsgrad=False,
            maximize=False,
        )

    def _trust_ratios(self) -> Tensor:
        """Norm of the weights over norm of the move for every tensor, 1 where either is zero."""
        weights = torch.stack(torch._foreach_norm(self.parameters)).clamp_(max=self.settings.greatest_norm)
        lengths = torch.stack(torch._foreach_norm(self._moves))
        return torch.where((weights > 0) & (lengths > 0), weights / lengths, torch.ones_like(weights))

    def state(self) -> dict[str, list[Tensor]]:
        """The moments, by name, each in the order of the parameters."""
        return {"mean": self.means, "square": self.squares}
