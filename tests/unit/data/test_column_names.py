"""Columns are looked up by name, and their names say what they may hold."""

from __future__ import annotations

import pytest

from error_fixtures import raises
from fedsim.data.column_names import (
    column_positions,
    coordinate_pairs,
    is_birth_date_column,
    is_code_column,
    is_personal_column,
    latitude_longitude_columns,
    missing_identifier_message,
)
from fedsim.errors import InputError

HEADER = ["id", "lat", "lon"]


def test_a_misspelt_column_is_suggested_in_any_case() -> None:
    with raises(InputError, "missing-column", column="LATT", suggestion="lat"):
        column_positions("flats.csv", HEADER, ["LATT"])


@pytest.mark.parametrize(
    ("header", "code"),
    [(["id", "lat", "lat"], "duplicate-column"), (["*"], "pattern-as-name"), (["^a$"], "pattern-as-name")],
)
def test_a_header_that_cannot_be_selected_by_name_is_refused(header: list[str], code: str) -> None:
    with raises(InputError, code):
        column_positions("flats.csv", header, header[-1:])


def test_a_latitude_belongs_to_the_longitude_with_the_same_other_words() -> None:
    pairs = coordinate_pairs(["pickup_longitude", "dropoff_lat", "PickupLatitude", "dropoff_lon"])
    assert {(lat, lon) for lat, lon, _ in pairs} == {
        ("PickupLatitude", "pickup_longitude"),
        ("dropoff_lat", "dropoff_lon"),
    }


def test_a_latitude_alone_is_no_place() -> None:
    assert latitude_longitude_columns(["lat", "area"]) == ()


@pytest.mark.parametrize("name", ["Geburtsdatum", "date_of_birth", "dob", "nacimiento"])
def test_dates_of_birth_are_known_in_four_languages_and_are_personal(name: str) -> None:
    assert is_birth_date_column(name)


@pytest.mark.parametrize(
    ("name", "code"), [("PLZ", True), ("customerId", True), ("zip count", False), ("floor", False)]
)
def test_a_quantity_is_no_code_whatever_else_its_name_says(name: str, code: bool) -> None:
    assert is_code_column(name) is code
    assert not is_personal_column(name)


def test_the_line_that_maps_an_identifier_is_proposed() -> None:
    message = missing_identifier_message("full name", ["Full_Name", "visits"], "clinic.toml")
    assert message.endswith('[identifiers] "full name" = "Full_Name"')
