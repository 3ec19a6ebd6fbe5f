"""Splits by time and by a column, and the column that a job names for them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from fedsim.data.splits import column_split, time_split
from fedsim.errors import InputError


def test_the_newest_records_are_the_test_records() -> None:
    times = np.random.default_rng(0).permutation(100).astype(float)
    split = time_split(times)
    assert times[split.train].max() < times[split.validation].min()
    assert times[split.validation].max() < times[split.test].min()
    assert [len(split.train), len(split.validation), len(split.test)] == [70, 10, 20]


def test_records_of_one_day_stay_together() -> None:
    days = np.repeat(np.arange(10.0), 7)
    split = time_split(days)
    parts = [set(days[rows]) for rows in (split.train, split.validation, split.test)]
    assert sum(map(len, parts)) == 10


def test_too_few_moments_for_three_parts_are_refused() -> None:
    with pytest.raises(InputError):
        time_split(np.repeat([1.0, 2.0], 30))


def test_a_column_may_name_the_parts() -> None:
    split = column_split(pl.Series("part", ["Train", "val", "TEST ", "training"]), np.random.default_rng(0))
    assert (split.train.tolist(), split.validation.tolist(), split.test.tolist()) == ([0, 3], [1], [2])


def test_a_column_with_too_few_values_is_named() -> None:
    with pytest.raises(InputError) as refused:
        column_split(pl.Series("region", ["north", "south", "east"] * 30), np.random.default_rng(0))
    assert (refused.value.code, refused.value.column) == ("cannot-split", "region")
    assert "3 different values" in str(refused.value)


def test_other_cells_of_a_column_keep_their_records_together() -> None:
    customers = pl.Series("customer", [f"c{row // 3}" for row in range(90)])
    split = column_split(customers, np.random.default_rng(0))
    parts = [set(customers[rows].to_list()) for rows in (split.train, split.validation, split.test)]
    assert sum(map(len, parts)) == 30
