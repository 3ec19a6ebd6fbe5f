"""Parameters with gradients, for tests of optimisers."""

from __future__ import annotations

import torch
from torch import nn

SHAPES = [(7, 5), (7,), (3, 7), (40, 40)]


def drawn(seed=0):
    """Weights of ordinary size, one tensor of zeros, one whose norm is above the clamp of 10."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    tensors[1].zero_()
    return [nn.Parameter(tensor) for tensor in tensors]


def with_gradients(parameters, step):
    generator = torch.Generator().manual_seed(step)
    for place, parameter in enumerate(parameters):
        silent = place == 2 and step == 0  # a first move of zero but for the decay
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * (not silent)


def take(running, step):
    running.begin(step)
    running.step()
