"""What a party's optimiser must offer. Each party has its own: no optimiser state crosses the cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.errors import SettingError


class Running(Protocol):
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


class Optimiser(Protocol):
    """Settings of an optimiser."""

    @property
    def rate(self) -> float: ...

    def over(self, parameters: Iterable[nn.Parameter], total_steps: int) -> Running: ...


def check_rate(rate: Any) -> None:
    """Refuse a learning rate that is none."""
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not rate > 0:
        raise SettingError("a learning rate is a number above zero")


def scalar(device: torch.device) -> Tensor:
    """A number that lives on a device: float32 as CUDA's fused kernels ask, float64 on the CPU."""
    return torch.zeros((), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)


def gradient(parameter: Tensor) -> Tensor:
    """The gradient, zero where backpropagation did not pass."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
