"""The page of a reproduced table or figure."""

from __future__ import annotations

import json

import pytest

from lab_fixtures import Reproduced, reproduce


def test_fast_sheets_are_marked_and_leave_the_others_alone(
    reproduced: Reproduced, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reproduced.folder
    whole = (folder / "out" / "figure-k.html").read_text()
    reproduce(folder, "figure-k", "--fast")
    mark = "--fast: at most 1 epochs: shows that everything runs, not what it reaches"
    output = capsys.readouterr().out
    assert output.splitlines()[0] == "Firms (nowhere), --fast: at most 1 epochs"
    assert mark in output
    sheet = json.loads((folder / "out" / "fast" / "figure-k.json").read_text())
    assert (sheet["notes"][0], sheet["facts"]["fast"]) == (mark, "at most 1 epochs")
    assert mark in (folder / "out" / "fast" / "figure-k.html").read_text()
    assert (folder / "out" / "figure-k.html").read_text() == whole
