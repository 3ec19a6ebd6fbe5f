"""A secondary's process: the words of a job become its network, and nothing above the cut is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from error_fixtures import raises
from fedsim.errors import FileError, InputError, SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.registry import PRESETS
from fedsim.splitnn import Features
from fedsim.splitnn.secondary_model import restore_secondary, secondary_config, start_secondary
from fedsim.training.config import build_config
from fedsim.training.loop import start_local_secondary as start_in_training, training_settings
from training_fixtures import SPLIT, small_features, small_secondaries

ROWS = torch.arange(5)
SCRIPT = """
import sys
import fedsim.splitnn.secondary_model
above = "fedsim.training", "fedsim.splitnn.methods", "fedsim.splitnn.gates", "fedsim.splitnn.methods"
print([name for name in sys.modules if name.startswith(above)])
"""


def test_nothing_above_the_cut_is_imported():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("preset", PRESETS.names())
@pytest.mark.parametrize("rate", [None, 0.02])
def test_both_sides_of_the_cut_read_the_same_from_the_words_of_a_job(preset, rate):
    settings = TrainingSettings(preset=preset, learning_rate=rate)
    config = build_config("fedsim", settings, seed=7, device="cpu")
    assert secondary_config("fedsim", settings, seed=7) == config.secondary


def test_a_secondary_of_its_own_equals_one_in_training(tmp_path):
    settings = TrainingSettings(epochs=2, batch_size=16, learning_rate=0.01)
    config = build_config("top1sim", settings, seed=3, device="cpu")
    inside = start_in_training(small_secondaries()[0], training_settings(config, SPLIT, tmp_path))
    below, features = secondary_config("top1sim", settings, seed=3), small_secondaries()[0].features
    outside = start_secondary("first", features, below, total_steps=6, folder=tmp_path / "first")
    assert inside.checkpoint_store == outside.checkpoint_store
    assert torch.equal(inside.activations(ROWS, 0), outside.activations(ROWS, 0))
    assert (outside.pending_shape, inside.n_records) == ((5, 32), 9)


def test_a_secondary_comes_back_from_its_weights():
    features, below = small_features(9, 2, 1), secondary_config("fedsim", TrainingSettings(), seed=0)
    before = start_secondary("first", features, below, total_steps=2)
    after = restore_secondary("first", features, below, before.model.network.state_dict())
    assert torch.equal(before.infer(ROWS), after.infer(ROWS))


def test_weights_of_another_network_are_refused():
    below = secondary_config("fedsim", TrainingSettings(preset="paper"), seed=0)
    weights = start_secondary("first", small_features(9, 2, 1), below, total_steps=1).model.network.state_dict()
    with raises(FileError, "weights-mismatch"):
        restore_secondary("first", small_features(9, 3, 1), below, weights)


def test_a_secondary_without_a_folder_says_that_it_keeps_nothing():
    party = start_secondary(
        "first",
        small_features(9, 2, 1),
        secondary_config("fedsim", TrainingSettings(preset="paper"), seed=0),
        total_steps=1,
    )
    for act in (party.save, party.restore, party.forget_before):
        with raises(SettingError, "no-checkpoint-folder"):
            act(0)


def test_words_that_mean_nothing_are_refused():
    with raises(SettingError, "unknown-preset"):
        secondary_config("fedsim", TrainingSettings(preset="moderne"), seed=0)
    with raises(SettingError, "unknown-method"):
        secondary_config("fedsin", TrainingSettings(), seed=0)
    with raises(SettingError, "out-of-range"):
        TrainingSettings(learning_rate=-1.0)
    unfit = Features(torch.full((3, 1), torch.nan).numpy())
    with pytest.raises(InputError) as caught:
        start_secondary("first", unfit, secondary_config("fedsim", TrainingSettings(), seed=0), total_steps=1)
    assert (caught.value.code, caught.value.details["column"]) == ("feature-not-finite", "0")
