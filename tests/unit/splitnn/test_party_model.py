"""LAMB follows the authors' optimiser, AdamW follows torch's."""

from __future__ import annotations

import pytest
import torch
import torch_optimizer
from torch import nn

from fedsim.errors import DeviceError
from fedsim.splitnn.party_model import AdamW, Constant, Lamb, RunningLamb, WarmCosine
from fedsim_lab import lamb_kernel
from fedsim_lab.lamb_kernel import MOST_TENSORS

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


def emulated_lamb(device, name, blocks, tensors, plan):
    """The kernels of ``lamb.cu`` in Python, on the same tensors."""
    weights, gradients, means, squares, moves = (
        tensors[first : first + MOST_TENSORS] for first in range(0, 5 * MOST_TENSORS, MOST_TENSORS)
    )
    pieces, ranges, sums, settings, rate = plan
    decay, beta1, beta2, eps, greatest_norm = settings.tolist()
    assert len(pieces) == blocks
    for block, (place, first, end, _) in enumerate(pieces.tolist()):
        own = [column[place].detach().flatten()[first:end] for column in (weights, means, squares, moves)]
        weight, mean, square, move = own
        if name == "lamb_move":
            gradient = gradients[place].flatten()[first:end] if gradients[place].numel() else torch.zeros(end - first)
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            move.copy_(mean / (square.sqrt() + eps) + decay * weight)
            sums[block] = torch.stack([weight.square().sum(), move.square().sum()])
        else:
            norm, length = sums[slice(*ranges[place].tolist())].sum(dim=0).sqrt().tolist()
            norm = min(norm, greatest_norm)
            weight.sub_(move * rate * (norm / length if norm > 0 and length > 0 else 1.0))


@pytest.fixture(params=["emulated", "card"])
def device(request, monkeypatch):
    """A CUDA device, or the CPU with emulated kernels."""
    if request.param == "card":
        return torch.device("cuda") if torch.cuda.is_available() else pytest.skip("there is no CUDA device")
    monkeypatch.setattr(lamb_kernel, "launch", emulated_lamb)
    monkeypatch.setattr(lamb_kernel, "compile_kernels", lambda device: None)
    monkeypatch.setattr(RunningLamb, "has_kernel", property(lambda self: True))
    return torch.device("cpu")


def test_lambs_own_kernels_take_the_authors_path(device):
    shapes = [*SHAPES, (1,), (3, 1000), *[(2, 2)] * MOST_TENSORS]  # several pieces, and two launches
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    drawn[1].zero_()
    ours, theirs = ([nn.Parameter(tensor.to(place, copy=True)) for tensor in drawn] for place in (device, "cpu"))
    running = Lamb(rate=3e-3, decay=1e-2).start(ours, total_steps=20)
    reference = torch_optimizer.Lamb(theirs, lr=3e-3, weight_decay=1e-2)
    for step in range(20):
        for place, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            silent = place == 2 and step < 2
            right.grad = torch.randn(right.shape, generator=generator) * (not silent)
            left.grad = None if silent else right.grad.to(device)
        take(running, step)
        reference.step()
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.cpu(), right, rtol=1e-4, atol=1e-6)


def test_lamb_uses_torchs_kernels_where_its_own_do_not_compile(monkeypatch, caplog):
    def refuse(device):
        raise DeviceError("the GPU kernels do not compile", code="gpu-kernel")

    monkeypatch.setattr(lamb_kernel, "compile_kernels", refuse)
    monkeypatch.setattr(RunningLamb, "has_kernel", property(lambda self: True))
    weights, again = (nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    fallen_back = Lamb().start([weights], total_steps=1)
    monkeypatch.undo()
    plain = Lamb().start([again], total_steps=1)
    for running, parameter in ((fallen_back, weights), (plain, again)):
        parameter.grad = torch.ones(3, 2)
        take(running, 0)
    assert torch.equal(weights, again)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
