"""Every hyper-parameter is declared once, has the same name everywhere, and reaches the networks."""

from __future__ import annotations

from dataclasses import fields

import pytest
from pydantic import ValidationError

from error_fixtures import raises
from fedsim.config.job import TrainingSection
from fedsim.config.settings_schema import find_settings
from fedsim.contribution import Rung
from fedsim.contribution.tuning import parse_values, tuned_types
from fedsim.errors import SettingError
from fedsim.estimator import FedSimRegressor
from fedsim.hyperparameters import RENAMED, TrainingSettings, hyperparameters, refuse_renamed
from fedsim.training.config import build_config

PARAMETERS = list(hyperparameters().items())


@pytest.mark.parametrize(("name", "rule"), PARAMETERS)
def test_a_hyperparameter_has_one_name_in_jobs_estimators_ladder_and_tuning(name, rule):
    settings = TrainingSettings(**{name: rule.example})
    assert TrainingSection(**{name: rule.example}).settings == settings
    assert TrainingSettings.of(FedSimRegressor(**{name: rule.example})) == settings
    assert TrainingSettings.of(Rung("x", "X", "fedsim", **{name: rule.example})) == settings
    assert parse_values([f"{name}={rule.example}"], tuned_types()) == {name: [rule.example]}
    (documented,) = find_settings(f"training.{name}")
    assert documented.meaning == rule.meaning


@pytest.mark.parametrize(("name", "rule"), PARAMETERS)
def test_a_hyperparameter_changes_the_configuration_and_nothing_else(name, rule):
    value = rule.kind(rule.high / 2)
    plain, changed = (
        build_config("fedsim", settings, seed=0, device="cpu")
        for settings in (TrainingSettings(), TrainingSettings(**{name: value}))
    )
    place = rule.place.split(".")[0]
    assert {entry.name for entry in fields(plain) if getattr(plain, entry.name) != getattr(changed, entry.name)} == {
        place
    }


@pytest.mark.parametrize(("name", "rule"), PARAMETERS)
def test_a_value_out_of_range_is_refused_in_code_and_in_job_files(name, rule):
    with raises(SettingError, "out-of-range"):
        TrainingSettings(**{name: rule.kind(rule.high * 2)})
    with pytest.raises(ValidationError):
        TrainingSection(**{name: rule.kind(rule.high * 2)})


@pytest.mark.parametrize("name", RENAMED)
def test_a_name_of_an_earlier_version_is_refused_with_the_new_one(name):
    for use in (lambda: FedSimRegressor(**{name: 1}), lambda: refuse_renamed({name: 1})):
        with pytest.raises(SettingError) as refused:
            use()
        assert refused.value.details["renamed"] == RENAMED[name]


def test_an_estimator_refuses_parameters_that_it_does_not_have():
    with pytest.raises(TypeError):
        FedSimRegressor(epoch=3)
