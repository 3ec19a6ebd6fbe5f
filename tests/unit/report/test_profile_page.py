"""The profile of tables says what their columns will be and how well they fit, and shows no cell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from init_fixtures import PEOPLE, TOWN, fedsim


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TOWN.flats.write_csv("flats.csv")
    TOWN.rentals.write_csv("rentals.csv")
    mail = pl.Series("contact", [f"p{row}@example.org" for row in range(len(PEOPLE))])
    PEOPLE.with_columns(mail, pl.when(pl.col("visits") > 5).then(None).otherwise(1.5).alias("gaps")).write_csv(
        "people.csv"
    )


def profiled(*words: str) -> dict[str, dict[str, str]]:
    """The columns of all tables by name."""
    tables = json.loads(fedsim("profile", *words, "--json"))["tables"]
    return {column["name"]: column for table in tables.values() for column in table["columns"]}


def test_numbers_are_compared_by_range_and_texts_by_equality():
    PEOPLE.write_csv("others.csv")
    tables = {"number": ("flats.csv", "rentals.csv"), "text": ("people.csv", "others.csv")}
    found = {kind: json.loads(fedsim("profile", *names, "--json"))["overlap"] for kind, names in tables.items()}
    assert found["number"][0]["values of rentals.csv"].endswith(" % within the range of flats.csv")
    names = {row["identifier"]: row["values of people.csv"] for row in found["text"]}
    assert names["last_name"] == "100 % also in others.csv"


def test_one_table_shows_gaps_identifiers_and_what_looks_personal():
    columns = profiled("people.csv", "--label", "visits")
    assert columns["gaps"]["missing"] == PEOPLE.filter(pl.col("visits") > 5).height
    assert columns["last_name"]["role"] == "identifier"
    assert columns["visits"]["role"] == "label"
    assert columns["contact"]["personal"].startswith("e-mail")
    assert {name for name, column in columns.items() if column["personal"]} >= {
        "first_name",
        "contact",
        "date_of_birth",
    }


def test_no_cell_is_in_the_page_or_in_the_output():
    output = fedsim("profile", "people.csv", "--out", "page.html") + Path("page.html").read_text()
    texts = [text for name in ("first_name", "last_name") for text in PEOPLE[name].unique()]
    assert [text for text in texts if re.search(rf"\b{text}\b", output)] == []
    assert not re.search(r"p\d+@example|\d{4}-\d{2}-\d{2}", output)


def test_ranges_end_at_round_numbers_and_say_so():
    assert "range (rounded outwards)" in fedsim("profile", "flats.csv")
    low, high = map(float, profiled("flats.csv")["area"]["range"].split(" to "))
    assert low < TOWN.flats["area"].min()
    assert high > TOWN.flats["area"].max()


def test_what_would_stop_init_is_a_warning():
    TOWN.rentals.select("rooms", "rent").write_csv("rentals.csv")
    found = json.loads(fedsim("profile", "flats.csv", "rentals.csv", "--json"))
    assert found["link_by"] == []
    assert len(found["warnings"]) == 1
