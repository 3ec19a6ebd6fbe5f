"""``fedsim init``: from two tables to files that train, and nothing replaced, made up or given away on the way."""

from __future__ import annotations

import json
import sqlite3
import stat
import tomllib
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from error_fixtures import raises
from fedsim.cli.app import app
from fedsim.config.job import Job, read_job
from fedsim.config.party_file import read_party_file
from fedsim.config.schema import load_schema
from fedsim.data.synthetic import city
from fedsim.errors import FedSimError
from fedsim.linkage.encoding import DateFilter, Key, NumericFilter, StringFilter
from fedsim_lab.datasets.generated import firms

BOTH = ["--primary", "flats.csv", "--secondary", "rentals.csv"]
TOWN = city(np.random.default_rng(7), flats=300, rentals=200)


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TOWN.flats.write_csv("flats.csv")
    TOWN.rentals.write_csv("rentals.csv")


def fedsim(*words: str, answer: str = "") -> str:
    """What a command prints, if it ends well."""
    done = CliRunner().invoke(app, words, input=answer)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def error_of(*words: str, answer: str = "") -> FedSimError:
    with pytest.raises(FedSimError) as caught:
        fedsim(*words, answer=answer)
    assert "\n" not in str(caught.value)
    return caught.value


def trained(*parties: str) -> dict[str, dict[str, float]]:
    """Metrics of the job in this folder, run as its own text says."""
    files = [f"{party}.toml" for party in parties]
    for file in files:
        fedsim("approve", "job.toml", file, "--yes")
    return json.loads(fedsim("train", "job.toml", *files, "--quiet", "--json"))["metrics"]


def encodings(job: Job) -> dict[str, object]:
    (terms,) = job.secondaries.values()
    return {field.column: field.encoding for field in terms.encoding.fields}


def test_two_tables_become_files_that_train():
    told = fedsim("init", *BOTH, "--yes", "--epochs", "1")
    assert "fedsim train job.toml notary.toml flats.toml rentals.toml" in told
    assert np.isfinite(trained("notary", "flats", "rentals")["test"]["rmse"])


def test_the_files_say_what_was_found_and_pass_their_schemas():
    fedsim("init", *BOTH, "--yes")
    job, flats, rentals = read_job(Path("job.toml")), *map(read_party_file, map(Path, ("flats.toml", "rentals.toml")))
    assert (job.task.kind, job.task.split, job.secondaries["rentals"].k) == ("regression", "group", 20)
    assert job.training.batch_size == 32
    assert flats.features.columns == ("area", "storey", "age", "lat", "lon")
    assert rentals.policy.columns == ("lat", "lon", "rooms", "rating", "rent")
    for name, kind in (("job", "job"), ("flats", "party"), ("rentals", "party"), ("notary", "party")):
        words = tomllib.loads(Path(f"{name}.toml").read_text(encoding="utf-8"))
        Draft202012Validator(load_schema(kind)).validate(json.loads(json.dumps(words, default=date.isoformat)))
        assert Path(f"{name}.toml").read_text(encoding="utf-8").startswith(f"#:schema ./schemas/{kind}.schema.json")
        assert Path(f"schemas/{kind}.schema.json").is_file()


def test_ranges_hold_all_values_and_show_none():
    fedsim("init", *BOTH, "--yes")
    for column, encoding in encodings(read_job(Path("job.toml"))).items():
        values = pl.concat([TOWN.flats[column], TOWN.rentals[column]])
        assert isinstance(encoding, NumericFilter)
        assert encoding.low < values.min() < values.max() < encoding.high < values.max() + 0.1
        assert encoding.threshold < 0.3
        assert not {encoding.low, encoding.high} & set(values)


def test_names_link_registers_end_to_end():
    registers = firms(np.random.default_rng(7), ours=200, theirs=300)
    late = pl.Series("late", ["yes", "no", "no", "no"] * 50)
    registers.ours.with_columns(late, id=pl.int_range(200)).write_parquet("ours.parquet")
    registers.theirs.rename({"name": "company"}).write_csv("theirs.csv.gz", compression="gzip")
    tables = ["--primary", "ours.parquet", "--secondary", "theirs.csv.gz"]
    said = json.loads(fedsim("init", *tables, "--yes", "--label", "late", "--epochs", "1", "--json"))
    assert said["link_by"] == [{"primary": "name", "secondary": "company", "kind": "string"}]
    assert said["task"] == "classification"
    assert "id" not in said["features"]["primary"]
    assert trained("notary", "ours", "theirs")["test"]["accuracy"] > 0


def test_tables_of_a_database_link_and_train():
    with sqlite3.connect("city.db") as database:
        for name, table in (("flats", TOWN.flats), ("rentals", TOWN.rentals)):
            database.execute(f"create table {name} ({', '.join(table.columns)})")
            database.executemany(f"insert into {name} values ({', '.join('?' * table.width)})", table.rows())  # noqa: S608
    database.close()
    url = "sqlite:///city.db#"
    fedsim("init", "--primary", f"{url}flats", "--secondary", f"{url}rentals", "--yes", "--epochs", "1", "--out", "job")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("job")
        assert 'url = "sqlite:///../city.db"\ntable = "flats"' in Path("flats.toml").read_text(encoding="utf-8")
        assert np.isfinite(trained("notary", "flats", "rentals")["test"]["rmse"])


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
    fedsim("init", "--primary", "ours.csv", "--secondary", "theirs.csv", "--yes", "--label", "income")
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
    said = json.loads(fedsim("init", "--primary", "ours.csv", "--secondary", "theirs.csv", "--yes", "--json"))
    assert [pair["primary"] for pair in said["link_by"]] == ["first_name", "last_name"]
    assert said["label"] == "income"
    assert said["features"] == {"primary": ["visits"], "secondary": ["visits"]}
    assert read_party_file(Path("theirs.toml")).policy.columns == ("first_name", "last_name", "visits")


FIRST = [f"{a}{b}{c}" for a in ("An", "Be", "Cy") for b in ("n", "r", "t", "l") for c in ("a", "o")]
PEOPLE = pl.DataFrame(
    {
        "first_name": [FIRST[row % 24] for row in range(200)],
        "last_name": [f"{FIRST[row * 7 % 23]}son" for row in range(200)],
        "date_of_birth": [date(1950 + row % 40, 1 + row % 12, 1 + row % 28) for row in range(200)],
        "visits": [row % 7 for row in range(200)],
    }
)
REGISTERS = ["--primary", "patienten.csv", "--secondary", "kasse.csv"]


def registers(ours: list[str], theirs: list[str]) -> None:
    """Two tables of the same people, whose columns are called so."""
    for file, columns in (("patienten.csv", ours), ("kasse.csv", theirs)):
        named = PEOPLE.rename(dict(zip(PEOPLE.columns, columns, strict=False)))
        named.with_columns(income=pl.int_range(200) % 90).write_csv(file)


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
    said = json.loads(fedsim("init", *REGISTERS, "--label", "income", "--yes", "--json"))
    assert [(pair["primary"], pair["secondary"]) for pair in said["link_by"]] == list(zip(ours, theirs, strict=True))
    assert said["features"] == {"primary": ["visits"], "secondary": ["visits", "income"]}
    assert said["warnings"] == []


def test_texts_that_are_no_names_do_not_join_names_that_link():
    said = [f"{FIRST[row % 24]} came again on day {row}" for row in range(200)]
    PEOPLE.with_columns(income="visits", remark=pl.Series(said)).write_csv("patienten.csv")
    PEOPLE.rename({"first_name": "given"}).with_columns(comment=pl.Series(said)).write_csv("kasse.csv")
    told = json.loads(fedsim("init", *REGISTERS, "--label", "income", "--yes", "--json"))
    assert [pair["primary"] for pair in told["link_by"]] == ["first_name", "last_name", "date_of_birth"]


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
    told = json.loads(fedsim("init", *REGISTERS, *words, "--label", "income", "--yes", "--json"))["warnings"]
    for warning, file, column in zip(told, ("patienten.csv", "kasse.csv"), ("geb", "dob"), strict=False):
        assert warning.startswith(f"{file}: column '{column}'")


def test_many_flats_at_one_place_or_street_are_not_warned_of():
    for file, table in (("flats.csv", TOWN.flats), ("rentals.csv", TOWN.rentals)):
        street = pl.Series("street", [f"{FIRST[row % 24]} Road" for row in range(len(table))])
        table.drop("lat", "lon").with_columns(street).write_csv(file)
    assert "warning" not in fedsim("init", *BOTH, "--yes")


def test_the_owner_is_asked_for_the_partners_names_of_columns_it_lacks():
    words = ["init", *REGISTERS, "--label", "income", "--task", "regression", "--force"]
    registers(["Vorname", "Familienname", "geboren"], ["given", "surname", "dob"])
    fedsim(*words, answer="Familienname,geboren\n")
    registers(["x", "Familienname", "geboren"], ["y", "surname", "dob"])
    assert "kasse.csv" in fedsim(*words, answer="x,Familienname\ny,surname\n")
    assert read_party_file(Path("kasse.toml")).identifiers == {"x": "y", "Familienname": "surname"}


def test_columns_that_only_the_primary_has_are_told_with_the_option_that_names_the_others():
    registers(["Vorname", "Familienname", "geboren"], ["given", "surname", "dob"])
    error = error_of("init", *REGISTERS, "--on", "Vorname,Familienname", "--yes")
    assert (error.code, error.column) == ("missing-column", "Vorname")
    assert "--on-secondary" in str(error)


def test_tables_without_a_common_identifier_are_told_both_options():
    PEOPLE.select("visits", income="visits").write_csv("patienten.csv")
    PEOPLE.select("visits").write_csv("kasse.csv")
    assert error_of("init", *REGISTERS, "--yes").code == "no-identifiers"


@pytest.mark.parametrize(("role", "file"), [("primary", "flats"), ("secondary", "rentals")])
def test_one_table_alone_leaves_marks_to_fill_in(role, file):
    fedsim("init", f"--{role}", f"{file}.csv", "--yes")
    marks = [line for line in Path("job.toml").read_text(encoding="utf-8").splitlines() if "FILL IN:" in line]
    assert len(marks) >= 4
    assert read_job(Path("job.toml")).task.kind == "regression"
    assert read_party_file(Path(f"{file}.toml")).role == role
    assert Path("linkage.key").exists() is (role == "primary")
    assert not Path("notary.toml").exists()


def test_nothing_is_replaced_without_being_told():
    fedsim("init", *BOTH, "--yes")
    key, mode = Path("linkage.key").read_text(), Path("linkage.key").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    error = error_of("init", *BOTH, "--yes", "--k", "3")
    assert (error.code, error.files) == ("files-exist", ["job.toml", "notary.toml", "flats.toml", "rentals.toml"])
    fedsim("init", *BOTH, "--yes", "--k", "3", "--force")
    assert read_job(Path("job.toml")).secondaries["rentals"].k == 3
    assert Path("linkage.key").read_text() == key


def test_nothing_is_written_when_something_is_wrong():
    error_of("init", *BOTH, "--yes", "--label", "prize", "--out", "new")
    assert not Path("new").exists()


def test_nothing_is_left_of_files_whose_writing_was_broken_off(monkeypatch):
    def interrupted() -> Key:
        raise KeyboardInterrupt

    monkeypatch.setattr(Key, "generate", interrupted)
    before = sorted(Path().rglob("*"))
    assert CliRunner().invoke(app, ["init", *BOTH, "--yes", "--out", "new/job"]).exit_code == 130
    assert sorted(Path().rglob("*")) == before


def test_the_owner_is_asked_and_may_say_otherwise():
    told = fedsim("init", *BOTH, answer="lat\nage\nclassification\n")
    assert all(f"[{proposal}]" in told for proposal in ("lat,lon", "price", "regression"))
    job = read_job(Path("job.toml"))
    assert list(encodings(job)) == ["lat"]
    assert job.task.kind == "classification"
    assert read_party_file(Path("flats.toml")).label.column == "age"


def test_flags_are_not_asked_for():
    told = fedsim("init", *BOTH, "--on", "lat,lon", "--label", "price", "--task", "regression", "--tau", "0")
    assert "[" not in told.partition("Next")[0]
    assert read_job(Path("job.toml")).secondaries["rentals"].tau is None
    assert read_party_file(Path("rentals.toml")).policy.max_tau is None


def test_nobody_to_answer_is_told_about_yes():
    assert error_of("init", *BOTH).code == "no-answer"
    assert not Path("job.toml").exists()


@pytest.mark.parametrize(
    ("words", "code", "details"),
    [
        ([], "no-table", {}),
        ([*BOTH, "--label", "prise"], "missing-column", {"column": "prise"}),
        ([*BOTH, "--label", "lat"], "label-is-identifier", {"column": "lat"}),
        ([*BOTH, "--task", "regresion"], "unknown-task", {}),
        ([*BOTH, "--on", "lat,lonn"], "missing-column", {"column": "lonn"}),
        ([*BOTH, "--on", "lat,lon", "--on-secondary", "lat"], "column-count", {}),
        ([*BOTH, "--on", "area", "--on-secondary", "rent", "--k", "201"], "k-too-large", {"limit": 200}),
        (["--primary", "flats.csv", "--secondary", "sqlite:///none.db#x"], "file-not-found", {}),
        (["--primary", "sqlite:///flats.csv#flats"], "not-a-database", {}),
    ],
)
def test_wishes_that_cannot_be_met_are_told(words, code, details):
    with raises(FedSimError, code, **details):
        fedsim("init", *words, "--yes")


def test_tables_of_one_name_get_names_of_their_own():
    for folder, table in (("a", TOWN.flats), ("b", TOWN.rentals)):
        Path(folder).mkdir()
        table.write_csv(Path(folder, "Our Data 2020.csv"))
    fedsim("init", "--primary", "a/Our Data 2020.csv", "--secondary", "b/Our Data 2020.csv", "--yes")
    assert [party.name for party in read_job(Path("job.toml")).parties] == ["notary", "our-data-2020", "secondary"]


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


def test_a_table_with_nothing_to_learn_from_is_told():
    TOWN.rentals.select("lat", "lon", rent_id=pl.int_range(200)).write_csv("rentals.csv")
    assert error_of("init", *BOTH, "--yes").code == "no-features"


def test_quiet_prints_nothing():
    assert fedsim("init", *BOTH, "--yes", "--quiet") == ""


def test_programs_get_one_object():
    said = json.loads(fedsim("init", *BOTH, "--yes", "--json"))
    assert (said["label"], said["task"], said["k"]) == ("price", "regression", 20)
    assert said["link_by"][0] == {"primary": "lat", "secondary": "lat", "kind": "numeric"}
    assert all(Path(said["folder"], name).exists() for name in said["files"])


def test_questions_do_not_stand_in_the_way_of_the_object():
    asked = CliRunner().invoke(app, ["init", *BOTH, "--label", "price", "--json"], input="\n\n")
    assert "[lat,lon]" in asked.stderr
    assert json.loads(asked.stdout)["label"] == "price"
