"""Flats in Singapore, and what is near them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataset_files import ROWS, numbers, words, write
from error_fixtures import raises
from fedsim.errors import InputError
from fedsim_lab.datasets.dataset_registry import load_dataset

PLACES = {"lat": numbers(1.28, 1.44), "lon": numbers(103.7, 103.97)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    flats = PLACES | {"resale_price": numbers(200, 900), "floor_area_sqm": numbers(30, 150), "town_Bedok": [1] * ROWS}
    names = {"school_name": [f"School {row}" for row in range(ROWS)]}
    write(tmp_path, "hdb/flats.csv", flats)
    write(tmp_path, "hdb/schools.csv", PLACES | names | {"vacancy_rate_0": numbers(0, 1)})
    return tmp_path


def test_flats_and_schools_are_linked_by_place_alone(folder: Path) -> None:
    flats = load_dataset("hdb", folder)
    schools = flats.secondaries[0]
    assert flats.primary.features == ("floor_area_sqm", "town_Bedok")
    assert schools.table.features == ("vacancy_rate_0",)
    assert (schools.link.primary, schools.link.k) == (("lat", "lon"), 50)


def test_stations_are_a_further_secondary_where_their_file_is(folder: Path) -> None:
    stations = {"Latitude": PLACES["lat"], "Longitude": PLACES["lon"], "COLOR": words("RED", "GREEN")}
    write(folder, "hdb/mrt_stations.csv", stations | {"STN_NAME": ["X"] * ROWS})
    assert [each.name for each in load_dataset("hdb", folder).secondaries] == ["schools", "stations"]


def test_flats_without_a_price_are_refused(folder: Path) -> None:
    path = folder / "hdb" / "flats.csv"
    path.write_text(path.read_text().replace("resale_price", "price"))
    with raises(InputError, "missing-column", column="resale_price"):
        load_dataset("hdb", folder)
