"""Generated tables are the same for the same seed and hold what they promise."""

from __future__ import annotations

import numpy as np
from polars.testing import assert_frame_equal

from fedsim.data.synthetic import city
from fedsim_lab.datasets.generated import firms


def test_one_seed_makes_one_city() -> None:
    first, second = (city(np.random.default_rng(3), flats=200, rentals=100) for _ in range(2))
    assert_frame_equal(first.flats, second.flats)
    assert_frame_equal(first.rentals, second.rentals)


def test_neighbours_are_worth_alike() -> None:
    town = city(np.random.default_rng(3), flats=2000, rentals=2000)
    worth = (town.flats["price"] / town.flats["area"]).to_numpy()
    rent = (town.rentals["rent"] / (600.0 + 420.0 * town.rentals["rooms"])).to_numpy()
    flats, rentals = (table.select("lat", "lon").to_numpy() for table in (town.flats, town.rentals))
    nearest = ((flats[:, None, :] - rentals[None, :, :]) ** 2).sum(axis=2).argsort(axis=1)[:, :10]
    assert np.corrcoef(worth, rent[nearest].mean(axis=1))[0, 1] > 0.6


def test_flats_share_buildings() -> None:
    flats = city(np.random.default_rng(3), flats=600, rentals=10).flats
    assert flats.select("lat", "lon").n_unique() <= 100


def test_the_truth_points_at_the_same_firm() -> None:
    registers = firms(np.random.default_rng(5), ours=300, theirs=500, shared=0.5)
    known = np.flatnonzero(registers.truth >= 0)
    alike = [registers.ours["name"][int(row)] == registers.theirs["name"][int(registers.truth[row])] for row in known]
    assert len(known) == 150
    assert 0.1 < np.mean(alike) < 0.6
    assert len(set(registers.truth[known])) == 150


def test_the_default_city_and_firms_stay_as_they_are() -> None:
    town = city(np.random.default_rng(7), flats=3, rentals=2)
    registers = firms(np.random.default_rng(7), ours=2, theirs=3)
    assert town.flats.row(0) == (1.228287, 103.812285, 89.1, 22, 19, 430500.0)
    assert town.rentals.row(1) == (1.328652, 103.746842, 3, 3.67, 1756.0)
    assert registers.theirs.row(0) == ("National Falfal Energy", 542000.0)
