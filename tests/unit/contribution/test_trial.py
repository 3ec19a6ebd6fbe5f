"""A trial trains as much as fits into its time, and says what it left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.ladder import FEDSIM_WITH_IDENTIFIERS, with_settings
from fedsim.contribution.rungs import SplitArrays
from fedsim.contribution.trial import (
    MIN_EPOCHS,
    MIN_RECORDS,
    TRIAL_RUNGS,
    TrialPlan,
    choose_plan,
    full_plan,
    measure_speed,
    plan_seconds,
    sample_split,
)
from fedsim.hyperparameters import TrainingSettings
from fedsim.preflight.estimate import PRESET_SIZES, LinkListSizes, Workload, build_workload
from fedsim.splitnn import Features
from fedsim.types import Split
from job_fixtures import lay_out, read_all

LISTS = (LinkListSizes("rentals", records=5_000, candidates=20_000, k=20, n_bits=0, asked=20),)
WORK = Workload(LISTS, PRESET_SIZES["modern"], epochs=40, batch=256, wire="float32", checkpoint_steps=10, members=8)
FULL = full_plan(WORK, 8)


def split_of(train: int, validation: int, test: int) -> SplitArrays:
    parts = np.split(np.arange(train + validation + test), [train, train + validation])
    nothing = Features(np.zeros((0, 0), np.float32))
    return SplitArrays(nothing, nothing, (), np.zeros(0), np.zeros(0), Split(*parts), {})


def test_with_much_time_several_splits_are_trained_in_full() -> None:
    plan = choose_plan(WORK, FULL, 1e9, speed=1.0)
    assert plan == replace(FULL, seeds=3)
    assert plan.reductions(FULL) == []


@pytest.mark.parametrize("seconds", [20.0, 60.0, 240.0, 900.0])
def test_the_plan_fits_into_the_time_and_the_next_larger_one_does_not(seconds: float) -> None:
    plan = choose_plan(WORK, FULL, seconds, speed=1.0)
    assert plan_seconds(WORK, plan) <= seconds
    assert plan == FULL or plan_seconds(WORK, replace(FULL, seeds=3)) > seconds


def test_more_time_never_trains_less() -> None:
    plans = [choose_plan(WORK, FULL, seconds, speed=1.0) for seconds in (1, 10, 100, 1_000)]
    for less, more in pairwise(plans):
        assert less.records <= more.records
        assert less.epochs <= more.epochs
        assert less.members <= more.members


def test_without_time_the_smallest_plan_is_trained_and_says_all_that_it_leaves_out() -> None:
    plan = choose_plan(WORK, FULL, 0.0, speed=1.0)
    assert (plan.records, plan.epochs, plan.members) == (MIN_RECORDS, MIN_EPOCHS, 2)
    assert plan.reductions(FULL) == ["500 of 5,000 records", "12 of 40 epochs", "2 of 8 members per network"]


def test_a_slower_machine_gets_a_smaller_plan() -> None:
    fast, slow = (choose_plan(WORK, FULL, 120.0, speed) for speed in (0.5, 8.0))
    assert plan_seconds(WORK, slow) < plan_seconds(WORK, fast)


def test_a_sample_keeps_the_shares_of_the_split_and_draws_from_it() -> None:
    arrays = split_of(700, 100, 200)
    sample = sample_split(arrays, 100, np.random.default_rng(0)).split
    assert [len(sample.train), len(sample.validation), len(sample.test)] == [70, 10, 20]
    assert np.isin(sample.test, arrays.split.test).all()
    assert sample_split(arrays, 1_000, np.random.default_rng(0)) is arrays


def test_the_settings_of_a_job_stay_except_for_what_the_plan_reduces() -> None:
    settings = TrialPlan(500, 2, 10, 2).settings(TrainingSettings(epochs=40, learning_rate=0.01, batch_size=256))
    assert (settings.epochs, settings.patience, settings.members, settings.learning_rate) == (10, 2, 2, 0.01)
    assert settings.batch_size < 256
    assert FULL.settings(TrainingSettings(batch_size=256)).batch_size == 256


def test_the_speed_of_this_machine_is_that_of_a_short_training(tmp_path: Path) -> None:
    lay_out(tmp_path, flats=80)
    job, files = read_all(tmp_path)
    (arrays,) = JobCases.read(job, [files["city"], files["rentals"]], tmp_path / "compare").cases(1, ["random"])
    work = build_workload(job, {"city": 80, "rentals": 60}, {})
    (rung,) = with_settings(TrainingSettings(), [rung for rung in TRIAL_RUNGS if rung.key == FEDSIM_WITH_IDENTIFIERS])
    assert 0.0 < measure_speed(work, rung, arrays) < 1_000.0
