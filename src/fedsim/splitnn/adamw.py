"""AdamW (Loshchilov and Hutter, 2019) over a party's own parameters, by torch's fused kernel.

Weight decay acts on matrices, not on biases or learnt scalars.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.splitnn.chance import CPU
from fedsim.splitnn.optimiser import gradient, scalar
from fedsim.splitnn.schedule import Schedule, WarmCosine


@dataclass(frozen=True)
class AdamW:
    """Settings; ``over`` starts it on a party's own parameters."""

    rate: float = 1e-3
    decay: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    schedule: Schedule = field(default_factory=WarmCosine)

    def over(self, parameters: Iterable[nn.Parameter], total_steps: int) -> RunningAdamW:
        return RunningAdamW(self, list(parameters), total_steps)


class RunningAdamW:
    """AdamW with its moments."""

    def __init__(self, settings: AdamW, parameters: list[nn.Parameter], total_steps: int) -> None:
        self.settings, self.total_steps = settings, total_steps
        self.parameters: list[Tensor] = [*parameters]
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self._matrices = [place for place, parameter in enumerate(parameters) if parameter.dim() > 1]
        self._others = [place for place, parameter in enumerate(parameters) if parameter.dim() <= 1]
        device = parameters[0].device if parameters else CPU
        self._rate, self._count = scalar(device), torch.zeros((), device=device)

    def begin(self, step: int) -> None:
        self._rate.fill_(self.settings.rate * self.settings.schedule.factor(step, self.total_steps))
        self._count.fill_(step + 1)

    @torch.no_grad()
    def move(self) -> None:
        self._move(self._matrices, self.settings.decay)
        self._move(self._others, 0.0)

    def _move(self, places: list[int], decay: float) -> None:
        if not places:
            return
        beta1, beta2 = self.settings.betas
        torch._fused_adamw_(
            [self.parameters[place] for place in places],
            [gradient(self.parameters[place]) for place in places],
            [self.means[place] for place in places],
            [self.squares[place] for place in places],
            [],
            [self._count] * len(places),
            lr=self._rate,
            beta1=beta1,
            beta2=beta2,
            weight_decay=decay,
            eps=self.settings.eps,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> dict[str, list[Tensor]]:
        """The moments, by name, each in the order of the parameters."""
        return {"mean": self.means, "square": self.squares}
