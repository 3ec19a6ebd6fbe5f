"""What every secondary must keep, wherever it lives; add yours to ``STARTS`` and it is held to all of it."""

from __future__ import annotations

import pytest
import torch

from fedsim.errors import FileError, SettingError
from fedsim.training.prepare import setting_of, start_secondary
from small_jobs import SPLIT, encoded_config, small_secondaries

ROWS = torch.tensor([0, 3, 4, 8])


def in_process(folder):
    return start_secondary(small_secondaries()[0], setting_of(encoded_config(), SPLIT, folder))


STARTS = [in_process]


@pytest.fixture(params=STARTS)
def secondary(request, tmp_path):
    return request.param(tmp_path)


def take_step(secondary, step):
    reply = secondary.activations(ROWS, step)
    secondary.descend(torch.ones_like(reply), step)
    return reply


def test_it_answers_with_one_cut_layer_per_row(secondary):
    assert (secondary.name, secondary.n_records) == ("first", 9)
    assert secondary.activations(ROWS, 0).shape == secondary.infer(ROWS).shape == (4, secondary.width)


def test_what_it_answers_carries_no_way_back_into_its_network(secondary):
    for reply in (secondary.activations(ROWS, 0), secondary.infer(ROWS)):
        assert not reply.requires_grad


def test_gradients_move_its_weights_against_them(secondary):
    before = secondary.infer(ROWS).sum()
    for step in range(5):
        take_step(secondary, step)
    assert secondary.infer(ROWS).sum() < before


def test_the_same_step_asked_twice_gets_the_same_answer_after_going_back(secondary):
    secondary.save(0)
    first = take_step(secondary, 0)
    take_step(secondary, 1)
    secondary.restore(0)
    assert torch.equal(take_step(secondary, 0), first)


def test_it_goes_back_to_its_best_weights(secondary):
    secondary.keep_best()
    best = secondary.infer(ROWS)
    take_step(secondary, 0)
    assert not torch.equal(secondary.infer(ROWS), best)
    secondary.use_best()
    assert torch.equal(secondary.infer(ROWS), best)


def test_best_weights_survive_a_checkpoint(secondary):
    secondary.keep_best()
    best = secondary.infer(ROWS)
    take_step(secondary, 0)
    secondary.save(1)
    take_step(secondary, 1)
    secondary.restore(1)
    secondary.use_best()
    assert torch.equal(secondary.infer(ROWS), best)


def test_it_forgets_old_checkpoints_alone(secondary):
    secondary.save(1)
    secondary.save(2)
    secondary.forget_before(2)
    secondary.restore(2)
    with pytest.raises(FileError):
        secondary.restore(1)


def test_it_wants_activations_before_gradients(secondary):
    with pytest.raises(SettingError, match="first was given gradients of step 0"):
        secondary.descend(torch.zeros(4, secondary.width), 0)
