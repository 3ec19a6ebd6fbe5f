"""What is read back from run folders."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedsim.cli import main
from fedsim.errors import FileError
from fedsim.report.run_data import list_runs, read_ladder
from run_fixtures import progress_facts, record_of, write_ladder, write_run


def test_a_ladder_beside_the_run_or_in_its_folder_compare_is_found(tmp_path: Path) -> None:
    write_ladder(tmp_path / "compare", seeds=1)
    found = read_ladder(tmp_path)
    assert found is not None
    assert found.splits == ["group", "random"]  # as older files have them, which do not name that of the headline
    write_ladder(tmp_path, split="random")
    assert read_ladder(tmp_path).splits == ["random", "group"]
    (tmp_path / "ladder.json").write_text('{"format": 1}')
    with pytest.raises(FileError) as caught:
        read_ladder(tmp_path)
    assert caught.value.code == "ladder-unreadable"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two finished runs, one that failed, and a secondary's folder."""
    write_run(tmp_path / "city-run" / "flats-a", record_of(epochs=12))
    write_run(tmp_path / "city-run" / "flats-b", record_of(epochs=30))
    write_ladder(tmp_path / "city-run" / "flats-b")
    put(tmp_path / "city-run" / "flats-c", state="failed", error="rentals is away")
    put(tmp_path / "rentals-run" / "flats-a", role="secondary", party="rentals")
    return tmp_path


def put(place: Path, **changes: Any) -> None:
    place.mkdir(parents=True)
    (place / "progress.json").write_text(json.dumps(progress_facts(**changes)))


@pytest.mark.parametrize(("run_name", "file"), [("flats-c", "progress.json"), ("flats-a", "run.json")])
def test_a_damaged_run_hides_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str], run_name: str, file: str
) -> None:
    (folder / "city-run" / run_name / file).write_text("[]")
    assert run("runs", str(folder)) == 0
    lines = capsys.readouterr().out.splitlines()
    states = {line.split()[0]: line.split()[-1] for line in lines[1:4]}
    assert states.pop(f"city-run/{run_name}") == "damaged"
    assert len(states) == 2
    assert any(line.startswith(f"city-run/{run_name}: ") and file in line for line in lines)


def test_a_run_that_fell_silent_has_died(tmp_path: Path) -> None:
    put(tmp_path / "flats-a", state="running", updated="2026-11-15T10:00:00.000+00:00")
    last = datetime(2026, 11, 15, 10, tzinfo=UTC)
    states = [list_runs(tmp_path, last + timedelta(seconds=silent))[0].state for silent in (6, 60)]
    assert states == ["running", "died"]
