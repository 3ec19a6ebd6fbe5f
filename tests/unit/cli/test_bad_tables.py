"""``fedsim check`` and ``fedsim train`` report a table that went bad after approval, exit with 2 and leave no model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from fedsim.cli import ExitCode, exit_code_for
from fedsim.cli.app import app
from fedsim.errors import FedSimError
from job_fixtures import PARTIES, change, fill

FILES = [f"{name}.toml" for name in PARTIES]
Spoil = Callable[[pl.DataFrame], str | bytes]
BAD: dict[str, tuple[Spoil, str, str]] = {  # what spoils the table, a keyword of the check, the code of the error
    "semicolons": (lambda flats: flats.write_csv(separator=";"), "data.separator = ';'", "wrong-separator"),
    "utf-16": (lambda flats: flats.write_csv().encode("utf-16"), "UTF-16", "wrong-format"),
    "decimal commas": (
        lambda flats: flats.with_columns(pl.col("lat").cast(pl.String).str.replace(".", ",", literal=True)).write_csv(),
        "column 'lat': 120 of 120",
        "decimal-comma",
    ),
    "a name twice": (lambda flats: flats.write_csv().replace("storey", "age", 1), "column 'age'", "duplicate-column"),
    "no rows": (lambda flats: flats.head(0).write_csv(), "no rows", "no-records"),
    "no identifier": (
        lambda flats: flats.with_columns(lat=None).write_csv(),
        "column 'lat': 120 of 120 are missing",
        "missing-cell",
    ),
    "exchanged": (
        lambda flats: flats.rename({"lat": "lon", "lon": "lat"}).write_csv(),
        "columns 'lat' and 'lon' appear to be swapped",
        "outside-range",
    ),
    "one label": (lambda flats: flats.with_columns(price=7).write_csv(), "only one value", "constant-label"),
    "an absurd number": (
        lambda flats: flats.with_columns(
            age=pl.when(pl.int_range(pl.len()) == 4).then(1e308).otherwise("age")
        ).write_csv(),
        "column 'age', row 5",
        "number-too-large",
    ),
    "an absurd label": (
        lambda flats: flats.with_columns(
            price=pl.when(pl.int_range(pl.len()) == 4).then(-1e308).otherwise("price")
        ).write_csv(),
        "column 'price': 1 of 120 are beyond 1e+20, first in row 5",
        "number-too-large",
    ),
    "no label": (lambda flats: flats.with_columns(price=None).write_csv(), "has no values", "constant-label"),
}


@pytest.fixture(autouse=True)
def _job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)


def train() -> FedSimError:
    """How a training ends that cannot go on; who asked for quiet reads of it once, from the command itself."""
    done = CliRunner().invoke(app, ["train", "job.toml", *FILES, "--quiet"])
    fault = done.exception
    assert done.output == ""
    assert isinstance(fault, FedSimError)
    assert exit_code_for(fault) == ExitCode.INVALID_INPUT
    assert not list(Path().glob("*-run/*/model"))
    return fault


@pytest.mark.parametrize("what", BAD)
def test_a_bad_table_is_told_by_the_check_and_by_the_training(what):
    spoil, keyword, code = BAD[what]
    content = spoil(pl.read_csv("flats.csv"))
    Path("flats.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    check = CliRunner().invoke(app, ["check", "job.toml", "city.toml", "--quiet"])
    assert (check.exit_code, keyword in check.stderr) == (2, True), check.stderr
    assert train().code == code


def test_a_class_with_a_single_record_is_told_by_the_check_and_by_the_training():
    grades = pl.Series("price", ["good", "bad"] * 60).scatter(6, "unique")
    pl.read_csv("flats.csv").with_columns(grades).write_csv("flats.csv")
    change(Path("job.toml"), '"regression"', '"classification"')
    check = CliRunner().invoke(app, ["check", "job.toml", "city.toml", "--quiet"])
    assert (check.exit_code, "first in row 7" in check.stderr, "unique" in check.stderr) == (2, True, False)
    for file in FILES:
        CliRunner().invoke(app, ["approve", "job.toml", file, "--yes"])
    assert train().code == "single-record-class"


def test_the_labels_column_in_a_secondary_is_told_by_the_check_and_by_the_training():
    pl.read_csv("rentals.csv").rename({"rent": "price"}).write_csv("rentals.csv")
    change(Path("rentals.toml"), '"rent"', '"price"')
    change(Path("job.toml"), "epochs = 8", "epochs = 1")
    check = CliRunner().invoke(app, ["check", "job.toml", *FILES, "--quiet", "--json"])
    found = [finding for section in json.loads(check.stdout)["sections"] for finding in section["findings"]]
    assert [finding["level"] for finding in found if finding["code"] == "label-in-secondary"] == ["warning"]
    for file in FILES:
        CliRunner().invoke(app, ["approve", "job.toml", file, "--yes"])
    trained = CliRunner().invoke(app, ["train", "job.toml", *FILES])
    assert trained.exit_code == 0
    assert "'price'" in trained.stderr


def test_a_table_that_is_gone_is_told():
    Path("flats.csv").unlink()
    check = CliRunner().invoke(app, ["check", "job.toml", "city.toml", "--quiet"])
    assert (check.exit_code, "flats.csv does not exist; " in check.stderr) == (2, True)
    assert str(train()) == "flats.csv does not exist; check the path"


def test_a_database_that_refuses_is_told_without_the_password():
    change(Path("city.toml"), 'file = "flats.csv"', 'url = "postgresql://ann:secret@127.0.0.1:1/city"\ntable = "flats"')
    database = "postgresql://127.0.0.1:1/city"
    check = CliRunner().invoke(app, ["check", "job.toml", "city.toml", "--quiet"])
    assert (check.exit_code, database in check.stderr, "secret" in check.stderr) == (2, True, False)
    assert str(train()).startswith(database)


def test_a_mark_before_utf_8_harms_nothing():
    Path("flats.csv").write_bytes(Path("flats.csv").read_text(encoding="utf-8").encode("utf-8-sig"))
    assert CliRunner().invoke(app, ["check", "job.toml", "city.toml", "--quiet"]).exit_code == 0
    change(Path("job.toml"), "epochs = 8", "epochs = 1")
    for file in FILES:
        CliRunner().invoke(app, ["approve", "job.toml", file, "--yes"])
    assert CliRunner().invoke(app, ["train", "job.toml", *FILES, "--quiet"]).exit_code == 0
