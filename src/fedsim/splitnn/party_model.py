"""One party's share of the model: network, optimiser, best weights and device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.errors import DeviceError, FileError, SettingError
from fedsim.splitnn.layers import initialise_weights
from fedsim.splitnn.optimisers import OptimiserConfig, RunningOptimiser
from fedsim.splitnn.rng import CPU, RandomSource

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
