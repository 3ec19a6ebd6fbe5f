"""A party's part of the model: its network, its own optimiser, its best weights so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.errors import FileError
from fedsim.splitnn.chance import CPU, Chance
from fedsim.splitnn.layers import initialise
from fedsim.splitnn.optimiser import Optimiser, Running

Weights = dict[str, Tensor]


@dataclass(eq=False)
class Part:
    """One party's share; nothing of it crosses the cut. Its weights are drawn (``start``) or given (``fill``) first."""

    network: nn.Module
    settings: Optimiser
    chance: Chance
    device: torch.device
    optimiser: Running = field(init=False)
    best: Weights = field(default_factory=dict, init=False)
    dropout: torch.Generator = field(init=False)  # of this step's masks
    _step: int | None = field(default=None, init=False)

    def start(self, total_steps: int) -> None:
        """Draw the weights on the CPU (the same on every device) and forget all that was learnt before."""
        initialise(self.network.to(CPU), self.chance.generator("weights"))
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
                f"the weights of {self.chance.party} do not fit the model beside them; save it again"
            ) from error
        self.network.to(self.device)
        self.keep_best()

    def begin(self, step: int) -> None:
        """Set chance and learning rate for a step; a second call for the same step changes nothing."""
        if step != self._step:
            self.dropout.manual_seed(self.chance.seed_of("dropout", step))
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
        self.network.load_state_dict(_under("now/", tensors))
        self._step = None
        self.best = {name: tensor.to(self.device) for name, tensor in _under("best/", tensors).items()}
        for kind, moments in self.optimiser.state().items():
            for place, tensor in enumerate(moments):
                tensor.copy_(tensors[f"{kind}/{place}"])


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
