"""What decides a training: presets, the settings of a user, and the number of records."""

from __future__ import annotations

from typing import Any

import pytest

from error_fixtures import raises
from fedsim.errors import SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.splitnn import AvgSim, FedSim
from fedsim.training import Config, modern_preset
from fedsim.training.config import build_config
from fedsim.types import training_length


def config_of(method: str | AvgSim = "fedsim", n_train: int | None = None, **settings: Any) -> Config:
    return build_config(method, TrainingSettings(**settings), seed=3, device="cpu", n_train=n_train)


def test_the_default_is_the_modern_preset_of_a_length_that_follows_from_the_records() -> None:
    found, length = config_of(n_train=5_000), training_length(5_000)
    assert (found.epochs, found.batch, found.patience) == (length.epochs, length.batch, length.patience)
    assert found.method == modern_preset().method
    assert (found.seed, found.device) == (3, "cpu")


def test_a_setting_of_the_user_wins_over_the_preset_and_the_records() -> None:
    found = config_of(n_train=5_000, epochs=7, width=32, learning_rate=0.5)
    assert (found.epochs, found.local.hidden, found.optimiser.rate) == (7, (32,), 0.5)
    assert found.secondary.local.hidden == (32,)  # the secondaries read the same


def test_the_preset_of_the_paper_brings_its_own_fedsim_and_no_other_method() -> None:
    paper = config_of(preset="paper")
    assert isinstance(paper.method, FedSim)
    assert paper.method.merge != modern_preset().method.merge
    assert config_of("avgsim", preset="paper").method == AvgSim()


def test_a_method_object_keeps_its_settings() -> None:
    assert config_of(AvgSim(hidden=7)).method == AvgSim(hidden=7)


def test_a_method_that_needs_every_secondary_ignores_party_dropout_in_settings_and_refuses_it_itself() -> None:
    assert config_of("avgsim", party_dropout=0.1).party_dropout == 0.0
    assert config_of("fedsim", party_dropout=0.1).party_dropout == 0.1
    with raises(SettingError, "needs-every-secondary"):
        Config(AvgSim(), party_dropout=0.1)


@pytest.mark.parametrize(("records", "steps"), [(300, 3), (257, 3), (256, 2), (1, 1)])
def test_the_last_batch_may_be_smaller(records: int, steps: int) -> None:
    assert Config(batch=128).steps_per_epoch(records) == steps
