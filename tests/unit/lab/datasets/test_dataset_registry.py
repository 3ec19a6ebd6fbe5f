"""Files in the public formats, made up and small, load; other files are refused by name and column."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dataset_files import boone_file, company_files, game_files, house_files, taxi_files
from error_fixtures import raises
from fedsim.contribution.rungs import Rung, run_training
from fedsim.errors import InputError
from fedsim_lab.dataset_cases import DatasetCases, LinkageOverrides
from fedsim_lab.datasets.dataset_registry import load_dataset


def spoil(path: Path, column: str, cell: str) -> None:
    frame = pl.read_csv(path, infer_schema=False)
    cells = frame[column].to_list()
    cells[4] = cell
    frame.with_columns(pl.Series(column, cells)).write_csv(path)


def without(path: Path, column: str) -> None:
    pl.read_csv(path, infer_schema=False).drop(column).write_csv(path)


@pytest.mark.parametrize(
    ("name", "files", "metric"),
    [("boone", partial(boone_file, signal=20, background=20, events=40), ""), ("company", company_files, "hamming")],
)
def test_datasets_that_could_not_be_obtained_train_for_whoever_has_their_files(
    tmp_path: Path, name: str, files: Callable[[Path], object], metric: str
) -> None:
    files(tmp_path)
    arrays = DatasetCases(load_dataset(name, tmp_path), LinkageOverrides(k=3, metric=metric)).one("random", 0)
    outcome = run_training(Rung("fedsim", "FedSim", "fedsim", preset=f"paper:{name}", epochs=1), arrays)
    assert np.isfinite(outcome.predictions).all()


@pytest.mark.parametrize(
    ("files", "place", "name", "column"),
    [
        (taxi_files, 0, "taxi", "birth year"),
        (taxi_files, 1, "taxi", "pickup_latitude"),
        (company_files, 0, "company", "SBA_Appv"),
        (company_files, 1, "company", "industry"),
        (game_files, 0, "game", "owners"),
        (game_files, 1, "game", "rating"),
        (house_files, 1, "house", "lat"),
    ],
)
def test_a_missing_column_is_named_with_its_file(tmp_path: Path, files, place: int, name: str, column: str) -> None:
    path = files(tmp_path)[place]
    without(path, column)
    with raises(InputError, "missing-column", column=column):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize(
    ("files", "place", "name", "column"),
    [
        (taxi_files, 0, "taxi", "tripduration"),
        (taxi_files, 1, "taxi", "trip_distance"),
        (company_files, 0, "company", "GrAppv"),
        (game_files, 1, "game", "playtime"),
        (house_files, 1, "house", "price"),
    ],
)
def test_a_cell_that_is_no_number_is_named_but_not_shown(tmp_path: Path, files, place: int, name: str, column) -> None:
    path = files(tmp_path)[place]
    spoil(path, column, "secret")
    with raises(InputError, "not-a-number", column=column, row=5) as error:
        load_dataset(name, tmp_path)
    assert path.name in str(error.value)
    assert "secret" not in str(error.value)
