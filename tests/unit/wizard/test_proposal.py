"""What is proposed for two tables links and trains, reveals no value, and comes with warnings."""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path

import polars as pl
import pytest

from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.linkage.encoding import DateFilter, NumericFilter, PlacePosition, StringFilter
from init_fixtures import BOTH, FIRST, PEOPLE, REGISTERS, TOWN, encodings, error_of, fedsim, registers


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TOWN.flats.write_csv("flats.csv")
    TOWN.rentals.write_csv("rentals.csv")


def test_places_link_by_position_and_show_no_value():
    fedsim("init", *BOTH, "--yes", "--coordinator")
    terms = read_job(Path("job.toml")).secondaries["rentals"]
    assert [(field.columns, field.encoding) for field in terms.encoding.fields] == [
        (("lat", "lon"), PlacePosition(0.2))
    ]
    assert (terms.metric, terms.sigma) == ("position", 0.2)


@pytest.mark.parametrize("words", [(), ("--on", "lat,lon")])
def test_a_place_outside_the_globe_is_named_by_its_row_and_swaps_nothing(words):
    lat = pl.Series([45 + row / 1000 for row in range(300)])
    TOWN.flats.with_columns(lat=lat.scatter(6, 95.5), lon=9 + pl.int_range(300) / 1000).write_csv("flats.csv")
    error = error_of("init", *BOTH, *words, "--yes")
    assert (error.code, error.column, error.row) == ("outside-range", "lat", 7)


def test_both_ends_of_trips_link():
    for name in ("flats", "rentals"):
        places = pl.read_csv(f"{name}.csv").rename({"lat": "start_lat", "lon": "start_lon"})
        places.with_columns(end_lat=pl.col("start_lat") + 0.01, end_lon=pl.col("start_lon")).write_csv(f"{name}.csv")
    fedsim("init", *BOTH, "--yes", "--coordinator", "--quiet")
    terms = read_job(Path("job.toml")).secondaries["rentals"]
    assert [field.columns for field in terms.encoding.fields] == [("start_lat", "start_lon"), ("end_lat", "end_lon")]


def test_planar_coordinates_are_not_compared_as_places_without_a_warning():
    for name in ("flats", "rentals"):
        pl.read_csv(f"{name}.csv").with_columns(pl.col("lat", "lon") * 10_000).write_csv(f"{name}.csv")
    result = json.loads(fedsim("init", *BOTH, "--on", "lat,lon", "--yes", "--json"))
    assert sum("degrees" in warning for warning in result["warnings"]) == 4


def test_the_quality_of_the_linkage_is_measured():
    quality = json.loads(fedsim("init", *BOTH, "--yes", "--coordinator", "--json"))["quality"]
    assert quality["recall_at_k"] > 0.99
    assert quality["ties"] == 0


def test_ranges_beside_names_hold_all_values_and_show_none():
    tables = PEOPLE.select("last_name", staff=pl.int_range(200) * 1.5 + 40.25, income=pl.int_range(200) % 90)
    tables.write_csv("patienten.csv")
    tables.rename({"income": "premium"}).write_csv("kasse.csv")
    fedsim("init", *REGISTERS, "--on", "last_name,staff", "--label", "income", "--yes", "--coordinator")
    staff = encodings(read_job(Path("job.toml")))["staff"]
    assert isinstance(staff, NumericFilter)
    assert staff.low < 40.25
    assert staff.high > 340
    assert not {staff.low, staff.high} & set(tables["staff"])


def test_places_beside_names_have_thresholds_of_equal_metres():
    north = pl.int_range(200) / 100
    tables = PEOPLE.select("last_name", lat=60 + north, lon=10 + north / 4, income=pl.int_range(200) % 90)
    tables.write_csv("patienten.csv")
    tables.rename({"income": "premium"}).write_csv("kasse.csv")
    fedsim("init", *REGISTERS, "--on", "last_name,lat,lon", "--label", "income", "--yes", "--coordinator")
    found = encodings(read_job(Path("job.toml")))
    assert found["lon"].threshold == pytest.approx(found["lat"].threshold / math.cos(math.radians(61)), rel=0.02)


def test_people_link_by_names_and_birth():
    people = pl.DataFrame(
        {
            "First name": [f"{a}{b}na" for a in "ABCDE" for b in "aeiou"],
            "dob": [date(1950 + row, 1, 1 + row) for row in range(25)],
            "visits": [row % 7 for row in range(25)],
        }
    )
    people.with_columns(income=pl.col("visits") * 10).write_csv("ours.csv")
    people.rename({"First name": "first_name"}).write_csv("theirs.csv")
    fedsim("init", "--primary", "ours.csv", "--secondary", "theirs.csv", "--yes", "--coordinator", "--label", "income")
    found = encodings(read_job(Path("job.toml")))
    assert [type(encoding) for encoding in found.values()] == [StringFilter, DateFilter]
    assert (found["dob"].low, found["dob"].high) == (date(1946, 1, 1), date(1976, 12, 31))
    assert read_party_file(Path("theirs.toml")).identifiers == {"First name": "first_name"}


def test_names_of_few_values_link_and_nothing_about_a_person_is_learnt_from():
    rows = range(60)
    ours = pl.DataFrame(
        {
            "first_name": [("Ann", "Bob", "Cyd")[row % 3] for row in rows],
            "last_name": [("Poe", "Roe", "Coe", "Doe")[row % 4] for row in rows],
            "phone": [100 + row % 9 for row in rows],
            "e_mail": [("a@b.c", "d@e.f")[row % 2] for row in rows],
            "birth_year": [1950 + row % 30 for row in rows],
            "account": [10**6 + 7919 * row for row in rows],
            "visits": [row % 7 for row in rows],
            "income": [1000 + 13 * row for row in rows],
        }
    )
    ours.write_csv("ours.csv")
    ours.drop("income").write_csv("theirs.csv")
    result = json.loads(fedsim("init", "--primary", "ours.csv", "--secondary", "theirs.csv", "--yes", "--json"))
    assert [pair["primary"] for pair in result["link_by"]] == ["first_name", "last_name"]
    assert result["label"] == "income"
    assert result["features"] == {"primary": ["visits"], "secondary": ["visits"]}
    assert read_party_file(Path("theirs.toml")).policy.columns == ("first_name", "last_name", "visits")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["Vorname", "Familienname", "geboren"], ["given", "surname", "dob"]),
        (["first_name", "last_name", "date_of_birth"], ["firstname", "surname", "birthdate"]),
        (["first_name", "last_name", "date_of_birth"], ["name", "family_name", "birthday"]),
        (["Prénom", "Nom", "Date de naissance"], ["nombre", "apellido", "fecha_nacimiento"]),
        (["first_name", "Nachname", "dob"], ["first_name", "lastName", "Geburtsdatum"]),
    ],
)
def test_people_link_by_all_their_names_whatever_the_columns_are_called(ours, theirs):
    registers(ours, theirs)
    result = json.loads(fedsim("init", *REGISTERS, "--label", "income", "--yes", "--json"))
    assert [(pair["primary"], pair["secondary"]) for pair in result["link_by"]] == list(zip(ours, theirs, strict=True))
    assert result["features"] == {"primary": ["visits"], "secondary": ["visits", "premium"]}
    assert result["warnings"] == []


def test_titles_link_with_the_year_that_agrees_where_they_are_equal():
    rows = range(200)
    titles = pl.Series("title", [f"{FIRST[row % 24]} and {FIRST[row * 5 % 23]} {row // 50}" for row in rows])
    years = [1980 + row * 7 % 31 for row in rows]
    ours = pl.DataFrame({"year": years, "votes": [row * 3 % 91 for row in rows], "seen": [row % 5 for row in rows]})
    out = [date(year + row % 2, 1 + row % 12, 3) for row, year in enumerate(years)]
    theirs = pl.DataFrame({"released": out, "added": out[::-1], "score": [row % 9 for row in rows]})
    ours.with_columns(titles).write_csv("patienten.csv")
    theirs.with_columns(titles).write_csv("kasse.csv")
    result = json.loads(fedsim("init", *REGISTERS, "--label", "votes", "--yes", "--coordinator", "--json"))
    linked = [(pair["primary"], pair["secondary"]) for pair in result["link_by"]]
    assert linked == [("title", "title"), ("year", "released")]
    year = encodings(read_job(Path("job.toml")))["year"]
    assert isinstance(year, DateFilter)
    assert year.threshold >= 730


def test_texts_that_are_no_names_do_not_join_names_that_link():
    output = [f"{FIRST[row % 24]} came again on day {row}" for row in range(200)]
    PEOPLE.with_columns(income="visits", remark=pl.Series(output)).write_csv("patienten.csv")
    PEOPLE.rename({"first_name": "given"}).with_columns(comment=pl.Series(output)).write_csv("kasse.csv")
    plan = json.loads(fedsim("init", *REGISTERS, "--label", "income", "--yes", "--json"))
    assert [pair["primary"] for pair in plan["link_by"]] == ["first_name", "last_name", "date_of_birth"]


def test_first_names_alone_are_warned_of_unless_one_side_has_each_once():
    registers(["Vorname", "ort", "seit"], ["given", "place", "until"])
    words = ["init", *REGISTERS, "--on", "Vorname", "--on-secondary", "given", "--label", "income", "--yes", "--force"]
    words += ["--json"]
    (warning,) = json.loads(fedsim(*words))["warnings"]
    assert all(part in warning for part in ("24 of 200", "patienten.csv", "kasse.csv", "'Vorname'"))
    assert read_job(Path("job.toml")).task.split == "random"
    pl.read_csv("kasse.csv").unique("given", maintain_order=True).write_csv("kasse.csv")
    assert json.loads(fedsim(*words, "--k", "5"))["warnings"] == []


@pytest.mark.parametrize("words", [[], ["--on", "geb", "--on-secondary", "dob"]])
def test_dates_that_are_written_otherwise_are_warned_of_whether_they_link_or_not(words):
    registers(["Vorname", "Nachname", "geb"], ["given", "surname", "dob"])
    for file, column in (("patienten.csv", "geb"), ("kasse.csv", "dob")):
        table = pl.read_csv(file, try_parse_dates=True)
        table.with_columns(pl.col(column).dt.strftime("%d.%m.%Y")).write_csv(file)
    warnings = json.loads(fedsim("init", *REGISTERS, *words, "--label", "income", "--yes", "--json"))["warnings"]
    for warning, file, column in zip(warnings, ("patienten.csv", "kasse.csv"), ("geb", "dob"), strict=False):
        assert warning.startswith(f"{file}: column '{column}'")


def test_names_that_are_all_equal_are_told_and_not_called_found():
    PEOPLE.select("last_name", "visits", income=pl.int_range(200) % 90).write_csv("ours.csv")
    PEOPLE.select("visits", last_name=pl.lit("Roe")).write_csv("theirs.csv")
    words = ["--primary", "ours.csv", "--secondary", "theirs.csv", "--label", "income", "--yes", "--coordinator"]
    assert error_of("init", *words).code == "constant-column"
    result = json.loads(fedsim("init", *words, "--on", "last_name", "--json"))
    assert result["quality"] is None
    assert "theirs.csv: column 'last_name'" in result["warnings"][0]


def test_many_flats_at_one_place_or_street_are_not_warned_of():
    for file, table in (("flats.csv", TOWN.flats), ("rentals.csv", TOWN.rentals)):
        street = pl.Series("street", [f"{FIRST[row % 24]} Road" for row in range(len(table))])
        table.drop("lat", "lon").with_columns(street).write_csv(file)
    assert "warning" not in fedsim("init", *BOTH, "--yes")


def test_columns_that_cannot_be_learnt_from_are_left_out_with_the_reason():
    rows = pl.int_range(300)
    extra = {
        "note": pl.format("text {}", rows),
        "day": pl.lit("2020-01-05"),
        "sold": pl.lit(date(2020, 1, 1)) + pl.duration(days=rows),
    }
    rooms = pl.when(rows % 7 == 0).then(pl.lit("NA")).otherwise(pl.lit("3") + (rows % 3).cast(pl.String))
    TOWN.rentals.with_columns(flats_id=pl.int_range(200)).write_csv("rentals.csv")
    TOWN.flats.with_columns(**extra, rooms=rooms).write_csv("flats.csv")
    fedsim("init", *BOTH, "--yes")
    text = Path("flats.toml").read_text(encoding="utf-8")
    assert '# left out: "note"' in text
    assert '# left out: "day"' in text
    assert 'missing = ["NA"]' in text
    assert read_party_file(Path("flats.toml")).features.kinds == {"sold": "date"}
    assert read_party_file(Path("rentals.toml")).features.drop == ("flats_id",)


def test_codes_are_categories_and_quantities_are_numbers():
    rows = pl.int_range(300)
    extra = {
        "NAICS": 531110 + rows % 5,
        "store_nr": rows % 30,
        "station id": rows % 9,
        "tract": rows % 250,  # hardly two rows of one
        "year": 1990 + rows % 20,
        "rooms": rows % 6,
        "distance_to_station": rows % 77,
    }
    padded = pl.Series("site", [f"{row % 7:04d}" for row in range(300)])
    TOWN.flats.with_columns(padded, **extra).write_csv("flats.csv")
    kinds = json.loads(fedsim("init", *BOTH, "--label", "price", "--yes", "--json"))["kinds"]["primary"]
    assert {name for name, kind in kinds.items() if kind == "category"} >= {"NAICS", "store_nr", "station id", "site"}
    assert {kinds[name] for name in ("year", "rooms", "distance_to_station")} == {"number"}
    assert "tract" not in kinds
    declared = read_party_file(Path("flats.toml")).features.kinds
    assert declared == dict.fromkeys(("NAICS", "store_nr", "station id", "site"), "category")


def test_kinds_are_printed_and_can_be_changed_in_the_party_file():
    TOWN.flats.with_columns(zip=10_000 + pl.int_range(300) % 12).write_csv("flats.csv")
    output = fedsim("init", *BOTH, "--label", "price", "--yes")
    assert "category  zip (code)" in output
    text = Path("flats.toml").read_text(encoding="utf-8")
    Path("flats.toml").write_text(text.replace('zip = "category"', 'zip = "number"'), encoding="utf-8")
    assert read_party_file(Path("flats.toml")).features.kinds == {"zip": "number"}


def test_categories_that_are_rare_in_the_training_rows_are_left_out():
    kinds = pl.Series("make", [f"make {row // 2}" for row in range(200)] + [f"only {row}" for row in range(100)])
    TOWN.flats.with_columns(kinds).write_csv("flats.csv")
    result = json.loads(fedsim("init", *BOTH, "--label", "price", "--yes", "--json"))
    assert "make" in result["left_out"]["primary"]


def test_a_table_with_nothing_to_learn_from_is_told():
    TOWN.rentals.select("lat", "lon", rent_id=pl.int_range(200)).write_csv("rentals.csv")
    assert error_of("init", *BOTH, "--yes").code == "no-features"
