"""What columns hold, how their cells are written, and which of them link two tables."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.data.profile import (
    IdentifierPair,
    TableProfile,
    are_coordinates_swapped,
    grouped_columns,
    guess_formats,
    guess_identifiers,
    personal_form,
    profile_table,
)
from fedsim.errors import InputError
from fedsim.types import CellFormat

FORMS = {
    "phone numbers": ["+49 30 901820", "(030) 90182-0"],
    "bank accounts": ["DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819"],
    "network addresses": ["192.168.0.1", "10.0.0.254"],
    "": ["01.02.1990", "12.30"],
}


@pytest.mark.parametrize(("form", "cells"), FORMS.items())
def test_texts_that_identify_people_are_known_by_their_form(form: str, cells: list[str]):
    (column,) = profile_table(pl.DataFrame({"contact": cells}), "clients").columns.values()
    assert personal_form(column) == form


def profile_of(**columns: list[object]) -> TableProfile:
    return profile_table(pl.DataFrame(columns), "flats.csv")


def test_words_for_missing_cells_count_only_if_the_rest_are_numbers() -> None:
    profile = profile_of(area=["40", "NA", "60"])
    assert (profile.gap_words, profile.columns["area"].gaps) == (("NA",), 1)
    assert profile_of(town=["Bonn", "NA", "Ulm"]).gap_words == ()


def test_a_decimal_comma_is_an_error_that_names_its_row() -> None:
    with raises(InputError, "decimal-comma", column="area", row=2):
        profile_of(area=["40", "41,5"])


def test_whole_numbers_with_leading_zeros_are_codes() -> None:
    columns = profile_of(postcode=["01067", "10115", "20095"], rooms=["1", "2", "3"]).columns
    assert {name: column.code for name, column in columns.items()} == {"postcode": True, "rooms": False}


def test_places_link_before_names() -> None:
    rng = np.random.default_rng(0)
    names = [f"{word} street" for word in "abcdefghijklmnopqrst"]
    place = {"lat": rng.uniform(1, 2, 20).tolist(), "lon": rng.uniform(103, 104, 20).tolist()}
    ours = profile_of(**place, name=names)
    theirs = profile_of(name=names, latitude=place["lat"], longitude=place["lon"])
    assert guess_identifiers(ours, theirs) == [
        IdentifierPair("lat", "lat", "latitude"),
        IdentifierPair("lon", "lon", "longitude"),
    ]


def test_latitude_and_longitude_under_each_others_name_are_noticed() -> None:
    here = profile_of(lat=[1.2, 1.3, 1.4], lon=[103.7, 103.8, 103.9]).columns
    swapped = here["lon"], here["lat"]
    assert are_coordinates_swapped((here["lat"], here["lon"]), swapped)
    assert not are_coordinates_swapped((here["lat"], here["lon"]), (here["lat"], here["lon"]))


def test_dates_whose_order_is_open_have_both_formats() -> None:
    (guess,) = guess_formats(pl.DataFrame({"sold": ["01/02/2020", "03/04/2020"], "town": ["Bonn", "Ulm"]}))
    assert (guess.column, guess.shape) == ("sold", "99/99/9999")
    assert guess.formats == (CellFormat.DAY_MONTH_YEAR, CellFormat.MONTH_DAY_YEAR)


def test_points_that_may_separate_thousands_are_noticed_but_not_in_coordinates() -> None:
    frame = pl.DataFrame({"price": ["1.234", "12.500"], "lat": ["1.234", "1.500"], "area": ["40.5", "41.123"]})
    assert grouped_columns(frame) == ["price"]
