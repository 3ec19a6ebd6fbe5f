"""``fedsim tune``: the settings it tries, what it writes, and that a second run continues."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedsim.config.job import read_job
from fedsim.contribution.tuning import JobSubject
from fedsim.errors import SettingError
from fedsim.runtime.primary import training_config
from fedsim_lab.faults.local_job import create_local_job
from init_fixtures import fedsim
from job_fixtures import lay_out

TRIED = ("k=3,5", "learning_rate=0.001,0.01", "width=8", "members=1")
QUICK = ("--epochs", "1", *(word for values in TRIED for word in ("--try", values)), "--quiet")


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
    assert tuned.training.learning_rate == best.get("learning_rate")
    assert tuned.training.width == best.get("width")
    assert tuned.secondaries["rentals"].k == best.get("k", job.secondaries["rentals"].k)
    assert tuned.secondaries["rentals"].tau == job.secondaries["rentals"].tau
    trained = (tmp_path / "out" / "results.jsonl").read_text()
    assert tune(tmp_path) == found
    assert (tmp_path / "out" / "results.jsonl").read_text() == trained


def test_few_validation_records_are_reported_with_their_number(tmp_path: Path) -> None:
    lay_out(tmp_path, flats=80)
    files = [str(tmp_path / f"{name}.toml") for name in ("job", "city", "rentals")]
    printed = fedsim("tune", *files, "--out", str(tmp_path / "out"), *QUICK[:-1])
    found = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert found["validation_records"] < 100
    assert [str(found["validation_records"]) in warning for warning in found["warnings"]] == [True]
    assert "width 8" in printed


def test_more_partners_than_records_are_refused_before_training(tmp_path: Path) -> None:
    lay_out(tmp_path, flats=80)
    with pytest.raises(SettingError) as refused:
        tune(tmp_path, "--try", "k=201")
    assert (refused.value.code, refused.value.limit) == ("out-of-range", 200)
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, flats=80)
    with pytest.raises(SettingError) as refused:
        tune(tmp_path, "--try", "learning_rate=fast")
    assert refused.value.code == "invalid-axis"


def test_the_proposed_values_contain_those_of_the_job_and_what_every_secondary_has_records_for(tmp_path: Path) -> None:
    for name, terms in (("one", {"rentals": {"k": 7}}), ("two", {"rentals": {"k": 20}, "schools": {"k": 50}})):
        place = create_local_job(tmp_path / name, n_secondaries=len(terms), secondaries=terms)
        subject = JobSubject(place.job, [place.own(party) for party in place.names], tmp_path / "out", 1, None)
        grid = subject.grid({"width": [8]})
        assert list(grid.get("k", [7])) == [1, 3, 7, 14] if name == "one" else "k" not in grid
        assert grid["width"] == [8]
        assert 8 in grid["members"]


def test_a_job_is_tuned_with_the_settings_it_trains_with(tmp_path: Path) -> None:
    training = {"epochs": 3, "batch_size": 64, "party_dropout": 0.2, "learning_rate": 0.01, "width": 16}
    place = create_local_job(tmp_path / "place", training=training)
    job = place.job
    config = JobSubject(job, [], tmp_path, 1, None).rung({"members": 2}).config(job.seed, device="cpu")
    assert replace(training_config(job), members=2, save_steps=None) == config


def test_every_secondary_keeps_a_k_of_its_own(tmp_path: Path) -> None:
    terms = {"rentals": {"k": 8}, "schools": {"k": 3}}
    place = create_local_job(tmp_path / "place", n_secondaries=2, secondaries=terms)
    subject = JobSubject(place.job, [place.own(name) for name in place.names], tmp_path / "out", 1, None)
    for setting, expected in (({}, [8, 3]), ({"k_factor": 0.5}, [4, 1])):
        (arrays,) = subject.cases(setting)
        assert [linked.partner.shape[1] for linked in arrays.secondaries] == expected
    written = subject.job_settings({"k_factor": 2.0, "width": 8})
    assert written == {
        ("training", "width"): 8,
        ("secondaries", "rentals", "k"): 16,
        ("secondaries", "schools", "k"): 6,
    }


def test_metrics_of_a_logarithm_are_named_so(tmp_path: Path) -> None:
    lay_out(tmp_path, {"job": {'split = "random"': 'split = "random"\nlabel_scale = "log"'}}, flats=80)
    assert tune(tmp_path)["label"] == "log(price)"
