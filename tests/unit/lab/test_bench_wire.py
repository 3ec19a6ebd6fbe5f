"""The parts of ``fedsim lab bench wire`` that can be wrong without anybody noticing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from fedsim.errors import FileError, SettingError
from fedsim_lab.cli.commands import bench

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("wire")
    for name in [name for name in sys.modules if name == "wire" or name.startswith("wire_")]:
        del sys.modules[name]


@pytest.fixture
def small_hdb(wire: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables with the columns of hdb and few rows."""
    rng = np.random.default_rng(0)
    (tmp_path / "hdb").mkdir()

    def places(count: int) -> dict[str, np.ndarray]:
        return {"lat": rng.uniform(1.25, 1.45, count), "lon": rng.uniform(103.7, 104.0, count)}

    flats = pl.DataFrame({"area": rng.normal(90, 20, 300), "resale_price": rng.normal(400, 90, 300), **places(300)})
    schools = pl.DataFrame({"school_name": [f"school {n}" for n in range(60)], "n": rng.normal(size=60), **places(60)})
    flats.write_csv(tmp_path / "hdb" / "flats.csv.gz", compression="gzip")
    schools.write_csv(tmp_path / "hdb" / "schools.csv")
    monkeypatch.setattr(sys.modules["wire_data"], "DATA", tmp_path)
    return tmp_path


def test_arrays_come_back_unchanged_by_either_way(wire: ModuleType, tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with wire.both_ways(tmp_path) as trips:
        assert trips.keys() == {"session", "bare"}
        for trip in trips.values():
            np.testing.assert_array_equal(trip(values), values)


def test_a_training_over_grpc_and_through_queues_ends_alike(wire: ModuleType, small_hdb: Path) -> None:
    found = wire.training_turn(wire.Terms("paper", epochs=1), 0)  # it asserts that the metrics are equal
    assert all(len(trained.seconds) == 1 for trained in found.values())
    assert found["arrays"].pairs == 210 * 50
    assert found["grpc"].training_bytes == found["queues"].training_bytes > 0


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
    with pytest.raises(SettingError, match="choose from tensor, training, precision"):
        wire.main(["tensr"])


def test_a_part_of_a_benchmark_is_not_run_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BENCHMARKS.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(FileError, match="has no main"):
        bench("wire_data")
