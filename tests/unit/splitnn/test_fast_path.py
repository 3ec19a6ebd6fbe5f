"""The fast path gives the losses and gradients of the slow and obvious one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.splitnn.gates import keep_most_similar
from fedsim.splitnn.layers import FeatureTensors
from fedsim.training.data import StandardLabel
from fedsim.training.loop import prepare_job, select_lists, start_local_secondaries, training_settings
from fedsim.training.primary_steps import BatchRequest, PrimaryRecords, build_batch
from reference_networks import SlowList, slow_scores
from training_fixtures import (
    ENCODED,
    MEAN,
    METHODS,
    SPLIT,
    small_config,
    small_fields,
    small_primary,
    small_secondaries,
)

ROWS = np.array([3, 17, 4, 30, 9, 22, 38, 1])


def double(features):
    return FeatureTensors(features.numbers.double(), features.codes)


class Both:
    """One job in float64, ready for both paths."""

    def __init__(self, config, primary, secondaries):
        self.config, self.primary = config, primary
        setting = training_settings(config, SPLIT, None)
        self.held = select_lists(primary, start_local_secondaries(secondaries, setting), SPLIT, config)
        job = prepare_job(primary, self.held, SPLIT, setting)
        self.lists, self.network, target = job.records.lists, job.primary.model.network.double(), job.target
        for partners, held in zip(self.lists, self.held, strict=True):
            in_order = config.method.arrange(held.neighbours, np.random.default_rng(0))
            partners.similarity = torch.from_numpy(in_order.similarity)
        self.started = job.secondaries
        for party in self.started:
            party.model.network.double()
            party.features = double(party.features)
        self.own = double(FeatureTensors.of(primary.features, setting.device))
        self.task, self.labels = target.task, torch.from_numpy(target.encode_labels(primary.labels))[ROWS]
        self.labels = self.labels if self.labels.dtype == torch.int64 else self.labels.double()

    def fast(self, generator):
        questions = [next(partners.requests([ROWS])) for partners in self.lists]
        replies = [
            [holder.model.network(holder.features.take(question.rows)) for holder in held.holders]
            for question, held in zip(questions, self.held, strict=True)
        ]
        batch = build_batch(
            PrimaryRecords(self.own, self.lists), BatchRequest(torch.from_numpy(ROWS), questions), replies
        )
        return self.outcome(self.network(batch, generator))

    def slow(self, generator):
        lists = []
        for held in self.held:
            neighbours = held.neighbours
            if self.config.method.arrange(neighbours, np.random.default_rng(0)).k == 1:
                neighbours = keep_most_similar(neighbours)
            lists.append(
                SlowList(
                    [holder.model.network for holder in held.holders],
                    [holder.features for holder in held.holders],
                    torch.from_numpy(neighbours.partner[ROWS]),
                    torch.from_numpy(neighbours.similarity[ROWS]),
                )
            )
        own = self.own.take(torch.from_numpy(ROWS))
        return self.outcome(slow_scores(self.config.method, self.network, own, lists, generator))

    def outcome(self, scores):
        parameters = [*self.network.parameters()]
        for party in self.started:
            parameters += party.model.network.parameters()
        loss = self.task.loss(scores, self.labels)
        return [loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)]


def assert_equal_outcomes(both, *, seed=5):
    fast = both.fast(torch.Generator().manual_seed(seed))
    slow = both.slow(torch.Generator().manual_seed(seed))
    assert len(fast) == len(slow) > 4
    for left, right in zip(fast, slow, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


SORTED = [name for name in METHODS if name != "fedsim without sort gate"]


@pytest.mark.parametrize("name", SORTED)
@pytest.mark.parametrize("n_secondaries", [1, 2, 3])
def test_loss_and_gradients_equal_those_of_the_pair_table(name, n_secondaries):
    assert_equal_outcomes(Both(small_config(METHODS[name]), small_primary(), small_secondaries(n_secondaries)))


@pytest.mark.parametrize("name", SORTED)
@pytest.mark.parametrize("classes", [2, 3])
def test_classification_equals_the_pair_table_too(name, classes):
    assert_equal_outcomes(Both(small_config(METHODS[name]), small_primary(classes), small_secondaries(2)))


@pytest.mark.parametrize("name", SORTED)
def test_encoded_features_and_a_linear_output_equal_the_pair_table_too(name):
    config = small_config(METHODS[name], local=ENCODED, label=StandardLabel())
    assert_equal_outcomes(Both(config, small_primary(), small_secondaries(3)))


@pytest.mark.parametrize("name", SORTED)
def test_several_similarities_per_pair_equal_the_pair_table_too(name):
    first, second = small_secondaries(2)
    partner, similarity = small_fields(9, 2)
    several = [replace(first, partner=partner, similarity=similarity), second]
    assert_equal_outcomes(Both(small_config(METHODS[name], local=ENCODED), small_primary(), several))


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_the_weighted_mean_equals_the_pair_table(classes):
    method = replace(MEAN, outputs=3 if classes == 3 else 1)
    assert_equal_outcomes(Both(small_config(method), small_primary(classes), small_secondaries(2)))


def test_records_without_an_equal_meet_zeros():
    first = small_secondaries()[0]
    partner = np.where(np.arange(60)[:, None] % 3 == 0, -1, first.partner)
    some = replace(first, partner=partner)
    assert_equal_outcomes(Both(small_config(METHODS["exact"]), small_primary(), [some]))


def test_shuffled_lists_hold_the_same_partners_in_another_order():
    first = small_secondaries()[0]
    shuffled = METHODS["fedsim without sort gate"].arrange(first.neighbours, np.random.default_rng(0))
    assert (shuffled.partner != first.partner).any()
    assert (np.sort(shuffled.partner) == np.sort(first.partner)).all()
