"""Equal seeds give equal bits, and so does a run that was killed and started again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from fedsim.errors import FileError
from fedsim.training import Hook, train
from small_jobs import METHODS, SPLIT, encoded_config, small_config, small_primary, small_secondaries

LONGER = small_config(epochs=4)


class KilledError(Exception):
    pass


class KillAt(Hook):
    """Raises after this many steps of the run it watches, counted over restarts."""

    def __init__(self, *steps):
        self.steps, self.seen = set(steps), 0

    def stepped(self, step):
        self.seen += 1
        if self.seen in self.steps:
            raise KilledError


def run(config=LONGER, **options):
    return train(small_primary(), small_secondaries(3), SPLIT, config, **options)


def survive(config, folder, hook):
    """Start again after every kill."""
    while True:
        try:
            return run(config, folder=folder, hooks=[hook])
        except KilledError:
            continue


def same_bits(left, right):
    return all(
        torch.equal(tensor, right.parts[party][name])
        for party, weights in left.parts.items()
        for name, tensor in weights.items()
    )


def without_time(history):
    return [replace(epoch, seconds=0.0) for epoch in history]


@pytest.mark.parametrize("config", [LONGER, encoded_config(epochs=3)])
def test_equal_seeds_give_equal_bits(config):
    first, second = run(config), run(config)
    assert same_bits(first, second)
    assert (first.predictions["test"] == second.predictions["test"]).all()
    assert without_time(first.history) == without_time(second.history)


def test_other_seeds_give_other_weights():
    assert not same_bits(run(), run(replace(LONGER, seed=1)))


@pytest.mark.parametrize("steps", [(1,), (3,), (5, 9), (2, 4, 6, 13), (12,)])
@pytest.mark.parametrize("config", [LONGER, encoded_config(epochs=4)])
def test_a_killed_run_ends_with_the_same_bits(tmp_path, config, steps):
    whole = run(config)
    survivor = survive(config, tmp_path, KillAt(*steps))
    assert same_bits(whole, survivor)
    assert without_time(whole.history) == without_time(survivor.history)
    assert whole.metrics == survivor.metrics


def test_the_log_of_a_killed_run_has_every_epoch_once(tmp_path):
    survive(LONGER, tmp_path, KillAt(2, 7, 11))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "epoch", "epoch", "epoch", "epoch", "end"]
    assert [line["number"] for line in lines[1:5]] == [1, 2, 3, 4]


def test_every_party_has_its_own_folder_and_keeps_two_checkpoints(tmp_path):
    run(folder=tmp_path)
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert folders == ["first", "primary", "second", "third"]
    for name in folders:
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["step-000000009", "step-000000012"]


def test_fewer_checkpoints_lose_more_steps_and_no_bits(tmp_path):
    seldom = replace(LONGER, save_every=3)
    survivor = survive(seldom, tmp_path, KillAt(5, 12))
    assert same_bits(run(), survivor)
    assert sorted(path.name for path in (tmp_path / "primary").iterdir()) == ["step-000000009", "step-000000012"]


def test_a_finished_run_is_not_trained_again(tmp_path):
    first, second = run(folder=tmp_path), run(folder=tmp_path, hooks=[KillAt(1)])
    assert same_bits(first, second)
    assert first.history == second.history


@pytest.mark.parametrize(
    ("change", "words"),
    [({"batch": 8}, "config.batch is 8 here, 16 there"), ({"method": METHODS["avgsim"]}, "config.method.kind")],
)
def test_a_folder_of_another_configuration_is_refused(tmp_path, change, words):
    run(folder=tmp_path)
    with pytest.raises(FileError, match=words):
        run(replace(LONGER, **change), folder=tmp_path)


def test_a_folder_of_other_data_is_refused(tmp_path):
    run(folder=tmp_path)
    noisy = [
        replace(data, similarity=data.similarity + 1) if data.similarity is not None else data
        for data in small_secondaries(3)
    ]
    for primary, secondaries in ((small_primary(seed=1), small_secondaries(3)), (small_primary(), noisy)):
        with pytest.raises(FileError, match=r"job\.data"):
            train(primary, secondaries, SPLIT, LONGER, folder=tmp_path)


def test_a_primary_that_died_before_its_checkpoint_takes_the_secondaries_back(tmp_path):
    """The secondaries are one checkpoint ahead, as after a kill between their saving and the primary's."""
    whole = run()
    with pytest.raises(KilledError):
        run(folder=tmp_path, hooks=[KillAt(8)])
    (tmp_path / "first" / "step-000000006").mkdir(exist_ok=True)
    (tmp_path / "first" / "step-000000009").mkdir()
    assert same_bits(whole, run(folder=tmp_path))
