"""A step recorded on a GPU does what the split loop does; elsewhere nothing is recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.training import train
from fedsim.training.loop import prepare_job, start_local_secondaries, training_settings
from fedsim.training.primary import CudaGraphStep, Primary, tensor_float32
from training_fixtures import METHODS, SPLIT, encoded_config, small_config, small_primary, small_secondaries


def plainly(primary, records, labels, batch):
    return lambda asked, step: primary.descend(records, labels, asked, step)


def test_a_cpu_takes_its_steps_one_launch_at_a_time():
    setting = training_settings(small_config(), SPLIT, None)
    job = prepare_job(small_primary(), start_local_secondaries(small_secondaries(2), setting), SPLIT, setting)
    assert not isinstance(job.primary.step_function(job.records, job.scaled, 16), CudaGraphStep)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_the_steps_of_a_gpu_round_their_products(device):
    with tensor_float32(torch.device(device)):
        assert torch.backends.cuda.matmul.allow_tf32 == (device == "cuda")
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_a_recorded_step_equals_the_split_loop(monkeypatch, name, members):
    config = replace(encoded_config(METHODS[name], epochs=3, batch=8, members=members), device="cuda")
    parties = small_secondaries(3)
    if name == "exact":
        parties[0] = replace(parties[0], partner=np.where(np.arange(60)[:, None] % 3 == 0, -1, parties[0].partner))
    recorded = train(small_primary(), parties, SPLIT, config).predictions["test"]
    monkeypatch.setattr(Primary, "step_function", plainly)
    np.testing.assert_allclose(recorded, train(small_primary(), parties, SPLIT, config).predictions["test"], rtol=1e-3)
