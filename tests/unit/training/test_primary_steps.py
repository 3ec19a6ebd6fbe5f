"""What a step does on a GPU alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.training import train
from fedsim.training.primary_steps import tensor_float32
from training_fixtures import METHODS, SPLIT, encoded_config, small_primary, small_secondaries


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_the_steps_of_a_gpu_round_their_products(device):
    with tensor_float32(torch.device(device)):
        assert torch.backends.cuda.matmul.allow_tf32 == (device == "cuda")
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", METHODS)
def test_a_gpu_trains_every_method(name):
    config = replace(encoded_config(METHODS[name], epochs=3, batch=8), device="cuda")
    assert np.isfinite(train(small_primary(), small_secondaries(3), SPLIT, config).predictions["test"]).all()
