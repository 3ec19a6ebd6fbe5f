"""What crosses the cut, and that cutting changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from error_fixtures import raises
from fedsim.errors import SettingError
from fedsim.splitnn.layers import initialise_weights
from fedsim.training import train
from fedsim.training.loop import (
    iterate_batches,
    prepare_job as prepared_with,
    start_local_secondaries,
    training_settings,
)
from fedsim.training.primary_steps import build_batch
from fedsim_lab.paper_preset import Lamb
from training_fixtures import METHODS, SPLIT, encoded_config, small_config, small_primary, small_secondaries


class Watched:
    """A secondary behind glass: remembers what crossed."""

    def __init__(self, party):
        self.party, self.crossed = party, []

    def __getattr__(self, name):
        return getattr(self.party, name)

    def activations(self, rows, step):
        reply = self.party.activations(rows, step)
        self.crossed.append((step, rows, reply))
        return reply

    def descend(self, gradients, step):
        self.crossed.append((step, gradients))
        self.party.descend(gradients, step)


def prepared(config, secondaries):
    setting = training_settings(config, SPLIT, None)
    return prepared_with(small_primary(), start_local_secondaries(secondaries, setting), SPLIT, setting)


def test_only_distinct_rows_activations_and_gradients_cross():
    job = prepared(small_config(), small_secondaries())
    glass = Watched(job.secondaries[0])
    lists = tuple(replace(partners, holders=(glass,)) for partners in job.records.lists)
    for step, asked in enumerate(iterate_batches(job, 0)):
        job.primary.descend(replace(job.records, lists=lists), job.scaled, asked, step)
    questions, answers = glass.crossed[::2], glass.crossed[1::2]
    for (step, rows, reply), (answered, gradients) in zip(questions, answers, strict=True):
        assert step == answered
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert reply.shape == gradients.shape == (len(rows), 4)
        assert not reply.grad_fn


@pytest.mark.parametrize("config", [small_config(optimiser=Lamb(rate=1e-2)), encoded_config()])
def test_a_split_run_equals_a_run_in_one_piece(config):
    split, whole = (prepared(config, small_secondaries(3)) for _ in range(2))
    networks = [whole.primary.model.network, *(party.model.network for party in whole.secondaries)]
    together = config.optimiser.start([p for network in networks for p in network.parameters()], 6)
    for step, asked in enumerate(iterate_batches(split, 0)):
        split.primary.descend(split.records, split.scaled, asked, step)
        replies = [
            [
                begun(holder.model, step).network(holder.features.take(question.rows), holder.model.dropout)
                for holder in partners.holders
            ]
            for partners, question in zip(whole.records.lists, asked.requests, strict=True)
        ]
        own = begun(whole.primary.model, step)
        scores = own.network(build_batch(whole.records, asked, replies), own.dropout)
        whole.target.task.loss(scores, whole.scaled[asked.rows]).backward()
        together.begin(step)
        together.step()
        for network in networks:
            network.zero_grad()
    for left, right in zip(parameters(split), parameters(whole), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-7)


def begun(part, step):
    part.begin(step)
    return part


def parameters(job):
    parts = [job.primary.model, *(party.model for party in job.secondaries)]
    return [parameter for part in parts for parameter in part.network.parameters()]


def test_gradients_of_another_step_are_refused():
    secondary = prepared(small_config(), small_secondaries()).secondaries[0]
    secondary.activations(torch.tensor([1, 2]), step=3)
    with raises(SettingError, "step-mismatch"):
        secondary.descend(torch.zeros(2, 4), step=4)


def test_a_secondary_draws_the_same_whatever_the_primary_does():
    one, other = (prepared(encoded_config(seed=4), small_secondaries()) for _ in range(2))
    other.primary.model.random_source.generator("dropout", 9)
    initialise_weights(other.primary.model.network, torch.Generator().manual_seed(99))
    rows = torch.arange(5)
    left, right = (job.secondaries[0].activations(rows, 9) for job in (one, other))
    assert torch.equal(left, right)


def test_aligned_parties_stand_side_by_side_like_one_party_with_both_tables():
    """The paper's multi-party FedSim: the pieces of one table, each with its own local network."""
    first, _, third = small_secondaries(3)
    job = prepared(small_config(), [first, third])
    (partners,) = job.records.lists
    assert [holder.name for holder in partners.holders] == ["first", "third"]
    assert job.primary.model.network.lists[0].aggregate.first.in_features == 3 * 4


def test_every_list_counts(tmp_path):
    scores = [
        train(small_primary(), parties, SPLIT, small_config(METHODS["avgsim"], epochs=1)).predictions["test"]
        for parties in (small_secondaries(1), small_secondaries(2))
    ]
    assert not np.allclose(*scores)
