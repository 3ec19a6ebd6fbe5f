"""Tables and figures as data: files that describe them, what they train, and what comes beside the paper's figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedsim.contribution.rungs import Rung
from fedsim_lab import study_runner
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.study_config import StudyPart, read_study
from fedsim_lab.study_runner import load_sample, with_mean_partner
from lab_fixtures import FILES, Reproduced, reproduce


def test_a_second_run_trains_nothing_and_solo_is_trained_once_for_all_values(reproduced: Reproduced) -> None:
    results = reproduced.folder / "out" / "trainings" / "results.jsonl"
    lines = results.read_text()
    assert len(lines.splitlines()) == 3
    assert reproduce(reproduced.folder, "figure-k", "--seeds", "1", "--quiet") == 0
    assert results.read_text() == lines


def test_every_training_is_told_with_its_dataset_value_and_number(first_run: Reproduced) -> None:
    output = [line.strip() for line in first_run.err.splitlines()]
    places = ["[1 of 4] firms, k 3, ", "[2 of 4] firms, k 3, ", "[4 of 4] firms, k 6, "]
    assert len(output) == 3
    assert all(line.startswith(place) for line, place in zip(output, places, strict=True))


def test_the_papers_scores_are_those_of_its_split() -> None:
    part = StudyPart("hdb", ["fedsim"], "rmse", vary="split", values=["fixed", "random", "group"])
    (rung,) = part.rungs_at("fixed")
    assert study_runner._published_score(part, "fixed", rung) == (27.13, 0.06)
    assert {study_runner._published_score(part, split, rung) for split in ("random", "group")} == {None}


def test_fast_trains_less(folder: Path) -> None:
    reproduce(folder, "figure-k", "--fast", "--quiet")
    lines = [json.loads(line) for line in (folder / "out" / "trainings" / "results.jsonl").read_text().splitlines()]
    assert [(line["settings"]["k"], line["settings"]["epochs"]) for line in lines] == [(None, 1)] * 2


def test_a_study_says_how_each_method_was_trained() -> None:
    part = read_study(FILES / "table-real.toml").parts[-1]
    notes = list(study_runner.training_settings_notes(part, load_sample("firms", Path(), 200), 3))
    assert notes[0].startswith("firms: up to 3 seeds, one split for all seeds; a random split for every seed; ")
    assert notes[0].endswith("K = 10")
    (steps,) = notes[1:]
    assert steps.endswith("batches of 128, learning rate 0.003, at most 60 epochs, ends 20 epochs after the best")


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
