"""Equal seeds give equal bits, and so does a run that was killed and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedsim.errors import FileError, SettingError
from fedsim.splitnn.party_model import AdamW
from fedsim.training import train
from fedsim.training.loop import EpochPlan
from resume_fixtures import KillAt, KilledError, last_tensors, run, same_bits, survive, without_time
from training_fixtures import METHODS, SPLIT, encoded_config, small_config, small_primary, small_secondaries

LONGER = small_config(epochs=4)


@pytest.mark.parametrize("config", [LONGER, encoded_config(epochs=3)])
def test_equal_seeds_give_equal_bits(config):
    first, second = run(config), run(config)
    assert same_bits(first, second)
    assert (first.predictions["test"] == second.predictions["test"]).all()
    assert without_time(first.history) == without_time(second.history)


def test_other_seeds_give_other_weights():
    assert not same_bits(run(LONGER), run(replace(LONGER, seed=1)))


@pytest.mark.parametrize("steps", [(1,), (3,), (5, 9), (2, 4, 6, 13), (12,)])
@pytest.mark.parametrize("config", [LONGER, encoded_config(epochs=4), encoded_config(epochs=4, members=2)])
def test_a_killed_run_ends_with_the_same_bits(tmp_path, config, steps):
    whole = run(config)
    survivor = survive(config, tmp_path, KillAt(*steps))
    assert same_bits(whole, survivor)
    assert without_time(whole.history) == without_time(survivor.history)
    assert whole.metrics == survivor.metrics


@pytest.mark.parametrize("save_steps", [None, 1])
def test_a_run_killed_around_the_end_of_its_patience_ends_with_the_same_bits(tmp_path, save_steps):
    config = encoded_config(epochs=20, patience=2, optimiser=AdamW(rate=0.1))
    whole = run(config)
    cooled = EpochPlan.of(config).waited_until(whole.history)
    assert cooled is not None
    assert cooled < len(whole.history)
    kills = KillAt(3 * cooled, 3 * cooled + 1, 3 * cooled + 3, 3 * cooled + 5)  # three steps per epoch
    survivor = survive(replace(config, save_steps=save_steps), tmp_path, kills)
    assert same_bits(whole, survivor)
    assert without_time(whole.history) == without_time(survivor.history)


def test_the_log_of_a_killed_run_has_every_epoch_once(tmp_path):
    survive(LONGER, tmp_path, KillAt(2, 7, 11))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "epoch", "epoch", "epoch", "epoch", "end"]
    assert [line["number"] for line in lines[1:5]] == [1, 2, 3, 4]


def test_every_party_has_its_own_folder_and_keeps_two_checkpoints(tmp_path):
    run(LONGER, folder=tmp_path)
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert folders == ["first", "primary", "second", "third"]
    for name in folders:
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["step-000000009", "step-000000012"]


def test_fewer_checkpoints_lose_more_steps_and_no_bits(tmp_path):
    seldom = replace(LONGER, save_every=3)
    survivor = survive(seldom, tmp_path, KillAt(5, 12))
    assert same_bits(run(LONGER), survivor)
    assert sorted(path.name for path in (tmp_path / "primary").iterdir()) == ["step-000000009", "step-000000012"]


def test_a_finished_run_is_not_trained_again(tmp_path):
    first, second = run(LONGER, folder=tmp_path), run(LONGER, folder=tmp_path, hooks=[KillAt(1)])
    assert same_bits(first, second)
    assert first.history == second.history


@pytest.mark.parametrize(
    ("change", "words"),
    [({"batch": 8}, "config.batch is 8 here, 16 there"), ({"method": METHODS["avgsim"]}, "config.method.kind")],
)
def test_a_folder_of_another_configuration_is_refused(tmp_path, change, words):
    run(LONGER, folder=tmp_path)
    with pytest.raises(FileError, match=words):
        run(replace(LONGER, **change), folder=tmp_path)


def test_a_folder_of_other_data_is_refused(tmp_path):
    run(LONGER, folder=tmp_path)
    noisy = [
        replace(data, similarity=data.similarity + 1) if data.similarity is not None else data
        for data in small_secondaries(3)
    ]
    for primary, secondaries in ((small_primary(seed=1), small_secondaries(3)), (small_primary(), noisy)):
        with pytest.raises(FileError, match=r"job\.data"):
            train(primary, secondaries, SPLIT, LONGER, folder=tmp_path)


def test_a_primary_that_died_before_its_checkpoint_takes_the_secondaries_back(tmp_path):
    """The secondaries are one checkpoint ahead, as after a kill between their saving and the primary's."""
    whole = run(LONGER)
    with pytest.raises(KilledError):
        run(LONGER, folder=tmp_path, hooks=[KillAt(8)])
    (tmp_path / "first" / "step-000000006").mkdir(exist_ok=True)
    (tmp_path / "first" / "step-000000009").mkdir()
    assert same_bits(whole, run(LONGER, folder=tmp_path))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run and what it left on the disk."""
    folder = tmp_path_factory.mktemp("whole")
    return run(BRISK, folder=folder), last_tensors(folder)


BRISK = encoded_config(epochs=3)  # three steps per epoch


@pytest.mark.parametrize("save_steps", [1, 2, 3])
@pytest.mark.parametrize("step", range(1, 10))
def test_a_run_killed_at_any_step_goes_on_inside_the_epoch_and_loses_no_bit(tmp_path, whole, step, save_steps):
    survivor = survive(replace(BRISK, save_steps=save_steps), tmp_path, KillAt(step))
    assert same_bits(whole[0], survivor)
    assert without_time(whole[0].history) == without_time(survivor.history)
    assert last_tensors(tmp_path) == whole[1]


def test_a_run_killed_after_every_step_ends_with_the_same_bits(tmp_path, whole):
    hook = KillAt(1, 2, 3, 5, 6, 7, 9, 10, 11)  # the last step of an epoch is kept after validation, so it is repeated
    survivor = survive(replace(BRISK, save_steps=1), tmp_path, hook)
    assert same_bits(whole[0], survivor)
    assert without_time(whole[0].history) == without_time(survivor.history)
    assert (last_tensors(tmp_path), hook.seen) == (whole[1], 12)


def test_a_run_that_keeps_many_checkpoints_repeats_few_steps(tmp_path):
    hook = KillAt(8)  # the second step of the third epoch
    survive(replace(BRISK, save_steps=1, save_every=9), tmp_path, hook)
    assert hook.seen == 9


def test_two_checkpoints_are_kept_inside_an_epoch_too(tmp_path):
    with pytest.raises(KilledError):
        run(replace(BRISK, save_steps=1), folder=tmp_path, hooks=[KillAt(5)])
    for party in ("first", "primary", "second", "third"):
        assert sorted(path.name for path in (tmp_path / party).iterdir()) == ["step-000000004", "step-000000005"]


def test_how_often_checkpoints_are_written_may_change_between_attempts(tmp_path, whole):
    with pytest.raises(KilledError):
        run(replace(BRISK, save_steps=1), folder=tmp_path, hooks=[KillAt(5)])
    assert same_bits(whole[0], run(replace(BRISK, save_every=2), folder=tmp_path))


def test_steps_between_checkpoints_are_a_whole_number():
    with pytest.raises(SettingError, match="save_steps=0"):
        small_config(save_steps=0)


KILLED = """
import os, signal, sys
from dataclasses import replace
from resume_fixtures import run
from test_resume import BRISK

def killing(after, flush=os.fsync):
    def fsync(handle):
        nonlocal after
        after -= 1
        if after < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(handle)
    return fsync

for after in (0, 1, 7, 13, 14, 20):  # twelve flushes make a checkpoint of four parties
    child = os.fork()
    if not child:
        os.fsync = killing(after)
        run(replace(BRISK, save_steps=1), folder=sys.argv[1])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def test_a_process_killed_while_it_writes_goes_on_with_the_same_bits(tmp_path, whole):
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1])])
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True, env={**os.environ, "PYTHONPATH": paths})
    survivor = run(replace(BRISK, save_steps=1), folder=tmp_path)
    assert same_bits(whole[0], survivor)
    assert without_time(whole[0].history) == without_time(survivor.history)
    assert last_tensors(tmp_path) == whole[1]
