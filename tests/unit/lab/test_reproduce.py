"""`fedsim lab reproduce`: names, folders, plans and interruptions."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from fedsim_lab.reproduce import STUDIES
from fedsim_lab.worker_pool import read_plan
from lab_fixtures import STUDY, reproduce


def test_delta_keeps_its_trainings_on_the_papers_split_and_its_time(folder: Path) -> None:
    both = 'k = 3\nvary = "split"\nvalues = ["random", "group"]'
    (folder / "table-real.toml").write_text(
        STUDY.replace('vary = "k"\nvalues = [3, 6]', both).replace(", values = [3]", "")
    )
    assert reproduce(folder, "figure-delta", "--fast", "--quiet") == 0
    sheet = json.loads((folder / "out" / "fast" / "figure-delta.json").read_text())
    assert sheet["facts"]["seconds"] > 0
    assert pl.read_parquet(folder / "out" / "fast" / "figure-delta.parquet")["split"].to_list() == ["fixed"] * 2


@pytest.mark.parametrize(("option", "name"), [("--out", "figure-k.toml"), ("--out", "figure-k.toml/below")])
def test_a_folder_that_cannot_be_made_is_refused(
    folder: Path, option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(folder, "figure-k", option, str(folder / name)) == 2
    assert "the folder" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--data", "--gather"])
def test_a_folder_to_read_that_is_not_there_is_refused(
    folder: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(folder, "figure-k", option, str(folder / "nowhere")) == 2
    assert str(folder / "nowhere") in capsys.readouterr().err


def test_all_can_be_planned_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in STUDIES:
        (folder / f"{name}.toml").write_text(STUDY)
    (folder / "leaderboard.toml").write_text('[[parts]]\ndataset = "firms"\nrecords = 60\nepochs = 1\n')
    assert reproduce(folder, "all", "--fast", "--plan", str(folder / "plan")) == 0
    ladder = [order.rung.key for order in read_plan(folder / "plan" / "plan.json")[2:]]
    assert "fedsim" in ladder
    assert str(2 + len(ladder)) in capsys.readouterr().out


def test_who_stops_is_told_that_nothing_is_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsim.contribution.rungs.fit", stopped)
    assert reproduce(folder, "figure-k") == 130
    assert "stopped" in capsys.readouterr().err


def test_a_mistyped_name_is_corrected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(folder, "tabel-real") == 2
    assert "did you mean 'table-real'?" in capsys.readouterr().err
