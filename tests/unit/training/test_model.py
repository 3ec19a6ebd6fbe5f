"""Training with secondaries that live elsewhere, and attempts that start over."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from error_fixtures import raises
from fedsim.errors import InputError, SettingError
from fedsim.training import Hook, NeighbourList, train, train_with
from fedsim.training.loop import start_local_secondaries, training_settings
from resume_fixtures import same_bits, without_time
from training_fixtures import METHODS, SPLIT, encoded_config, small_config, small_primary, small_secondaries


class LostError(Exception):
    pass


class Elsewhere:
    """A secondary behind a wire: only copies cross, sizes are told when it begins, and the line may break."""

    def __init__(self, party, log, breaks_at=None):
        self.party, self.log, self.breaks_at = party, log, breaks_at
        self.name, self.width, self.n_records = party.name, 0, 0

    def begin(self, total_steps):
        self.log.append(("begin", self.name, total_steps))
        self.party.begin(total_steps)
        self.width, self.n_records = self.party.width, self.party.n_records

    def ask(self, rows, step):
        self.log.append(("ask", self.name, step))

    def activations(self, rows, step):
        if step == self.breaks_at:
            self.breaks_at = None
            raise LostError
        self.log.append(("fetch", self.name, step))
        return self.party.activations(rows.clone(), step).clone()

    def infer(self, rows):
        self.log.append(("fetch", self.name, None))
        return self.party.infer(rows.clone()).clone()

    def __getattr__(self, name):
        return getattr(self.party, name)


def elsewhere(config, folder=None, breaks_at=None):
    log = []
    held = start_local_secondaries(small_secondaries(3), training_settings(config, SPLIT, folder))
    return log, [
        NeighbourList(entry.neighbours, tuple(Elsewhere(party, log, breaks_at) for party in entry.holders))
        for entry in held
    ]


@pytest.mark.parametrize("config", [small_config(), encoded_config(epochs=3), small_config(METHODS["top1sim"])])
def test_secondaries_elsewhere_give_the_bits_of_secondaries_here(config):
    here, (_, lists) = train(small_primary(), small_secondaries(3), SPLIT, config), elsewhere(config)
    there = train_with(small_primary(), lists, SPLIT, config)
    for held in lists:
        for holder in held.holders:
            assert same_weights(holder.party.model.network.state_dict(), here.parts[holder.name])
    assert same_weights(there.parts["primary"], here.parts["primary"])
    assert (there.predictions["test"] == here.predictions["test"]).all()
    assert without_time(there.history) == without_time(here.history)


def same_weights(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_model_has_the_weights_of_this_process_alone():
    _, lists = elsewhere(small_config())
    here = start_local_secondaries(
        [replace(small_secondaries()[0], name="near")], training_settings(small_config(), SPLIT, None)
    )
    result = train_with(small_primary(), [*lists, *here], SPLIT, small_config(epochs=1))
    assert set(result.parts) == {"primary", "near"}
    assert [len(group) for group in result.model.groups] == [2, 1, 1]


def test_all_are_asked_before_the_first_is_waited_for():
    log, lists = elsewhere(small_config(epochs=1))
    train_with(small_primary(), lists, SPLIT, small_config(epochs=1))
    parties = ["first", "third", "second"]
    assert log[:3] == [("begin", name, 3) for name in parties]
    for start in range(3, len(log), 6):
        asked, fetched = log[start : start + 3], log[start + 3 : start + 6]
        assert [entry[:2] for entry in asked] == [("ask", name) for name in parties]
        assert fetched == [("fetch", *entry[1:]) for entry in asked]
    steps = [step for kind, name, step in log if (kind, name) == ("ask", "first")]
    assert steps == [0, 1, 2, None, None, None]  # validation; then both parts of the split with the best weights


@pytest.mark.parametrize("breaks_at", [0, 1, 4, 5])
@pytest.mark.parametrize("kept", [True, False])
def test_another_attempt_with_the_same_holders_ends_with_the_same_bits(tmp_path, breaks_at, kept):
    config, folder = encoded_config(save_steps=2), tmp_path / "kept" if kept else None
    whole = train(small_primary(), small_secondaries(3), SPLIT, config)
    _, lists = elsewhere(config, folder, breaks_at)
    for _ in range(3):  # every holder breaks off once
        with pytest.raises(LostError):
            train_with(small_primary(), lists, SPLIT, config, folder=folder)
    again = train_with(small_primary(), lists, SPLIT, config, folder=folder)
    assert same_weights(again.parts["primary"], whole.parts["primary"])
    assert (again.predictions["test"] == whole.predictions["test"]).all()
    assert without_time(again.history) == without_time(whole.history)


def test_holders_in_this_process_start_over_too():
    class Failing(Hook):
        def stepped(self, step):
            if step == 4:
                raise LostError

    config = small_config()
    lists = start_local_secondaries(small_secondaries(3), training_settings(config, SPLIT, None))
    with pytest.raises(LostError):
        train_with(small_primary(), lists, SPLIT, config, hooks=[Failing()])
    again = train_with(small_primary(), lists, SPLIT, config)
    assert same_bits(train(small_primary(), small_secondaries(3), SPLIT, config), again)


def test_a_method_without_partners_leaves_the_holders_alone():
    log, lists = elsewhere(small_config())
    result = train_with(small_primary(), lists, SPLIT, small_config(METHODS["solo"]))
    assert (log, result.model.groups) == ([], ())


def test_lists_that_do_not_fit_are_refused():
    config = small_config()
    first, second = start_local_secondaries(small_secondaries(2), training_settings(config, SPLIT, None))
    short = replace(first, neighbours=first.neighbours.reorder(first.neighbours.partner[:, :0]))
    faults = {
        "no-holder": [replace(first, holders=())],
        "repeated-name": [first, first],
        "aligned-sizes": [replace(first, holders=first.holders + second.holders)],
        "list-shape": [short],
        "no-secondary": [],
    }
    for code, lists in faults.items():
        with pytest.raises(InputError) as caught:
            train_with(small_primary(), lists, SPLIT, config)
        assert caught.value.code == code


def test_a_run_that_keeps_checkpoints_needs_holders_that_do(tmp_path):
    lists = start_local_secondaries(small_secondaries(), training_settings(small_config(), SPLIT, None))
    with raises(SettingError, "no-checkpoint-folder"):
        train_with(small_primary(), lists, SPLIT, small_config(), folder=tmp_path)
