"""The parts of ``fedsim lab bench wire`` that can be wrong without anybody noticing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedsim.errors import FileError, SettingError
from fedsim_lab.cli.commands import bench

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("wire")
    for name in [name for name in sys.modules if name == "wire" or name.startswith("wire_")]:
        del sys.modules[name]


def test_arrays_come_back_unchanged_by_either_way(wire: ModuleType, tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with wire.both_ways(tmp_path) as trips:
        assert trips.keys() == {"session", "bare"}
        for trip in trips.values():
            np.testing.assert_array_equal(trip(values), values)


def test_rows_per_record_count_both_ways_of_every_pair(wire: ModuleType) -> None:
    activations = np.zeros((3 * 50, 100), np.float32)
    assert wire.rows_per_record(pairs=3 * 50, width=100) == 2 * activations.nbytes


def test_the_ratio_is_the_median_of_turns_and_not_the_ratio_of_medians(wire: ModuleType) -> None:
    assert wire.median_ratio([(1.0, 1.0), (9.0, 3.0), (2.0, 1.0)]) == 2.0


def test_without_real_data_the_benchmark_says_what_it_skips(
    wire: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wire, "have_hdb", lambda: False)
    wire.main(["training"])
    assert "training: skipped, there is no hdb" in capsys.readouterr().out


def test_an_unknown_case_is_refused_with_the_known_ones(wire: ModuleType) -> None:
    with pytest.raises(SettingError, match="choose from tensor, "):
        wire.main(["tensr"])


def test_a_part_of_a_benchmark_is_not_run_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BENCHMARKS.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(FileError, match="has no main"):
        bench("wire_data")
