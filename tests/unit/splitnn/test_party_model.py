"""AdamW follows torch's, and the rate its schedule."""

from __future__ import annotations

import pytest
import torch

from fedsim.splitnn.party_model import AdamW, WarmCosine
from fedsim_lab.paper_preset import Constant, Lamb
from optimiser_fixtures import drawn, take, with_gradients


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
