"""Layers that draw nothing by themselves: weights and dropout masks come from the generator they are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedsim.errors import SettingError


@runtime_checkable
class Drawn(Protocol):
    """A module that fills its own parameters."""

    def draw(self, generator: torch.Generator) -> None: ...


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer whose weights are not drawn yet."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    return layer


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights as PyTorch does by default, from this generator, in the order of the modules."""
    for part in module.modules():
        if isinstance(part, Drawn):
            part.draw(generator)
        elif isinstance(part, nn.Linear | nn.Conv2d):
            _draw_uniform(part, generator)


def _draw_uniform(layer: nn.Linear | nn.Conv2d, generator: torch.Generator) -> None:
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    if layer.bias is not None:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def split_linear(layer: nn.Linear, parts: Sequence[Tensor]) -> list[Tensor]:
    """Each part's share of ``layer(cat(parts))``, so that the parts never stand side by side; the bias is in the first.

    The parts may have different leading dimensions: one row per record, one per partner, one per pair.
    """
    if len(parts) == 1:
        return [layer(parts[0])]
    slices = layer.weight.split([part.shape[-1] for part in parts], dim=1)
    first = F.linear(parts[0], slices[0], layer.bias)
    return [first, *(F.linear(part, weight) for part, weight in zip(parts[1:], slices[1:], strict=True))]


class Dropout(nn.Module):
    """Dropout whose mask comes from the generator given; without one (evaluation) nothing is dropped."""

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise SettingError(f"dropout={share}; it is a share from 0 to below 1")
        self.share = share

    def forward(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if generator is None or self.share == 0:
            return inputs
        drawn = torch.empty(inputs.shape, device=inputs.device).uniform_(generator=generator)
        kept = drawn.ge_(self.share).to(inputs.dtype).mul_(1 / (1 - self.share))  # 0, or what keeps the mean
        return inputs * kept


class Perceptron(nn.Module):
    """Linear layers with ReLU, and dropout if asked for, between them; nothing after the last.

    ``rest`` is all but the first linear layer, for those who compute that one in parts.
    """

    def __init__(self, sizes: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        if min(sizes) < 1:
            raise SettingError(f"layers of {', '.join(map(str, sizes))} units; every layer needs at least one")
        self.first = linear(sizes[0], sizes[1])
        self.others = nn.ModuleList([linear(*pair) for pair in pairwise(sizes[1:])])
        self.dropout = Dropout(dropout)

    def forward(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.rest(self.first(inputs), generator)

    def rest(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        for layer in self.others:
            outputs = layer(self.dropout(F.relu(outputs), generator))
        return outputs
