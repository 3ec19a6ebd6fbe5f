"""A step recorded on a GPU does what the split loop does; elsewhere nothing is recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.training import loop, train
from fedsim.training.loop import (
    iterate_batches,
    prepare_job,
    select_lists,
    start_local_secondaries,
    training_settings,
)
from fedsim.training.primary_steps import (
    BatchRequest,
    CudaGraphStep,
    FixedRequests,
    Primary,
    tensor_float32,
)
from training_fixtures import METHODS, SPLIT, encoded_config, small_config, small_primary, small_secondaries


def plainly(primary, records, labels, batch, weights=None):
    return lambda asked, step: primary.descend(records, labels, asked, step, weights)


def test_a_cpu_takes_its_steps_one_launch_at_a_time():
    setting = training_settings(small_config(), SPLIT, None)
    job = prepare_job(small_primary(), start_local_secondaries(small_secondaries(2), setting), SPLIT, setting)
    assert not isinstance(job.primary.step_function(job.records, job.scaled, 16), CudaGraphStep)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_the_steps_of_a_gpu_round_their_products(device):
    with tensor_float32(torch.device(device)):
        assert torch.backends.cuda.matmul.allow_tf32 == (device == "cuda")
    assert not torch.backends.cuda.matmul.allow_tf32


def prepared(config, parties):
    setting = training_settings(config, SPLIT, None)
    lists = select_lists(small_primary(), start_local_secondaries(parties, setting), SPLIT, config)
    return prepare_job(small_primary(), lists, SPLIT, setting)


def with_gaps(parties):
    """Let every third record be without a partner in the first list."""
    return [
        replace(parties[0], partner=np.where(np.arange(60)[:, None] % 3 == 0, -1, parties[0].partner)),
        *parties[1:],
    ]


def take_steps(job, step):
    batches = list(iterate_batches(job, 0))
    losses = [float(step(request, number)) for number, request in enumerate(batches)]
    return losses, torch.cat([weights.flatten() for weights in job.primary.model.network.parameters()])


@pytest.mark.parametrize("batch", [2, 32])  # fewer pairs than rows, and more
@pytest.mark.parametrize("name", METHODS)
def test_requests_of_fixed_shape_train_the_same_network(name, batch):
    config = replace(small_config(METHODS[name]), batch=batch)
    parties = with_gaps(small_secondaries(3)) if name == "exact" else small_secondaries(3)
    plain, fixed = prepared(config, parties), prepared(config, parties)
    models = [fixed.primary.model, *(holder.model for holder in fixed.secondaries)]
    step = CudaGraphStep(fixed.descend, models, fixed.records.lists, batch=10**6)  # so no batch is full
    losses, weights = take_steps(plain, plain.descend)
    others, other_weights = take_steps(fixed, lambda request, number: step(BatchRequest(request.rows, ()), number))
    np.testing.assert_allclose(losses, others, rtol=1e-4)
    torch.testing.assert_close(weights, other_weights, rtol=1e-3, atol=1e-5)


def test_a_list_is_asked_for_all_rows_or_one_per_pair_whichever_is_less():
    partner = torch.tensor([[0, 2, 5], [2, -1, 4]], dtype=torch.int32)
    few, many = (FixedRequests(partner, n_rows, has_gaps=True).request(torch.tensor([1])) for n_rows in (2, 6))
    assert few.rows.tolist() == [0, 1]
    assert many.rows.tolist() == [2, 0, 4]
    assert many.position.tolist() == [[0, 3, 2]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_a_recorded_step_equals_the_split_loop(monkeypatch, name, members):
    config = replace(encoded_config(METHODS[name], epochs=3, batch=8, members=members), device="cuda")
    parties = with_gaps(small_secondaries(3)) if name == "exact" else small_secondaries(3)
    recorded = train(small_primary(), parties, SPLIT, config).predictions["test"]
    monkeypatch.setattr(Primary, "step_function", plainly)
    np.testing.assert_allclose(recorded, train(small_primary(), parties, SPLIT, config).predictions["test"], rtol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_goes_on_from_the_best_weights(monkeypatch):
    monkeypatch.setattr(loop, "is_better", lambda metrics, history, start=None: not history)  # the first epoch is best
    config = replace(encoded_config(epochs=10, batch=8, patience=1), device="cuda")
    recorded = train(small_primary(), small_secondaries(2), SPLIT, config)
    assert len(recorded.history) == 4  # the best, one that is no better, and the last two of the schedule
    monkeypatch.setattr(Primary, "step_function", plainly)
    plain = train(small_primary(), small_secondaries(2), SPLIT, config)
    np.testing.assert_allclose([e.loss for e in recorded.history], [e.loss for e in plain.history], rtol=1e-3)
