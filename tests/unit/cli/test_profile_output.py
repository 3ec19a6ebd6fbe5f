"""``fedsim profile``: what the columns of two tables will be, how well they fit, and no cell in the page."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from fedsim.errors import SettingError
from init_fixtures import PEOPLE, TOWN, error_of, fedsim


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TOWN.flats.write_csv("flats.csv")
    TOWN.rentals.write_csv("rentals.csv")
    mail = pl.Series("contact", [f"p{row}@example.org" for row in range(len(PEOPLE))])
    PEOPLE.with_columns(mail, pl.when(pl.col("visits") > 5).then(None).otherwise(1.5).alias("gaps")).write_csv(
        "people.csv"
    )


def test_two_tables_link_as_init_would_link_them():
    found = json.loads(fedsim("profile", "flats.csv", "rentals.csv", "--json"))
    init = json.loads(fedsim("init", "--primary", "flats.csv", "--secondary", "rentals.csv", "--yes", "--json"))
    assert [pair["primary"] for pair in found["link_by"]] == [pair["primary"] for pair in init["link_by"]]
    assert (found["label"], found["task"], found["split"]) == (init["label"], init["task"], init["split"])
    roles = {one["name"]: one["role"] for one in found["tables"]["flats.csv"]["columns"]}
    assert {name for name, role in roles.items() if "feature" in role} == set(init["features"]["primary"])


def test_a_page_replaces_no_table():
    assert isinstance(error_of("profile", "flats.csv", "--out", "flats.csv"), SettingError)
