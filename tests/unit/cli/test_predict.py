"""``fedsim predict`` as a command: any table, one fault in one sentence, words for programs.

All partners are away, so that the primary answers by its own features; with partners see the tests of the predictor.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from fedsim.cli.app import app
from fedsim.cli.results import match_columns
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.errors import InputError, SettingError
from fedsim.runtime.run_local import run_local
from fedsim.training.explain import Matches
from job_fixtures import PARTIES, approve_now, change, fill

FEDSIM = [sys.executable, "-m", "fedsim"]
PARTY = ["job.toml", "city.toml", "--insecure", "--wait", "0.1"]
CANARY = "41.987654"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained job, and new records in every kind of table."""
    here = tmp_path_factory.mktemp("trained")
    fill(here)
    change(here / "job.toml", "epochs = 8", "epochs = 1")
    for name in PARTIES:
        approve_now(here, name)
    run_local(read_job(here / "job.toml"), [read_party_file(here / f"{name}.toml") for name in PARTIES])
    new = pl.read_csv(here / "flats.csv").drop("price").head(9)
    new.write_csv(here / "new.csv.gz", compression="gzip")
    new.write_parquet(here / "new.parquet")
    with sqlite3.connect(here / "new.db") as database:
        database.execute(f"create table flats ({', '.join(new.columns)})")
        database.executemany(f"insert into flats values ({', '.join('?' * new.width)})", new.rows())  # noqa: S608
    database.close()
    return here


def predict(folder: Path, *words: str) -> Result:
    with chdir(folder):
        return CliRunner().invoke(app, ["predict", *PARTY, "--out", "out.csv", *words])


def refusal(folder: Path, column: str, value: object, rows: set[int]) -> InputError:
    """The error for a table with this value in these rows of a column."""
    (folder / "out.csv").unlink(missing_ok=True)
    new = pl.read_parquet(folder / "new.parquet").with_columns(pl.all().cast(pl.String))
    place = pl.int_range(1, len(new) + 1)
    cell = pl.when(place.is_in(sorted(rows))).then(pl.lit(value)).otherwise(column).alias(column)
    new.with_columns(cell).write_csv(folder / "bad.csv")
    done = predict(folder, "--records", "bad.csv", "--quiet")
    assert done.output == ""
    assert not (folder / "out.csv").exists()
    assert isinstance(done.exception, InputError)
    assert CANARY not in str(done.exception)
    return done.exception


@pytest.mark.parametrize(
    ("words", "records"),
    [
        (["--records", "new.csv.gz"], 9),
        (["--records", "new.parquet"], 9),
        (["--records", "sqlite:///new.db#flats"], 9),
        (["--records", "sqlite:///new.db", "--query", "select * from flats order by lat limit 4"], 4),
    ],
)
def test_whatever_a_party_reads_can_be_predicted_and_programs_hear_of_it(folder, words, records):
    done = predict(folder, *words, "--quiet", "--json", "--explain", "why.csv")
    result = json.loads(done.output)
    why = pl.read_csv(folder / "why.csv")
    assert why.filter(part="prediction")["value"].to_list() == pl.read_csv(folder / "out.csv")["prediction"].to_list()
    assert why.filter(part="effect of a column")["name"].n_unique() == 3
    assert (result["records"], result["by"], result["away"], result["file"]) == (
        records,
        "solo",
        ["rentals"],
        "out.csv",
    )
    found = pl.read_csv(folder / "out.csv")
    assert len(found) == records
    assert (found["lower"] <= found["prediction"]).all()
    assert (found["prediction"] <= found["upper"]).all()
    assert set(found["away"]) == {"rentals"}


@pytest.mark.parametrize("name", ["why.json", "why.html", "why"])
def test_a_name_that_promises_another_format_than_csv_is_refused_before_anything_runs(folder, name):
    for option in ("--explain", "--out"):
        done = predict(folder, "--records", "nowhere.csv", option, name)
        assert isinstance(done.exception, SettingError)
        assert (done.exception.code, done.exception.option) == ("not-a-csv-name", option)
        assert not (folder / name).exists()


def test_a_cell_that_is_no_number_is_named_by_the_users_own_file(folder):
    error = refusal(folder, "area", f"{CANARY} m", {3, 5, 8})
    assert (error.code, error.table, error.column, error.row) == ("not-a-number", "bad.csv", "area", 3)


def test_a_place_outside_the_agreed_range_is_named_likewise(folder):
    error = refusal(folder, "lat", CANARY, {2, 4})
    assert (error.code, error.table, error.column, error.row) == ("outside-range", "bad.csv", "lat", 2)


def test_a_place_that_is_missing_is_named_likewise(folder):
    error = refusal(folder, "lon", None, {7})
    assert (error.code, error.table, error.column, error.row) == ("missing-cell", "bad.csv", "lon", 7)


def test_invalid_records_are_skipped_on_request_and_listed(folder):
    refusal(folder, "lat", CANARY, {2, 4})
    bad = pl.read_csv(folder / "bad.csv", infer_schema=False)
    area = pl.when(pl.int_range(1, len(bad) + 1).is_in([4, 9])).then(pl.lit("large")).otherwise("area")
    bad.with_columns(area=area).write_csv(folder / "bad.csv")
    result = json.loads(predict(folder, "--records", "bad.csv", "--skip-invalid", "--quiet", "--json").output)
    assert [each["row"] for each in result["skipped"]] == [2, 4, 9]
    assert (result["records"], CANARY in str(result)) == (6, False)
    assert pl.read_csv(folder / "out.csv")["row"].to_list() == [1, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--records", "sqlite:///new.db"], "no-table"),
        (["--records", "sqlite:///new.db#flat"], "missing-table"),
        (["--records", "new.parquet", "--query", "select 1"], "table-or-query"),
        (["--records", "sqlite:///new.db", "--query", "select lat, lon, age from flats"], "missing-column"),
        (["--records", "new.parquet", "--keep", "town"], "no-such-column"),
    ],
)
def test_what_cannot_be_predicted_is_told(folder, words, code):
    assert predict(folder, *words).exception.code == code


def test_a_fault_is_one_line_of_a_process_that_ends_with_two(folder):
    command = [*FEDSIM, "predict", *PARTY, "--out", "out.csv", "--records", "nowhere.csv"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere.csv" in done.stderr


def test_new_records_are_split_as_the_party_file_says_of_its_own(folder):
    pl.read_parquet(folder / "new.parquet").write_csv(folder / "new.csv", separator=";")
    text = (folder / "city.toml").read_text(encoding="utf-8")
    try:
        change(folder / "city.toml", "[data]\n", '[data]\nseparator = ";"\n')
        done = predict(folder, "--records", "new.csv", "--quiet")
        assert (done.exit_code, done.output) == (0, "")
        assert len(pl.read_csv(folder / "out.csv")) == 9
    finally:
        (folder / "city.toml").write_text(text, encoding="utf-8")


def test_matches_are_numbered_in_the_order_of_the_file():
    found = Matches("register", np.array([[70, 3], [9, 3], [9, 70]]), np.array([[0.9, 0.1], [0.2, 0.1], [0.0, 0.8]]))
    partner, match, none = match_columns(found)
    assert partner.to_list() == [1, None, 1]
    assert match.to_list() == [0.9, 0.2, 0.8]
    assert none.to_list() == pytest.approx([0.0, 0.7, 0.2])
