"""Trainings as lines of a file that several processes may append to."""

from __future__ import annotations

from pathlib import Path

import pytest

from error_fixtures import raises
from fedsim.contribution.rungs import Rung
from fedsim.errors import FileError
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.stored_trainings import StoredTrainings
from fedsim_lab.study_runner import load_sample

SOLO = Rung("solo", "Solo", "solo")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trainings.jsonl"


def line_of(data: str) -> dict[str, object]:
    return {"settings": {"key": SOLO.key, "name": SOLO.name, "method": SOLO.method}, "revision": 3, "data": data}


def test_two_processes_that_store_in_one_file_keep_each_others_trainings(path: Path) -> None:
    first, second = StoredTrainings(path), StoredTrainings(path)
    for number in range(3):
        first.add(line_of(f"first {number}"))
        second.add(line_of(f"second {number} of a longer line"))
    assert len(StoredTrainings(path).lines) == 6


def test_a_training_of_an_earlier_revision_is_found_but_not_current(path: Path) -> None:
    arrays = DatasetCases(load_sample("firms", Path(), 60)).one("random", 0)
    stored, key = StoredTrainings(path), SOLO.result_key(arrays)
    assert stored.find(SOLO, arrays) is None
    stored.add({**key, "revision": None})
    assert stored.find(SOLO, arrays) is not None
    assert not stored.is_current(SOLO, arrays)
    stored.add(key)
    assert stored.is_current(SOLO, arrays)


def test_a_line_cut_short_is_ignored_and_an_invalid_one_is_an_error(path: Path) -> None:
    stored = StoredTrainings(path)
    stored.add(line_of("one"))
    path.write_text(path.read_text() + '{"cut sh')
    assert StoredTrainings(path).lines == stored.lines
    path.write_text("no JSON\n")
    with raises(FileError, "bad-line"):
        StoredTrainings(path)
