"""What every secondary must keep, wherever it lives; add yours to ``STARTS`` and it is held to all of it."""

from __future__ import annotations

import pytest
import torch

from fedsim.errors import FileError, SettingError
from fedsim.training.loop import start_local_secondary, training_settings
from training_fixtures import SPLIT, encoded_config, small_secondaries

ROWS, TOTAL_STEPS = torch.tensor([0, 3, 4, 8]), 6


def in_process(folder):
    return start_local_secondary(small_secondaries()[0], training_settings(encoded_config(), SPLIT, folder))


STARTS = [in_process]


@pytest.fixture(params=STARTS)
def secondary(request, tmp_path):
    party = request.param(tmp_path)
    party.begin(TOTAL_STEPS)
    return party


def take_step(secondary, step):
    reply = secondary.activations(ROWS, step)
    secondary.descend(torch.ones_like(reply), step)
    return reply


def test_it_answers_with_one_cut_layer_per_row(secondary):
    assert (secondary.name, secondary.n_records) == ("first", 9)
    assert secondary.activations(ROWS, 0).shape == secondary.infer(ROWS).shape == (4, secondary.width)


def test_a_new_attempt_begins_with_the_weights_of_the_first(secondary):
    drawn, first = secondary.infer(ROWS), take_step(secondary, 0)
    secondary.keep_best()
    secondary.activations(ROWS, 1)
    secondary.begin(TOTAL_STEPS)
    assert torch.equal(secondary.infer(ROWS), drawn)
    with pytest.raises(SettingError, match="ask for activations first"):
        secondary.descend(torch.zeros_like(drawn), 1)
    assert torch.equal(take_step(secondary, 0), first)


def test_a_new_attempt_learns_as_the_first_did(secondary):
    answers = []
    for _ in range(2):
        secondary.begin(TOTAL_STEPS)
        answers.append([take_step(secondary, step) for step in range(4)])
    assert all(map(torch.equal, *answers))


def test_a_new_attempt_goes_on_from_a_checkpoint_of_the_one_before(secondary):
    take_step(secondary, 0)
    secondary.save(1)
    second = take_step(secondary, 1)
    secondary.begin(TOTAL_STEPS)
    secondary.restore(1)
    assert torch.equal(take_step(secondary, 1), second)


def test_a_checkpoint_of_an_attempt_of_another_length_is_refused(secondary):
    secondary.save(1)
    secondary.begin(TOTAL_STEPS + 1)
    with pytest.raises(FileError, match="steps is 7 here, 6 there"):
        secondary.restore(1)


def test_asking_ahead_changes_no_answer(secondary):
    trained, inferred = secondary.activations(ROWS, 0), secondary.infer(ROWS)
    secondary.begin(TOTAL_STEPS)
    secondary.ask(ROWS, None)
    assert torch.equal(secondary.infer(ROWS), inferred)
    secondary.ask(ROWS, 0)
    assert torch.equal(secondary.activations(ROWS, 0), trained)


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
    with pytest.raises(SettingError, match="gradients of step 0"):
        secondary.descend(torch.zeros(4, secondary.width), 0)
