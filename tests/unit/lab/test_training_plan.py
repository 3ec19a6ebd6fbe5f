"""A plan of trainings, and the trainings that it stores."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from error_fixtures import raises
from fedsim.cli import main
from fedsim.contribution.rungs import Rung, run_training
from fedsim.errors import SettingError
from fedsim.splitnn.gates import WeightedOutputs
from fedsim_lab.ablations import SortedByWeightNetwork
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.stored_trainings import StoredTrainings
from fedsim_lab.study_config import read_study
from fedsim_lab.study_runner import load_sample, with_mean_partner
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


def test_trainings_of_an_earlier_revision_are_shown_and_trained_again(folder: Path) -> None:
    plan = plan_in(folder)
    plan.run(3600, lambda _: None)
    old = [{**line, "revision": None} for line in plan.stored.lines]
    plan.stored.path.write_text("".join(json.dumps(line) + "\n" for line in old))
    again = plan_in(folder)
    rung, arrays = next(again.trainings(again.steps()[0]))
    assert again.stored.find(rung, arrays) is not None
    assert not again.stored.is_current(rung, arrays)


def test_an_unknown_part_is_refused(folder: Path) -> None:
    with raises(SettingError, code="unknown-part"):
        PlanStep("table-real", "frims", 1).chosen_part(read_study(folder / "table-real.toml"))


def test_training_seeds_share_one_fixed_split() -> None:
    cases = DatasetCases(load_sample("firms", Path(), 60))
    first, second = cases.each(["fixed"], [0, 1])
    np.testing.assert_array_equal(first.split.test, second.split.test)
    np.testing.assert_array_equal(first.split.test, cases.one("random", 0).split.test)
    assert (first.about["seed"], second.about["seed"]) == (0, 1)


def test_records_without_an_exact_match_get_the_mean_of_the_training_matches() -> None:
    arrays = DatasetCases(load_sample("firms", Path(), 120)).one("fixed", 0)
    with_mean = with_mean_partner(arrays)
    before, after = arrays.secondaries[0], with_mean.secondaries[0]
    ((_, partner, _),) = [
        (one.name, one.partner, one.similarity) for one in Rung("x", "", "exact").secondary_data(with_mean)
    ]
    matched = before.equal[before.list_of[arrays.split.train]]
    expected = after.features.numbers[matched[matched >= 0]].mean(axis=0)
    unmatched = before.equal[before.list_of] < 0
    assert unmatched.any()
    assert not unmatched.all()
    np.testing.assert_allclose(
        after.features.numbers[partner[unmatched, 0]], expected[None].repeat(unmatched.sum(), 0), atol=1e-5
    )
    np.testing.assert_array_equal(partner[~unmatched, 0], before.equal[before.list_of][~unmatched])


def test_sorting_by_weight_gives_the_merge_gate_rows_of_rising_weight() -> None:
    weight = torch.tensor([[0.9, 0.1, 0.5]])
    outputs = torch.arange(6.0).reshape(1, 3, 2)
    seen: list[WeightedOutputs] = []

    class Watch(nn.Module):
        def forward(self, lists: list[WeightedOutputs], primary: torch.Tensor, generator: object) -> torch.Tensor:
            seen.extend(lists)
            return primary

    SortedByWeightNetwork(Watch())([WeightedOutputs(outputs, weight)], torch.zeros(1), None)
    assert seen[0].weight.tolist() == [[pytest.approx(0.1), 0.5, pytest.approx(0.9)]]
    assert seen[0].outputs.tolist() == [[[2.0, 3.0], [4.0, 5.0], [0.0, 1.0]]]


@pytest.mark.parametrize("variant", ["by-weight", "mean-merge"])
def test_variants_of_the_gates_train_on_the_papers_sizes(variant: str) -> None:
    arrays = DatasetCases(load_sample("firms", Path(), 120)).one("fixed", 0)
    rung = Rung(variant, variant, f"fedsim-{variant}", preset="paper", epochs=2, k=3)
    assert np.isfinite(run_training(rung, arrays).test["rmse"])


def test_two_plans_that_store_in_one_file_keep_each_others_trainings(folder: Path) -> None:
    first, second = plan_in(folder), plan_in(folder)
    rung, _arrays = next(first.trainings(first.steps()[0]))
    line = {"settings": {"key": rung.key, "name": rung.name, "method": rung.method}, "revision": 3}
    for number in range(3):
        first.stored.add({**line, "data": f"first {number}"})
        second.stored.add({**line, "data": f"second {number} of a longer line"})
    assert len(plan_in(folder).stored.lines) == 6
