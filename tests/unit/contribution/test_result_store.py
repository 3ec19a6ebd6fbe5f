"""Trainings are kept one by one and survive a kill in the middle of a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.contribution.rungs import ResultStore
from fedsim.errors import FileError


def line(epochs: int, name: str = "Solo") -> dict[str, Any]:
    return {"settings": {"key": "solo", "name": name, "epochs": epochs}, "data": "abc", "test": {"rmse": 1.0}}


def test_what_was_added_is_there_in_the_next_process(tmp_path: Path) -> None:
    ResultStore(tmp_path).add(line(3), np.array([1.0, 2.5]), np.array([3.0]))
    again = ResultStore(tmp_path)
    assert again.has(line(3))
    assert not again.has(line(4))
    np.testing.assert_array_equal(again.predictions(line(3)), [1.0, 2.5])
    np.testing.assert_array_equal(again.validation_predictions(line(3)), [3.0])


def test_another_name_for_the_same_training_changes_nothing(tmp_path: Path) -> None:
    results = ResultStore(tmp_path)
    results.add(line(3), np.zeros(1), np.zeros(1))
    assert results.has(line(3, name="Alone"))


def test_a_line_that_a_kill_cut_short_is_written_again(tmp_path: Path) -> None:
    ResultStore(tmp_path).add(line(3), np.zeros(1), np.zeros(1))
    file = tmp_path / "results.jsonl"
    file.write_bytes(file.read_bytes() + b'{"settings": {"epo')
    results = ResultStore(tmp_path)
    assert len(results.lines) == 1
    results.add(line(4), np.zeros(1), np.zeros(1))
    assert len(ResultStore(tmp_path).lines) == 2


def test_a_damaged_line_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("nonsense\n")
    with pytest.raises(FileError, match=r"results\.jsonl"):
        ResultStore(tmp_path)


@pytest.mark.parametrize(
    ("junk", "code"),
    [
        (b"{}\n", "results-incomplete"),
        (b"[1]\n", "results-incomplete"),
        (b"nonsense\n", "results-not-json"),
        (b"\xff\xfe\n", "results-not-text"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, junk: bytes, code: str) -> None:
    (tmp_path / "results.jsonl").write_bytes(junk)
    with pytest.raises(FileError) as caught:
        ResultStore(tmp_path)
    assert caught.value.code == code


@pytest.mark.parametrize("part", ["[!.]*[0-9a-f].npy", "*.validation.npy"])
@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda file: file.write_bytes(b"nonsense"), lambda file: file.write_bytes(b"")]
)
def test_a_training_whose_predictions_are_lost_is_trained_again(
    tmp_path: Path, damage: Callable[[Path], object], part: str
) -> None:
    ResultStore(tmp_path).add(line(3), np.zeros(2), np.zeros(1))
    damage(next((tmp_path / "predictions").glob(part)))
    results = ResultStore(tmp_path)
    assert not results.has(line(3))
    results.add(line(3), np.ones(2), np.ones(1))
    assert ResultStore(tmp_path).has(line(3))
    assert len(ResultStore(tmp_path).lines) == 1


def test_results_of_another_revision_do_not_count(tmp_path: Path) -> None:
    results = ResultStore(tmp_path)
    for stored in (line(3), {**line(3), "revision": 1}):
        results.add(stored, np.zeros(1), np.zeros(1))
    assert not results.has({**line(3), "revision": 2})
