"""A secondary's process: its network, the embedding that it sends, and nothing above the cut."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from error_fixtures import raises
from fedsim.errors import FileError, InputError, SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.registry import PRESETS
from fedsim.splitnn import Features
from fedsim.splitnn.party_model import RandomSource
from fedsim.splitnn.secondary_model import (
    MAX_CATEGORIES,
    embed,
    passed_columns,
    restore_secondary,
    secondary_config,
    start_secondary,
)
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


KINDS = ("features", "random", "autoencoder")


@pytest.fixture
def features():
    rng = np.random.default_rng(0)
    numbers = rng.lognormal(size=(300, 3)).astype(np.float32)
    codes = np.stack([rng.integers(0, 4, 300), rng.integers(0, 60, 300)], axis=1)
    return Features(numbers, codes, (4, 60))


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_has_mean_zero_and_deviation_one(features, kind):
    rows = embed(features, kind, 16, RandomSource(1, "rentals"))
    assert rows.shape[1] == (3 + 4 + MAX_CATEGORIES if kind == "features" else 16)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(rows.std(axis=0), 1, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_rows_again(features, kind):
    first, again = (embed(features, kind, 8, RandomSource(1, "rentals")) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("kind", ["random", "autoencoder"])
def test_another_secret_gives_other_rows(features, kind):
    first, other = (embed(features, kind, 8, RandomSource(seed, "rentals")) for seed in (1, 2))
    assert not np.allclose(first, other)


def test_equal_numbers_share_their_rank_and_units_do_not_matter():
    numbers = np.array([[1.0], [2.0], [2.0], [50.0]])
    rows = passed_columns(Features(numbers))[:, 0]
    assert rows[1] == rows[2]
    np.testing.assert_allclose(rows, passed_columns(Features(numbers**3))[:, 0])


def test_a_constant_column_stays_zero():
    assert passed_columns(Features(np.full((5, 1), 7.0))).tolist() == [[0.0]] * 5


@pytest.mark.parametrize("kind", ["random", "autoencoder"])
def test_a_linear_reader_finds_the_columns_in_an_embedding(features, kind):
    """An embedding that lost the features would be worth nothing."""
    wanted, rows = passed_columns(features)[:, :3], embed(features, kind, 64, RandomSource(1, "rentals"))
    inputs = np.column_stack([rows, np.ones(len(rows))])
    left = wanted - inputs @ np.linalg.lstsq(inputs, wanted, rcond=None)[0]
    assert 1 - left.var(axis=0).mean() > 0.6


def test_an_unknown_embedding_is_refused(features):
    with pytest.raises(SettingError) as caught:
        embed(features, "colour", 8, RandomSource(1, "rentals"))
    assert caught.value.code == "unknown-name"
