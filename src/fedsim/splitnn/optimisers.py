"""Optimisers (AdamW, LAMB) and learning-rate schedules; each party has its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn.rng import CPU

# What a party's optimiser must offer. Each party has its own: no optimiser state crosses the cut


class RunningOptimiser(Protocol):
    """An optimiser at work on some parameters.

    ``begin`` puts what depends on the step number (from zero) onto the device; ``move`` depends on the device alone, so
    that a GPU can record it once and replay it.
    """

    def begin(self, step: int) -> None:
        """Set the learning rate of this step."""

    def move(self) -> None:
        """Move every parameter by its gradient."""

    def state(self) -> dict[str, list[Tensor]]:
        """All it remembers between steps, by name, each in the order of the parameters."""


class OptimiserConfig(Protocol):
    """Settings of an optimiser."""

    @property
    def rate(self) -> float: ...

    def over(self, parameters: Iterable[nn.Parameter], total_steps: int) -> RunningOptimiser: ...


def check_learning_rate(rate: Any) -> None:
    """Refuse a learning rate that is none."""
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not rate > 0:
        raise SettingError("a learning rate is a number above zero")


def device_scalar(device: torch.device) -> Tensor:
    """A number that lives on a device: float32 as CUDA's fused kernels ask, float64 on the CPU."""
    return torch.zeros((), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)


def gradient_or_zeros(parameter: Tensor) -> Tensor:
    """The gradient, zero where backpropagation did not pass."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


# How the learning rate runs over a job; every party computes it from the step number alone


class Schedule(Protocol):
    """A factor on the learning rate."""

    def factor(self, step: int, total_steps: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The same rate throughout, as in the paper."""

    def factor(self, step: int, total_steps: int) -> float:
        return 1.0


@dataclass(frozen=True)
class WarmCosine:
    """A straight rise over the first share of the steps, then half a cosine down to ``floor``.

    >>> [round(WarmCosine(warm=0.5, floor=0.0).factor(step, 8), 2) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.85, 0.5, 0.15]
    """

    warm: float = 0.05
    floor: float = 0.01

    def factor(self, step: int, total_steps: int) -> float:
        warm_steps = max(1, round(self.warm * total_steps))
        if step < warm_steps:
            return (step + 1) / warm_steps
        done = (step - warm_steps) / max(1, total_steps - warm_steps)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * min(1.0, done))) / 2


# AdamW (Loshchilov and Hutter, 2019) over a party's own parameters, by torch's fused kernel
#
# Weight decay acts on matrices, not on biases or learnt scalars.


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
        self._rate, self._count = device_scalar(device), torch.zeros((), device=device)

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
            [gradient_or_zeros(self.parameters[place]) for place in places],
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


# LAMB as the authors used it (You et al., 2020): no bias correction, weight norm at most 10, a trust ratio per tensor
#
# One pass over memory instead of nine: torch's fused Adam kernel, run on the decayed weights with rate -1 and a step so
# late that its bias correction is 1, adds m / (sqrt(v) + eps) to them and updates both moments. Nothing waits for the
# device.


LATE_STEP = 1e9  # 0.999 ** LATE is zero


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
        self._late = [torch.full((), LATE_STEP, device=parameter.device) for parameter in parameters]
        self._rate = device_scalar(parameters[0].device if parameters else CPU)

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
            [gradient_or_zeros(parameter) for parameter in self.parameters],
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
