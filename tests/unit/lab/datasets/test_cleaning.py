"""Public files are read with their columns, cleaned and sampled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.errors import FileError, InputError
from fedsim_lab.datasets import cleaning


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "homes.csv"
    path.write_text("area,town\n12.5,b\n,a\n7,\n")
    return path


def test_asked_columns_are_numbers_and_empty_cells_are_missing(path: Path) -> None:
    frame = cleaning.read_columns(path, ["town", "area"], ["area"])
    assert frame.columns == ["town", "area"]
    assert frame["area"].to_list() == [12.5, None, 7.0]


def test_rows_without_missing_cells_remain_and_there_must_be_one(path: Path) -> None:
    frame = cleaning.read_columns(path, ["area", "town"], ["area"])
    assert cleaning.drop_incomplete_rows(frame, path)["town"].to_list() == ["b"]
    with raises(InputError, "no-records"):
        cleaning.drop_incomplete_rows(frame[1:], path)


def test_letters_of_an_unknown_encoding_may_be_lost_but_digits_are_not(tmp_path: Path) -> None:
    (tmp_path / "homes.csv").write_bytes("floor,age\n高 26,5\n".encode("gbk"))
    frame = cleaning.read_lossy_csv(tmp_path / "homes.csv", ["floor", "age"])
    assert frame["floor"][0].endswith(" 26")
    assert frame["age"].to_list() == ["5"]
    (tmp_path / "homes.csv").write_bytes(b'floor,age\n"1,2\n3,4,5\n')
    with raises(FileError, "bad-csv"):
        cleaning.read_lossy_csv(tmp_path / "homes.csv", ["floor"])


def test_a_sample_has_distinct_rows_and_all_if_there_are_not_more() -> None:
    frame, rng = pl.DataFrame({"row": range(50)}), np.random.default_rng(0)
    assert cleaning.sample_rows(frame, 20, rng)["row"].n_unique() == 20
    assert cleaning.sample_rows(frame, 60, rng).equals(frame)
