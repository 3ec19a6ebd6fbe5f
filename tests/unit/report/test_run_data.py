"""What is read back from run folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.cli import main
from fedsim.errors import FileError
from fedsim.report.run_data import read_ladder
from run_fixtures import record_of, write_ladder, write_run


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
    """Two finished runs, and one that was broken off."""
    write_run(tmp_path / "city-run" / "flats-a", record_of(epochs=12))
    write_run(tmp_path / "city-run" / "flats-b", record_of(epochs=30))
    write_ladder(tmp_path / "city-run" / "flats-b")
    (tmp_path / "city-run" / "flats-c").mkdir()
    (tmp_path / "city-run" / "flats-c" / "progress.json").write_text("{}")
    return tmp_path


def test_a_damaged_run_hides_no_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "city-run" / "flats-a" / "run.json").write_text("[]")
    assert run("runs", str(folder)) == 0
    lines = capsys.readouterr().out.splitlines()
    states = {line.split()[0]: line.split()[-1] for line in lines[1:3]}
    assert states == {"city-run/flats-a": "damaged", "city-run/flats-b": "done"}
    assert any(line.startswith("city-run/flats-a: ") and "run.json" in line for line in lines)
