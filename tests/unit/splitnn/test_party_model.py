"""LAMB follows the authors' optimiser, AdamW follows torch's."""

from __future__ import annotations

import pytest
import torch
import torch_optimizer
from torch import nn

from fedsim.splitnn.party_model import AdamW, Constant, Lamb, WarmCosine

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


@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_lamb_takes_the_authors_path(decay):
    ours, theirs = drawn(), drawn()
    running = Lamb(rate=3e-3, decay=decay).start(ours, total_steps=60)
    reference = torch_optimizer.Lamb(theirs, lr=3e-3, weight_decay=decay)
    for step in range(60):
        with_gradients(ours, step)
        with_gradients(theirs, step)
        take(running, step)
        reference.step()
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_lamb_in_parts_is_lamb_as_a_whole():
    whole, parts = drawn(), drawn()
    together = Lamb().start(whole, total_steps=5)
    apart = [Lamb().start([parameter], total_steps=5) for parameter in parts]
    for step in range(5):
        with_gradients(whole, step)
        with_gradients(parts, step)
        for running in (together, *apart):
            take(running, step)
    assert all(torch.equal(left, right) for left, right in zip(whole, parts, strict=True))


def test_adamw_takes_torchs_path_and_spares_the_biases():
    ours, theirs = drawn(), drawn()
    running = AdamW(rate=1e-2, decay=0.1, schedule=Constant()).start(ours, total_steps=20)
    groups = [
        {"params": [entry for entry in theirs if entry.dim() > 1], "weight_decay": 0.1},
        {"params": [entry for entry in theirs if entry.dim() == 1], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=1e-2)
    for step in range(20):
        with_gradients(ours, step)
        with_gradients(theirs, step)
        take(running, step)
        reference.step()
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimiser", [Lamb(), AdamW()])
def test_a_party_without_weights_takes_its_steps_in_peace(optimiser):
    take(optimiser.start([], total_steps=3), 0)


def test_the_rate_warms_up_and_cools_down():
    factors = [WarmCosine(warm=0.1, floor=0.01).factor(step, 100) for step in range(100)]
    assert factors[:10] == sorted(factors[:10])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert max(factors) == 1.0
    assert 0.01 <= factors[-1] < 0.02
