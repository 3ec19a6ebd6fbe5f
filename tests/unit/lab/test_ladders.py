"""Ladders of datasets, as `fedsim lab reproduce leaderboard` climbs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.cli import main
from fedsim.contribution.ladder import (
    FEDSIM_PLACEBO,
    FEDSIM_WITH_IDENTIFIERS,
    RUNGS,
    SOLO,
    SOLO_WITH_IDENTIFIERS,
    with_settings,
)
from fedsim.contribution.rungs import Rung
from fedsim.hyperparameters import TrainingSettings
from fedsim.registry import METHODS
from fedsim.splitnn import Top1Sim
from fedsim_lab.reproduce import overview_tables
from fedsim_lab.study_runner import LadderPart, StudyContext, contribution_line, train_ladders

pytestmark = pytest.mark.usefixtures("_short")


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.contribution.ladder.MAX_DOUBLINGS", 0)


class Few(LadderPart):
    """Four rungs, for a moment each."""

    def rungs(self) -> list[Rung]:
        return with_settings(
            TrainingSettings(epochs=1, batch_size=64, members=1),
            [r for r in RUNGS if r.key in (SOLO, SOLO_WITH_IDENTIFIERS, FEDSIM_PLACEBO, FEDSIM_WITH_IDENTIFIERS)],
        )


def bench(folder: Path) -> StudyContext:
    return StudyContext(folder, folder / "out", seeds=1, report=lambda _: None)


def test_the_trainings_behind_a_ladder_are_its_own_whatever_else_the_folder_holds(tmp_path: Path) -> None:
    train_ladders([Few("firms", records=150)], bench(tmp_path))
    found = train_ladders([Few("firms", records=200)], bench(tmp_path))
    shown = {(line["settings"]["key"], line["split"]): line["seconds"] for line in found.lines}
    assert len(found.lines) == len(shown) == 4 * 2
    assert shown == {(rung["key"], rung["split"]): rung["seconds"] for rung in found.ladders[0]["rungs"]}


def test_generated_data_have_the_truth_beside_the_worth(tmp_path: Path) -> None:
    (ladder,) = train_ladders([Few("firms", records=150)], bench(tmp_path)).ladders
    assert 9.0 < ladder["truth"] < 10.0
    assert contribution_line(ladder).endswith(f"{ladder['worth']} Known truth: 9.5.")
    *scores, _, contribution = overview_tables([ladder])
    assert [table.head for table in scores] == [("method", "firms, rmse")] * 2
    assert len(scores[0].rows) == 4
    assert contribution.rows[0][0] == "firms"
    assert contribution.rows[0][-1].endswith("%")


def test_a_method_of_a_plugin_is_on_the_leaderboard() -> None:
    with METHODS.temporarily("mine", Top1Sim):
        assert "mine" in [rung.key for rung in LadderPart("firms").rungs()]


def test_the_coverage_of_the_ladder_is_measured_city_by_city_and_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    size = ["--cities", "1", "--flats", "120", "--seeds", "1", "--epochs", "1", "--split", "group"]
    printed = []
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(["lab", "bench", "ladder_coverage", "--", *size, "--rungs", "solo", "fedsim", "--out", str(tmp_path)])
        printed.append((capsys.readouterr().out, (tmp_path / "results.jsonl").read_text()))
    assert printed[0] == printed[1]
    assert "| uninformed-0 | 0.00 | " in printed[0][0]
