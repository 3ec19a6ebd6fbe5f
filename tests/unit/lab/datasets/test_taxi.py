"""Rides by bicycle and by taxi."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from dataset_files import ROWS, taxi_files, taxi_samples
from error_fixtures import raises
from fedsim.errors import InputError
from fedsim_lab.datasets.dataset_registry import load_dataset


def spoil(path: Path, column: str, cell: str) -> None:
    frame = pl.read_csv(path, infer_schema=False)
    cells = frame[column].to_list()
    cells[4] = cell
    frame.with_columns(pl.Series(column, cells)).write_csv(path)


def test_taxi_reads_samples_where_the_authors_files_are_missing(tmp_path: Path) -> None:
    taxi_samples(tmp_path)
    taxi = load_dataset("taxi", tmp_path)
    assert (len(taxi.primary), len(taxi.secondaries[0].table)) == (ROWS - 1, ROWS - 2)
    assert taxi.primary.features == ("start station id", "end station id", "subscriber")
    assert taxi.labels.max() < 2000


def test_taxi_keeps_plausible_rides_and_their_stations(tmp_path: Path) -> None:
    taxi_files(tmp_path)
    rides = load_dataset("taxi", tmp_path)
    taxis = rides.secondaries[0]
    assert (len(rides.primary), len(taxis.table)) == (ROWS - 2, ROWS - 3)
    assert rides.primary.features == (
        "age", "gender_1", "gender_2", *(f"sid_{place}" for place in range(101, 105)),
        *(f"eid_{place}" for place in range(101, 105)),
    )  # fmt: skip
    assert taxis.table.frame["taxi_duration"].to_list() == [600] * (ROWS - 3)
    assert taxis.link.k == 50


def test_a_moment_that_is_no_moment_is_named(tmp_path: Path) -> None:
    spoil(taxi_files(tmp_path)[1], "tpep_pickup_datetime", "yesterday")
    with raises(InputError, "not-a-date", column="tpep_pickup_datetime", row=5):
        load_dataset("taxi", tmp_path)


def test_a_file_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    bikes, _ = taxi_files(tmp_path)
    pl.read_csv(bikes).with_columns(tripduration=5000).write_csv(bikes)
    with raises(InputError, "no-records"):
        load_dataset("taxi", tmp_path)
