"""A plan of trainings, and the trainings that it stores."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from error_fixtures import raises
from fedsim.cli import main
from fedsim.errors import SettingError
from fedsim_lab.stored_trainings import StoredTrainings
from fedsim_lab.study_config import read_study
from fedsim_lab.training_plan import PlanStep, TrainingPlan, read_plan_steps

FILES = Path(__file__).parents[3] / "experiments" / "paper"
STUDY = """
title = "Firms"
place = "nowhere"

[[parts]]
dataset = "firms"
measure = "rmse"
records = 150
vary = "split"
values = ["fixed", "random"]
rungs = ["solo", "fedsim", "exact-mean"]
settings = { all = { epochs = 1, k = 3 } }
"""
PLAN = """
[[steps]]
study = "table-real"
part = "firms"
values = ["fixed"]
rungs = ["solo"]
seeds = 2

[[steps]]
study = "table-real"
part = "firms"
seeds = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    paper = tmp_path / "experiments" / "paper"
    paper.mkdir(parents=True)
    (paper / "table-real.toml").write_text(STUDY)
    (paper / "plan.toml").write_text(PLAN)
    return paper


def plan_in(folder: Path) -> TrainingPlan:
    stored = StoredTrainings(folder.parent / "results" / "paper" / "trainings.jsonl")
    return TrainingPlan(folder / "plan.toml", None, stored)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["lab", *words])
    return int(end.value.code or 0)


def test_every_step_of_the_projects_plan_names_a_part_its_methods_and_values() -> None:
    for step in read_plan_steps(FILES / "plan.toml"):
        study = read_study(FILES / f"{step.study}.toml")
        part = step.chosen_part(study)
        whole = next(one for one in study.parts if one.title == step.part)
        assert set(part.rungs) <= set(whole.rungs), step
        assert set(part.values) <= set(whole.values), step


def test_a_plan_that_was_stopped_continues_with_the_next_training(folder: Path) -> None:
    ticks = count(0, 40)
    assert plan_in(folder).run(100, lambda _: None, clock=lambda: next(ticks)) == 2
    stored = plan_in(folder).stored.path
    stored.write_text(stored.read_text() + '{"cut sh')
    assert plan_in(folder).run(3600, lambda _: None) == 2  # seed 0 draws the fixed split
    assert plan_in(folder).run(3600, lambda _: None) == 0
    assert [one.stored for one in plan_in(folder).progress()] == [2, 6]


def test_a_stored_training_names_its_settings_data_code_and_time(folder: Path) -> None:
    assert run("plan", str(folder / "plan.toml"), "--hours", "1", "--quiet") == 0
    lines = plan_in(folder).stored.lines
    assert {line["settings"]["key"] for line in lines} == {"solo", "fedsim", "exact-mean"}
    assert {"data", "revision", "commit", "threads", "cpu_seconds", "test"} <= set(lines[0])
    assert lines[0]["data"].split()[0] == lines[1]["data"].split()[0]
    assert [line["seed"] for line in lines[:2]] == [0, 1]


def test_a_table_of_stored_trainings_trains_nothing_and_shows_how_many_there_are(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_in(folder).run(3600, lambda _: None)
    out = tmp_path / "out"
    words = ["--studies", str(folder), "--out", str(out), "--seeds", "2", "--stored"]
    assert run("reproduce", "table-real", *words) == 0
    rows = {row[0]: row for row in json.loads((out / "table-real.json").read_text())["tables"][0]["rows"]}
    assert rows["Solo"][1].endswith("(2)")
    assert rows["FedSim"][1].endswith("(1)")
    assert not (out / "trainings").exists()


def test_an_unknown_part_is_refused(folder: Path) -> None:
    with raises(SettingError, code="unknown-part"):
        PlanStep("table-real", "frims", 1).chosen_part(read_study(folder / "table-real.toml"))
