"""The GPU kernels of LAMB follow the authors' optimiser."""

from __future__ import annotations

import pytest
import torch
import torch_optimizer
from torch import nn

from fedsim.errors import DeviceError
from fedsim_lab import lamb_kernel
from fedsim_lab.lamb_kernel import MOST_TENSORS
from fedsim_lab.paper_preset import Lamb, RunningLamb

SHAPES = [(7, 5), (7,), (3, 7), (40, 40)]


def take(running, step):
    running.begin(step)
    running.step()


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
