"""``fedsim init``: from two tables to files that train, and nothing replaced, made up or given away on the way."""

from __future__ import annotations

import json
import sqlite3
import stat
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from error_fixtures import raises
from fedsim.cli.app import app
from fedsim.cli.init import InitRequest, run_init
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.errors import FedSimError, InputError, SettingError
from fedsim.linkage.direct import PlaceTokens
from fedsim.linkage.encoding import Key
from fedsim.registry import SHARES
from fedsim.wizard import proposal
from fedsim_lab.datasets.generated import firms
from init_fixtures import BOTH, PEOPLE, REGISTERS, TOWN, error_of, fedsim, registers


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TOWN.flats.write_csv("flats.csv")
    TOWN.rentals.write_csv("rentals.csv")


def trained(*parties: str) -> dict[str, dict[str, float]]:
    """Metrics of the job in this folder, run as its own text says."""
    files = [f"{party}.toml" for party in parties]
    for file in files:
        fedsim("approve", "job.toml", file, "--yes")
    return json.loads(fedsim("train", "job.toml", *files, "--quiet", "--json"))["metrics"]


def test_two_tables_become_files_that_train():
    output = fedsim("init", *BOTH, "--yes", "--epochs", "1")
    assert "fedsim train job.toml flats.toml rentals.toml" in output
    assert "fedsim certs --primary flats --secondary rentals" in output
    names = {path.name for path in Path().iterdir()} - {"flats.csv", "rentals.csv"}
    assert names == {"job.toml", "flats.toml", "rentals.toml", "schemas"}
    assert np.isfinite(trained("flats", "rentals")["test"]["rmse"])


def test_a_positive_and_strongly_skewed_label_is_learnt_on_a_log_scale():
    price = np.random.default_rng(0).lognormal(5.0, 1.0, len(TOWN.flats))
    TOWN.flats.with_columns(price=price).write_csv("flats.csv")
    assert json.loads(fedsim("init", *BOTH, "--yes", "--json"))["label_scale"] == "log"
    assert read_job(Path("job.toml")).task.label_scale == "log"


def test_names_link_registers_end_to_end():
    registers = firms(np.random.default_rng(7), ours=200, theirs=300)
    late = pl.Series("late", ["yes", "no", "no", "no"] * 50)
    registers.ours.with_columns(late, id=pl.int_range(200)).write_parquet("ours.parquet")
    registers.theirs.rename({"name": "company"}).write_csv("theirs.csv.gz", compression="gzip")
    tables = ["--primary", "ours.parquet", "--secondary", "theirs.csv.gz"]
    result = json.loads(fedsim("init", *tables, "--yes", "--label", "late", "--epochs", "1", "--json"))
    assert result["link_by"] == [{"primary": "name", "secondary": "company", "kind": "text"}]
    assert result["task"] == "classification"
    assert "id" not in result["features"]["primary"]
    assert trained("ours", "theirs")["test"]["accuracy"] > 0


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
        assert np.isfinite(trained("flats", "rentals")["test"]["rmse"])


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


def test_the_labels_column_in_a_secondary_is_no_feature_unless_its_owner_says_so():
    TOWN.rentals.rename({"rent": "Price"}).write_csv("rentals.csv")
    result = json.loads(fedsim("init", *BOTH, "--label", "price", "--yes", "--json"))
    assert result["features"]["secondary"] == ["rooms", "rating"]
    assert any("rentals.csv" in warning and "'Price'" in warning for warning in result["warnings"])
    rentals = read_party_file(Path("rentals.toml"))
    assert rentals.features.drop == ("Price",)
    assert "Price" not in (rentals.policy.columns or ())


@pytest.mark.parametrize("column", ["age", "price"])
def test_a_number_that_cannot_be_meant_is_refused(column):
    absurd = pl.Series(column, TOWN.flats[column], pl.Float64).scatter(4, 1e308)
    TOWN.flats.with_columns(absurd).write_csv("flats.csv")
    with raises(InputError, "number-too-large", table="flats.csv", column=column, row=5):
        fedsim("init", *BOTH, "--yes")
    assert not Path("job.toml").exists()


def test_a_class_with_a_single_record_is_refused_but_may_be_a_number():
    storeys = pl.Series("storey", [1, 2] * 150).scatter(4, 3)
    TOWN.flats.with_columns(storeys).write_csv("flats.csv")
    with raises(InputError, "single-record-class", column="storey", row=5):
        fedsim("init", *BOTH, "--label", "storey", "--yes")
    fedsim("init", *BOTH, "--label", "storey", "--task", "regression", "--yes")


def test_nothing_is_replaced_without_being_told():
    fedsim("init", *BOTH, "--yes", "--coordinator")
    key, mode = Path("linkage.key").read_text(), Path("linkage.key").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    error = error_of("init", *BOTH, "--yes", "--coordinator", "--k", "3")
    assert (error.code, error.files) == ("files-exist", ["job.toml", "notary.toml", "flats.toml", "rentals.toml"])
    fedsim("init", *BOTH, "--yes", "--coordinator", "--k", "3", "--force")
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
    words = ["init", *BOTH, "--coordinator", "--yes", "--out", "new/job"]
    assert CliRunner().invoke(app, words).exit_code == 130
    assert sorted(Path().rglob("*")) == before


def test_a_dry_run_proposes_the_same_and_writes_nothing():
    before = sorted(Path().iterdir())
    proposed = json.loads(fedsim("init", *BOTH, "--dry-run", "--yes", "--json"))
    assert sorted(Path().iterdir()) == before
    written = json.loads(fedsim("init", *BOTH, "--yes", "--json"))
    assert proposed == written | {"files": []}
    assert "lat, lon" in fedsim("init", *BOTH, "--dry-run", "--yes")


def test_the_owner_is_asked_and_may_say_otherwise():
    output = fedsim("init", *BOTH, answer="lat\n\nage\nclassification\n")
    assert all(f"[{proposal}]" in output for proposal in ("lat,lon", "rows", "price", "regression"))
    job = read_job(Path("job.toml"))
    assert job.secondaries["rentals"].columns == ("lat",)
    assert job.task.kind == "classification"
    assert read_party_file(Path("flats.toml")).label.column == "age"


def test_a_person_names_tables_sees_columns_and_is_asked_again_after_a_typo():
    answers = iter(
        [
            "flat.csv",
            "flats.csv",
            "rentals.csv",
            "lat,lom",
            "lat,lon",
            "row",
            "rows",
            "prize",
            "lat",
            "price",
            "regresion",
            "regression",
        ]
    )
    shown: list[str] = []
    request = InitRequest({"primary": None, "secondary": None}, lambda *_: next(answers), shown.append)
    assert run_init(request, Path(), force=False, say=lambda _: None)["label"] == "price"
    assert next(answers, None) is None
    assert sum("columns of flats.csv: lat, lon, area" in text for text in shown) == 3
    assert all(len(line) <= 80 for text in shown for line in text.splitlines() if "such as" in line)


def test_the_coordinator_gets_its_file_by_the_job_alone():
    assert error_of("init", "--coordinator").code == "no-job-file"
    fedsim("init", "--primary", "flats.csv", "--yes", "--coordinator")
    fedsim("init", "--coordinator")
    assert str(read_party_file(Path("notary.toml")).party) == "coordinator 'notary'"
    assert error_of("init", "--coordinator").code == "files-exist"
    fedsim("init", "--primary", "flats.csv", "--yes", "--out", "direct")
    assert error_of("init", "--coordinator", "--out", "direct").code == "no-coordinator"


def test_flags_are_not_asked_for():
    words = ["init", *BOTH, "--on", "lat,lon", "--label", "price", "--task", "regression"]
    assert "[" not in fedsim(*words, "--share", "rows").partition("Next")[0]
    fedsim(*words, "--coordinator", "--sigma", "0", "--force")
    assert read_job(Path("job.toml")).secondaries["rentals"].sigma is None
    assert read_party_file(Path("rentals.toml")).policy.min_sigma is None


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


def write_three_tables() -> list[str]:
    """Flats with a landlord, rentals that link by place, and a register of landlords; return them as options."""
    landlords = firms(np.random.default_rng(7), ours=300, theirs=200)
    TOWN.flats.with_columns(landlord=landlords.ours["name"]).write_csv("flats.csv")
    landlords.theirs.rename({"name": "landlord"}).write_csv("register.csv")
    return [*BOTH, "--secondary", "register.csv"]


def test_several_secondaries_become_one_job_that_passes_its_checks_and_trains():
    result = json.loads(fedsim("init", *write_three_tables(), "--label", "price", "--epochs", "1", "--yes", "--json"))
    assert {name: [pair["primary"] for pair in own["link_by"]] for name, own in result["secondaries"].items()} == {
        "rentals": ["lat", "lon"],
        "register": ["landlord"],
    }
    job, flats = read_job(Path("job.toml")), read_party_file(Path("flats.toml"))
    kinds = [(terms.token_schema.fields[0].kind.KIND, terms.k) for terms in job.secondaries.values()]
    assert kinds == [("text", 10), ("place", 20)]
    assert all(terms.max_tokens > 300 for terms in job.secondaries.values())
    assert {"lat", "lon"} <= set(flats.features.columns)
    assert "landlord" not in flats.features.columns
    names = ("flats", "rentals", "register")
    assert np.isfinite(trained(*names)["test"]["rmse"])
    fedsim("certs", "--primary", "flats", "--secondary", "rentals", "--secondary", "register")
    for name in names:
        fedsim("check", "job.toml", f"{name}.toml")


def test_the_owner_is_asked_for_the_links_with_each_secondary():
    asked = fedsim("init", *write_three_tables(), "--label", "price", answer="lat\n\n\n")
    guesses = {"rentals.csv": "lat,lon", "register.csv": "landlord"}
    assert all(f"{table}, separated by commas [{guess}]" in asked for table, guess in guesses.items())
    linked = read_job(Path("job.toml")).secondaries
    assert [terms.columns for terms in linked.values()] == [("landlord",), ("lat",)]


@pytest.mark.parametrize(("option", "value"), [("--on-secondary", "lat,lon"), ("--separator-secondary", ";")])
def test_options_about_one_secondary_are_refused_with_several(option, value):
    with raises(FedSimError, "ambiguous-option", option=option, found=2):
        fedsim("init", *BOTH, "--secondary", "rentals.csv", "--on", "lat,lon", option, value, "--yes")


def test_several_secondaries_need_a_primary():
    with raises(FedSimError, "no-primary"):
        fedsim("init", "--secondary", "rentals.csv", "--secondary", "flats.csv", "--yes")


def test_quiet_prints_nothing():
    assert fedsim("init", *BOTH, "--yes", "--quiet") == ""


def test_programs_get_one_object():
    result = json.loads(fedsim("init", *BOTH, "--yes", "--json"))
    assert (result["label"], result["task"], result["k"]) == ("price", "regression", 20)
    assert result["link_by"][0] == {"primary": "lat", "secondary": "lat", "kind": "place"}
    assert all(Path(result["folder"], name).exists() for name in result["files"])


def test_questions_do_not_stand_in_the_way_of_the_object():
    asked = CliRunner().invoke(app, ["init", *BOTH, "--label", "price", "--json"], input="\n\n\n")
    assert "[lat,lon]" in asked.stderr
    assert json.loads(asked.stdout)["label"] == "price"


def test_a_job_with_a_coordinator_has_its_file_a_key_and_noise():
    output = fedsim("init", *BOTH, "--yes", "--coordinator", "--epochs", "1")
    assert "fedsim train job.toml notary.toml flats.toml rentals.toml" in output
    assert read_job(Path("job.toml")).secondaries["rentals"].sigma == pytest.approx(0.2)
    assert Path("linkage.key").is_file()
    assert np.isfinite(trained("notary", "flats", "rentals")["test"]["rmse"])


def test_noise_on_similarities_needs_a_coordinator():
    with raises(SettingError, "sigma-without-coordinator"):
        fedsim("init", *BOTH, "--yes", "--sigma", "0.2")
    assert not Path("job.toml").exists()


@pytest.mark.parametrize(("degrees", "metres"), [(0.01, 100.0), (2.0, 1_000.0), (40.0, 20_000.0)])
def test_the_finest_cells_of_sparse_places_are_wider(degrees, metres):
    for name in ("flats", "rentals"):
        place = pl.int_range(pl.len()) * degrees / 200
        pl.read_csv(f"{name}.csv").head(200).with_columns(lat=place, lon=place % 0.1).write_csv(f"{name}.csv")
    fedsim("init", *BOTH, "--yes")
    (field,) = read_job(Path("job.toml")).secondaries["rentals"].token_schema.fields
    assert field.kind.metres == metres


def test_names_dates_and_numbers_become_tokens_of_their_kind():
    registers(["first name", "last name", "born"], ["first name", "last name", "born"])
    on = ["--on", "first name,last name,born"]
    fedsim("init", *REGISTERS, "--yes", "--label", "income", *on)
    (terms,) = read_job(Path("job.toml")).secondaries.values()
    assert [field.kind.KIND for field in terms.token_schema.fields] == ["text", "text", "date"]
    assert terms.max_tokens > 0


def test_averages_get_the_nested_cells_that_rows_do_without():
    def cells(share: str) -> tuple[int, int, int]:
        fedsim("init", *BOTH, "--yes", "--share", share, "--force")
        terms = read_job(Path("job.toml")).secondaries["rentals"]
        kind = terms.token_schema.fields[0].kind
        assert isinstance(kind, PlaceTokens)
        assert (terms.share, terms.m) == (share, SHARES[share].M)
        return kind.narrowest, kind.cap, kind.reach

    usual = PlaceTokens()
    assert cells("averages") == (usual.narrowest, usual.cap, usual.reach)
    assert cells("rows") == tuple(proposal.CELLS_OF_ROWS.values())


def test_averages_train():
    result = json.loads(fedsim("init", *BOTH, "--yes", "--share", "averages", "--epochs", "1", "--json"))
    assert (result["share"], result["m"], result["direct"]) == ("averages", 10, True)
    assert np.isfinite(trained("flats", "rentals")["test"]["rmse"])


def test_split_means_the_coordinator_of_the_paper():
    result = json.loads(fedsim("init", *BOTH, "--yes", "--share", "split", "--json"))
    assert (result["share"], result["m"], result["direct"]) == ("split", None, False)
    assert {"notary.toml", "linkage.key"} <= {*result["files"]}
    assert read_job(Path("job.toml")).coordinator is not None


def test_who_names_no_level_is_asked_for_one_where_cells_can_be_averaged():
    words = ["init", *BOTH, "--label", "price", "--task", "regression", "--force"]
    output = fedsim(*words, answer="lat,lon\naverages\n")
    assert read_job(Path("job.toml")).secondaries["rentals"].share == "averages"
    assert output.count("m = 10") == 1
    fedsim(*words, answer="lat,lon\nsplit\n")
    assert read_job(Path("job.toml")).coordinator is not None
    fedsim("init", *BOTH, "--yes", "--force")
    assert read_job(Path("job.toml")).secondaries["rentals"].share == "rows"


def test_names_cannot_be_averaged_by_cells():
    registers(["Vorname", "Familienname", "geboren"], ["given", "surname", "dob"])
    words = ["init", *REGISTERS, "--label", "income", "--task", "regression"]
    names = ["--on", "Familienname", "--on-secondary", "surname"]
    assert error_of(*words, *names, "--share", "averages", "--yes").code == "no-cells"
    assert not Path("job.toml").exists()
    fedsim(*words, "--on", "geboren", "--on-secondary", "dob", "--share", "averages", "--yes")
    assert read_job(Path("job.toml")).secondaries["kasse"].share == "averages"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--share", "average"], "unknown-share"),
        (["--share", "averages", "--coordinator"], "share-without-coordinator"),
        (["--share", "rows", "--sigma", "0.2"], "sigma-without-coordinator"),
    ],
)
def test_a_level_that_cannot_be_meant_is_refused(words, code):
    assert error_of("init", *BOTH, "--yes", *words).code == code
    assert not Path("job.toml").exists()


def test_an_owner_sees_how_large_groups_of_its_records_are_before_it_chooses():
    output = fedsim("init", *BOTH, "--yes", "--dry-run")
    groups = json.loads(fedsim("init", *BOTH, "--yes", "--dry-run", "--json"))["groups"]["rentals"]
    assert [of["m"] for of in groups] == [3, 5, 10, 20]
    assert [of["groups"] for of in groups] == sorted((of["groups"] for of in groups), reverse=True)
    assert all(of["rows"] >= of["m"] and 0.8 < of["covered"] <= 1 for of in groups)
    (line,) = [line for line in output.splitlines() if line.split()[:2] == ["20", str(groups[-1]["groups"])]]
    assert groups[-1]["cell"] in line
    assert len(line) <= 80
