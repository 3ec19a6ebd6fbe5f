"""A small town for all estimator tests, and one thread: several test processes on few cores wait for one another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pytest
import torch

from fedsim.data.synthetic import City, city


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def town() -> City:
    return city(np.random.default_rng(1), flats=600, rentals=300)


@pytest.fixture(scope="session")
def flats(town: City) -> pl.DataFrame:
    return town.flats.drop("price")


@pytest.fixture(scope="session")
def price(town: City) -> pl.Series:
    return town.flats["price"]
