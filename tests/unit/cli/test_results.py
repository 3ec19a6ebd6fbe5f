"""Runs are listed and reported; what cannot be read is refused with a way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.cli import main
from run_fixtures import record_of, write_ladder, write_run


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two finished runs, and one that was broken off."""
    write_run(tmp_path / "city-run" / "flats-a", record_of(epochs=12))
    write_run(tmp_path / "city-run" / "flats-b", record_of(epochs=30))
    write_ladder(tmp_path / "city-run" / "flats-b")
    (tmp_path / "city-run" / "flats-c").mkdir()
    (tmp_path / "city-run" / "flats-c" / "progress.json").write_text("{}")
    return tmp_path


def test_runs_are_listed_with_score_cost_worth_and_differences(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("runs", str(folder)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == [f"city-run/flats-{name}" for name in "ab"]
    assert "rmse 5.5" in lines[1]
    assert lines[3:] == [
        "city-run/flats-b: This partner is worth 14 S$ less error.",
        "differs: training.epochs = 12, 30",
    ]


def test_programs_get_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("runs", str(folder), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [line["state"] for line in found["runs"]] == ["done", "done"]
    assert found["runs"][0]["bytes"] == 1_110_000
    assert found["differing"] == {"training.epochs": [12, 30]}


def test_a_folder_without_runs_says_where_they_would_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("runs", str(tmp_path)) == 0
    assert "no runs" in capsys.readouterr().out
    assert run("runs", str(tmp_path / "nowhere")) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_report_is_written_again_and_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder / "city-run" / "flats-a"
    assert run("report", str(place)) == 0
    assert "report.html" in capsys.readouterr().out
    before = (place / "report.html").read_text()
    write_ladder(place)
    assert run("report", str(place), "--quiet") == 0
    assert "has not been measured yet" in before
    assert "worth 14 S$" in (place / "report.html").read_text()


def test_programs_get_the_card_and_where_the_report_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder / "city-run" / "flats-b"
    assert run("report", str(place), "--json", "--quiet") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["report"] == str(place / "report.html")
    assert found["card"] == str(place / "model-card.md")
    assert "worth 14 S$ less error" in Path(found["card"]).read_text()


def test_a_folder_with_one_run_in_it_will_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", str(folder / "city-run")) == 2
    assert "2 runs" in capsys.readouterr().err
    (folder / "city-run" / "flats-a" / "run.json").unlink()
    assert run("report", str(folder / "city-run")) == 0
    assert (folder / "city-run" / "flats-b" / "report.html").is_file()


def test_a_folder_that_is_no_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", str(folder / "rentals-run" / "flats-a")) == 2
    assert "no finished run" in capsys.readouterr().err


def test_the_ladder_of_another_job_is_noted_and_not_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ladder(folder / "city-run" / "flats-b", job="others")
    (folder / "city-run" / "flats-a" / "ladder.json").write_text("{}")
    assert run("runs", str(folder)) == 0
    out = capsys.readouterr().out
    assert "belongs to another job, 'others'" in out
    assert "flats-a/ladder.json cannot be read" in out
    assert "14 S$" not in out
