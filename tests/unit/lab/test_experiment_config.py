"""An experiment file becomes links, arrays, trainings and a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.cli import main
from fedsim.contribution.rungs import Rung, SplitArrays, run_training
from fedsim.errors import FedSimError
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.datasets.generated import generate_firms
from fedsim_lab.experiment_config import read_experiment_config, read_experiment_dataset

OUTLINE = """
name = "toy"
unit = "coins"
task = "regression"
splits = ["random", "group"]

[primary]
file = "flats.csv"
label = "price"
identifiers = ["lat", "lon"]

[secondary]
file = "schools.csv"
identifiers = ["lat", "lon"]
drop = ["name"]

[link]
metric = "euclidean"
k = 6

[[rungs]]
name = "Solo"
preset = "modern"
method = "solo"
epochs = 1

[[rungs]]
name = "FedSim, placebo"
preset = "paper"
method = "fedsim"
partner = "placebo"
inputs = "identifiers"
k = 3
epochs = 1
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    places = rng.normal(size=(30, 2)).round(3)
    at = rng.integers(0, 30, 120)
    flats = {"lat": places[at, 0], "lon": places[at, 1], "area": rng.normal(size=120), "price": rng.normal(size=120)}
    schools = {"name": [f"s{i}" for i in range(20)], "lat": rng.normal(size=20), "lon": rng.normal(size=20)}
    pl.DataFrame(flats).write_csv(tmp_path / "flats.csv")
    pl.DataFrame({**schools, "rank": rng.normal(size=20)}).write_csv(tmp_path / "schools.csv")
    (tmp_path / "toy.toml").write_text(OUTLINE)
    return tmp_path


def arrays_of(toy: Path, split: str = "random") -> SplitArrays:
    return DatasetCases(read_experiment_dataset(read_experiment_config(toy / "toy.toml"), toy)).one(split, 0)


def test_links_and_scale_belong_to_the_training_records(toy: Path) -> None:
    arrays = arrays_of(toy)
    linked = arrays.secondaries[0]
    trained = linked.similarity[linked.list_of[arrays.split.train]]
    assert abs(trained.mean()) < 1e-5
    assert abs(trained.std() - 1) < 1e-5
    assert linked.partner.shape == (30, 6)


def test_a_group_split_keeps_equal_places_together(toy: Path) -> None:
    arrays = arrays_of(toy, "group")
    assert not set(arrays.groups[arrays.split.train]) & set(arrays.groups[arrays.split.test])


def test_names_that_are_compared_in_lower_case_are_one_group_in_any_case() -> None:
    firms = generate_firms(np.random.default_rng(0), ours=50, theirs=80).dataset()
    names, loud = firms.primary.frame, firms.primary.frame.with_columns(pl.col("name").str.to_uppercase())
    twice = replace(firms, primary=replace(firms.primary, frame=pl.concat([names, loud])))
    groups = DatasetCases(twice).groups
    np.testing.assert_array_equal(groups[:50], groups[50:])


def test_a_placebo_partner_keeps_its_links_and_loses_its_order(toy: Path) -> None:
    rung, arrays = read_experiment_config(toy / "toy.toml").rungs[1], arrays_of(toy)
    (secondary,) = rung.secondary_data(arrays)
    assert rung.primary_data(arrays).features.numbers.shape[1] == 3
    assert secondary.partner.shape == (120, 3)
    np.testing.assert_array_equal(secondary.partner, arrays.secondaries[0].partner[arrays.groups, :3])
    shuffled, real = secondary.features.numbers, arrays.secondaries[0].features.numbers
    assert not np.array_equal(shuffled, real)
    np.testing.assert_array_equal(np.sort(shuffled, axis=0), np.sort(real, axis=0))


def test_as_many_partners_as_were_linked_is_the_same_training_as_all_of_them(toy: Path) -> None:
    arrays = arrays_of(toy)
    linked = arrays.secondaries[0].partner.shape[1]
    every = Rung("fedsim", "FedSim", "fedsim", preset="modern", epochs=1)
    asked, fewer = replace(every, k=linked), replace(every, k=linked - 1)
    assert asked.result_key(arrays) == every.result_key(arrays) != fewer.result_key(arrays)
    np.testing.assert_array_equal(run_training(asked, arrays).predictions, run_training(every, arrays).predictions)


def test_the_command_trains_every_rung_once_and_prints_the_table(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "experiment", str(toy / "toy.toml"), "--data", str(toy), "--out", str(toy / "out"), "--seeds", "1"]
    for _ in range(2):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code in (0, None)
    lines = [json.loads(line) for line in (toy / "out" / "results.jsonl").read_text().splitlines()]
    assert [(line["settings"]["name"], line["split"]) for line in lines] == [
        ("Solo", "random"),
        ("FedSim, placebo", "random"),
        ("Solo", "group"),
        ("FedSim, placebo", "group"),
    ]
    assert "| Solo | " in capsys.readouterr().out


def test_programs_get_every_training_and_quiet_people_nothing(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "experiment", str(toy / "toy.toml"), "--data", str(toy), "--out", str(toy / "out"), "--seeds", "1"]
    printed = {}
    for option in ("--quiet", "--json"):
        with pytest.raises(SystemExit):
            main([*words, option])
        printed[option] = capsys.readouterr().out
    assert printed["--quiet"] == ""
    found = json.loads(printed["--json"])
    assert [line["settings"]["name"] for line in found["trainings"]] == ["Solo", "FedSim, placebo"] * 2


@pytest.mark.parametrize(
    ("word", "other", "seen"),
    [
        ('metric = "euclidean"', 'metrik = "euclidean"', "metrik"),
        ("k = 6\n", "\n", "lacks"),
        ("[link]", "[[link", "toy"),
    ],
)
def test_a_faulty_file_is_answered_with_a_sentence(toy: Path, word: str, other: str, seen: str) -> None:
    (toy / "toy.toml").write_text(OUTLINE.replace(word, other, 1))
    with pytest.raises(FedSimError, match=seen):
        read_experiment_config(toy / "toy.toml")


def test_a_rung_with_other_settings_is_trained_again(toy: Path) -> None:
    words = ["lab", "experiment", str(toy / "toy.toml"), "--data", str(toy), "--out", str(toy / "out"), "--seeds", "1"]
    for epochs in (1, 2):
        (toy / "toy.toml").write_text(OUTLINE.replace("epochs = 1", f"epochs = {epochs}", 1))
        with pytest.raises(SystemExit):
            main(words)
    lines = [json.loads(line) for line in (toy / "out" / "results.jsonl").read_text().splitlines()]
    assert [line["settings"]["epochs"] for line in lines if line["settings"]["name"] == "Solo"] == [1, 1, 2, 2]
