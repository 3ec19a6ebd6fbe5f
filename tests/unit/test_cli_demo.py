"""The demo ends well, says so briefly, and leaves what it promised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsim.cli import main
from fedsim.cli.brute_force import edit_distances
from fedsim.linkage import load_links


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def test_the_demo_links_checks_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--out", str(tmp_path / "new" / "folder")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50
    assert sum("checked against brute force: 200 records equal" in line for line in lines) == 2
    assert len(load_links(tmp_path / "new" / "folder" / "links.parquet")) == 4000
    assert (tmp_path / "new" / "folder" / "names.html").stat().st_size > 10_000


def test_a_wrong_link_fails_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(queries: list[object], candidates: list[object], k: int) -> tuple[object, object]:
        return np.zeros((len(queries), k), np.int64), np.zeros((len(queries), k))

    monkeypatch.setattr("fedsim.cli.showing.nearest_places", wrong)
    assert run("demo", "--out", str(tmp_path)) == 2
    assert "differ from brute force" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run("demo", "--out", str(tmp_path / "file" / "below")) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_the_slow_edit_distance_knows_the_textbook() -> None:
    assert edit_distances("saturday", ["sunday", "saturday", "", "s"]).tolist() == [3, 0, 8, 7]
