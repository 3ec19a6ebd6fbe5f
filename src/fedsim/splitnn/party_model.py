"""One party's share of the model: random numbers, optimiser and schedule, network, best weights, device."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.errors import DeviceError, FileError, SettingError
from fedsim.splitnn.layers import initialise_weights

CPU = torch.device("cpu")


def derive_seed(seed: int, party: str, purpose: str, step: int = 0) -> int:
    """The first 63 bits of SHA-256 over the four, written as a JSON list.

    >>> derive_seed(0, "primary", "dropout", 7)
    5529237731233410334
    """
    digest = hashlib.sha256(json.dumps([seed, party, purpose, step]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True)
class RandomSource:
    """One party's source of chance."""

    seed: int
    party: str

    def generator(self, purpose: str, step: int = 0, device: torch.device = CPU) -> torch.Generator:
        """A torch generator for this purpose at this step."""
        return torch.Generator(device).manual_seed(self.step_seed(purpose, step))

    def step_seed(self, purpose: str, step: int = 0) -> int:
        """The seed of this purpose at this step."""
        return derive_seed(self.seed, self.party, purpose, step)

    def rng(self, purpose: str) -> np.random.Generator:
        """A NumPy generator for what is drawn once, at preparation."""
        return np.random.default_rng(self.step_seed(purpose))


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


# A party's part of the model: its network, its own optimiser, its best weights so far


Weights = dict[str, Tensor]


@dataclass(eq=False)
class PartyModel:
    """One party's share; nothing of it crosses the cut. Its weights are drawn (``start``) or given (``fill``) first."""

    network: nn.Module
    settings: OptimiserConfig
    random_source: RandomSource
    device: torch.device
    optimiser: RunningOptimiser = field(init=False)
    best: Weights = field(default_factory=dict, init=False)
    dropout: torch.Generator = field(init=False)  # of this step's masks
    _step: int | None = field(default=None, init=False)

    def start(self, total_steps: int) -> None:
        """Draw the weights on the CPU (the same on every device) and forget all that was learnt before."""
        initialise_weights(self.network.to(CPU), self.random_source.generator("weights"))
        self.network.to(self.device).zero_grad(set_to_none=True)
        self.optimiser = self.settings.over(self.network.parameters(), total_steps)
        self.dropout = torch.Generator(self.device)
        self.best, self._step = {}, None

    def fill(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights that were learnt before; they are the best there are."""
        try:
            self.network.load_state_dict(dict(weights))
        except RuntimeError as error:
            raise FileError(
                f"the weights of {self.random_source.party} do not fit the model beside them; save it again"
            ) from error
        self.network.to(self.device)
        self.keep_best()

    def begin(self, step: int) -> None:
        """Set chance and learning rate for a step; a second call for the same step changes nothing."""
        if step != self._step:
            self.dropout.manual_seed(self.random_source.step_seed("dropout", step))
            self.optimiser.begin(step)
            self._step = step

    def descend(self) -> None:
        """Move the weights by their gradients and forget those."""
        self.optimiser.move()
        self.network.zero_grad(set_to_none=True)

    def keep_best(self) -> None:
        """Remember the weights as they are now."""
        self.best = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    def use_best(self) -> None:
        """Go back to the weights remembered last."""
        self.network.load_state_dict(self.best)

    def tensors(self) -> Weights:
        """All that a checkpoint needs, by name."""
        found = {f"now/{name}": tensor for name, tensor in self.network.state_dict().items()}
        found |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        for kind, moments in self.optimiser.state().items():
            found |= {f"{kind}/{place}": tensor for place, tensor in enumerate(moments)}
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what ``tensors`` gave."""
        self.network.load_state_dict(_select_prefix("now/", tensors))
        self._step = None
        self.best = {name: tensor.to(self.device) for name, tensor in _select_prefix("best/", tensors).items()}
        for kind, moments in self.optimiser.state().items():
            for place, tensor in enumerate(moments):
                tensor.copy_(tensors[f"{kind}/{place}"])


def _select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


# Where to compute


DEVICE_NAMES = ("auto", "cpu", "cuda")


def resolve_device(name: str) -> torch.device:
    """``cpu``, ``cuda``, or whichever is there (``auto``).

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if name not in DEVICE_NAMES:
        raise SettingError(f"device '{name}' is unknown; choose {', '.join(DEVICE_NAMES)}")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise DeviceError("device 'cuda' was asked for, but torch sees no GPU here; choose cpu or auto")
    return torch.device("cuda" if name != "cpu" and there else "cpu")
