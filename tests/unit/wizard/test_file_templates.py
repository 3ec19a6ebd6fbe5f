"""The files of ``fedsim init`` are valid, say why, and mark what only their owners know."""

from __future__ import annotations

import json
import tomllib
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from jsonschema import Draft202012Validator

from fedsim.config.job import read_job
from fedsim.config.party_file import identifier_columns, read_party_file
from fedsim.config.settings_schema import load_schema
from init_fixtures import BOTH, TOWN, fedsim


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TOWN.flats.write_csv("flats.csv")
    TOWN.rentals.write_csv("rentals.csv")


def test_the_files_say_what_was_found_and_pass_their_schemas():
    fedsim("init", *BOTH, "--yes")
    job, flats, rentals = read_job(Path("job.toml")), *map(read_party_file, map(Path, ("flats.toml", "rentals.toml")))
    assert (job.task.kind, job.task.split, job.secondaries["rentals"].k) == ("regression", "group", 20)
    assert job.training.batch_size == 32
    assert job.training.patience < job.training.epochs
    assert flats.features.columns == ("area", "storey", "age", "lat", "lon")
    assert rentals.policy.columns == ("lat", "lon", "rooms", "rating", "rent")
    for name, kind in (("job", "job"), ("flats", "party"), ("rentals", "party")):
        words = tomllib.loads(Path(f"{name}.toml").read_text(encoding="utf-8"))
        Draft202012Validator(load_schema(kind)).validate(json.loads(json.dumps(words, default=date.isoformat)))
        assert Path(f"{name}.toml").read_text(encoding="utf-8").startswith(f"#:schema ./schemas/{kind}.schema.json")
        assert Path(f"schemas/{kind}.schema.json").is_file()


@pytest.mark.parametrize(("role", "file"), [("primary", "flats"), ("secondary", "rentals")])
def test_one_table_alone_leaves_marks_to_fill_in(role, file):
    fedsim("init", f"--{role}", f"{file}.csv", "--yes")
    marks = [line for line in Path("job.toml").read_text(encoding="utf-8").splitlines() if "FILL IN:" in line]
    assert len(marks) >= (2 if role == "primary" else 3)
    assert read_job(Path("job.toml")).task.kind == "regression"
    assert read_party_file(Path(f"{file}.toml")).role == role
    assert {path.suffix for path in Path().iterdir() if path.is_file()} == {".csv", ".toml"}
    assert Path("certs/ca.pem").exists() is (role == "primary")


@pytest.mark.parametrize(("role", "file"), [("primary", "flats"), ("secondary", "rentals")])
def test_with_a_coordinator_the_primary_creates_the_key(role, file):
    fedsim("init", f"--{role}", f"{file}.csv", "--yes", "--coordinator")
    assert Path("linkage.key").exists() is (role == "primary")
    assert not Path("notary.toml").exists()
    schema, notary = load_schema("party"), Path("notary.toml")
    fedsim("init", "--coordinator")
    Draft202012Validator(schema).validate(tomllib.loads(notary.read_text(encoding="utf-8")))


def test_tables_of_one_name_get_names_of_their_own():
    for folder, table in (("a", TOWN.flats), ("b", TOWN.rentals)):
        Path(folder).mkdir()
        table.write_csv(Path(folder, "Our Data 2020.csv"))
    fedsim("init", "--primary", "a/Our Data 2020.csv", "--secondary", "b/Our Data 2020.csv", "--yes")
    assert [party.name for party in read_job(Path("job.toml")).parties] == ["our-data-2020", "secondary"]


def test_secondaries_with_tables_of_one_name_get_names_of_their_own():
    for folder in ("a", "b", "c"):
        Path(folder).mkdir()
        TOWN.rentals.write_csv(Path(folder, "Secondary 2.csv"))
    more = [word for folder in ("a", "b", "c") for word in ("--secondary", f"{folder}/Secondary 2.csv")]
    fedsim("init", "--primary", "flats.csv", *more, "--on", "lat,lon", "--label", "price", "--yes")
    assert list(read_job(Path("job.toml")).secondaries) == ["secondary-2", "secondary-2-2", "secondary-3"]


def test_one_agreed_name_may_mean_different_columns_of_the_primary():
    homes = TOWN.flats.rename({"lat": "home_lat", "lon": "home_lon"})
    homes.with_columns(work_lat=pl.col("home_lat") + 0.01, work_lon="home_lon").write_csv("flats.csv")
    TOWN.rentals.rename({"lat": "home_latitude", "lon": "home_longitude"}).write_csv("rentals.csv")
    TOWN.rentals.rename({"lat": "work_latitude", "lon": "work_longitude"}).write_csv("offices.csv")
    fedsim("init", *BOTH, "--secondary", "offices.csv", "--label", "price", "--yes")
    job, flats = read_job(Path("job.toml")), read_party_file(Path("flats.toml"))
    assert {name: identifier_columns(job, flats, name) for name in job.secondaries} == {
        "rentals": {"lat": "home_lat", "lon": "home_lon"},
        "offices": {"lat": "work_lat", "lon": "work_lon"},
    }
    assert {"home_lat", "home_lon", "work_lat", "work_lon"} <= set(flats.features.columns)


@pytest.mark.parametrize(("epochs", "patience"), [(1, 1), (8, 4), (500, 17)])
def test_few_epochs_get_a_patience_that_fits(epochs, patience):
    result = json.loads(fedsim("init", *BOTH, "--epochs", str(epochs), "--yes", "--json"))
    training = read_job(Path("job.toml")).training
    assert (training.epochs, training.patience) == (result["epochs"], result["patience"]) == (epochs, patience)
