"""LAMB follows the authors' optimiser."""

from __future__ import annotations

import pytest
import torch
import torch_optimizer

from fedsim_lab.paper_preset import Lamb
from optimiser_fixtures import drawn, take, with_gradients


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
