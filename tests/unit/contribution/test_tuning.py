"""``fedsim tune``: the settings it tries, what it writes, and that a second run continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.config.job import read_job
from fedsim.contribution.tuning import TuningGrid, TuningSetting, propose_grid
from fedsim.errors import SettingError
from init_fixtures import fedsim
from job_fixtures import lay_out

QUICK = ("--epochs", "1", "--k", "3,5", "--rate", "0.001,0.01", "--width", "8", "--members", "1", "--quiet")


def tune(folder: Path, *more: str) -> dict[str, object]:
    files = [str(folder / f"{name}.toml") for name in ("job", "city", "rentals")]
    fedsim("tune", *files, "--out", str(folder / "out"), *QUICK, *more)
    return dict(json.loads((folder / "out" / "tuning.json").read_text()))


def test_one_setting_is_tuned_after_the_other_and_the_best_are_written(tmp_path: Path) -> None:
    lay_out(tmp_path, flats=80)
    found = tune(tmp_path, "--write", str(tmp_path / "tuned.toml"))
    errors = [trial["validation"]["rmse"] for trial in found["ranking"]]
    assert errors == sorted(errors)
    assert len(errors) == 7  # the job's own settings, two K, two rates, one width; the job has one member
    job, tuned, best = (
        read_job(tmp_path / "job.toml"),
        read_job(tmp_path / "tuned.toml"),
        found["ranking"][0]["setting"],
    )
    assert tuned.training.learning_rate == best.get("rate")
    assert tuned.training.width == best.get("hidden")
    assert tuned.secondaries["rentals"].k == best.get("k", job.secondaries["rentals"].k)
    assert tuned.secondaries["rentals"].tau == job.secondaries["rentals"].tau
    trained = (tmp_path / "out" / "results.jsonl").read_text()
    assert tune(tmp_path) == found
    assert (tmp_path / "out" / "results.jsonl").read_text() == trained


def test_more_partners_than_records_are_refused_before_training(tmp_path: Path) -> None:
    lay_out(tmp_path, flats=80)
    with pytest.raises(SettingError) as refused:
        tune(tmp_path, "--k", "201")
    assert (refused.value.code, refused.value.limit) == ("out-of-range", 200)
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, flats=80)
    with pytest.raises(SettingError) as refused:
        tune(tmp_path, "--rate", "fast")
    assert refused.value.code == "invalid-axis"


def test_the_proposed_values_contain_those_of_the_job() -> None:
    assert 7 in propose_grid(7, 1000).k
    assert TuningSetting() not in TuningGrid(k=(3,)).settings()
