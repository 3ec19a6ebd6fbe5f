"""A table that went bad after its job was approved: ``fedsim check`` and ``fedsim train`` each tell it in one sentence,
with the file, the column and the first row, end with 2, and leave no model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from fedsim.cli.app import app
from fedsim.cli.exit_codes import ExitCode, exit_code_for
from fedsim.errors import FedSimError
from job_fixtures import PARTIES, change, fill

FILES = [f"{name}.toml" for name in PARTIES]
Spoil = Callable[[pl.DataFrame], str | bytes]
OUTSIDE = "the value lies outside the agreed range 0.9 to 1.8; agree on a wider one or leave the record out"
SPLIT = "flats.csv has 1 column(s) when split at ',', but 6 at ';'; say data.separator = ';'"
UTF_16 = "flats.csv is not a UTF-8 text table; it looks like UTF-16; save it as UTF-8"
TWICE = "flats.csv: the column 'age' stands 2 times in the header; rename all but one"
NO_ROWS = "flats.csv has a header but no rows; at least one record is needed"
BAD: dict[str, tuple[Spoil, str, str]] = {
    "semicolons": (lambda flats: flats.write_csv(separator=";"), SPLIT, SPLIT),
    "utf-16": (lambda flats: flats.write_csv().encode("utf-16"), UTF_16, UTF_16),
    "decimal commas": (
        lambda flats: flats.with_columns(pl.col("lat").cast(pl.String).str.replace(".", ",", literal=True)).write_csv(),
        "column 'lat': 120 of 120 are no numbers, first in row 1; write decimals with a point, not a comma",
        "flats.csv: column 'lat', row 1 is not a number; write decimals with a point, not a comma (120 such rows)",
    ),
    "a name twice": (lambda flats: flats.write_csv().replace("storey", "age", 1), TWICE, TWICE),
    "no rows": (lambda flats: flats.head(0).write_csv(), NO_ROWS, NO_ROWS),
    "no identifier": (
        lambda flats: flats.with_columns(lat=None).write_csv(),
        "column 'lat': 120 of 120 are missing, first in row 1; fill them in, or drop those records",
        "flats.csv: column 'lat', row 1 is missing; fill it or drop the row (120 such rows)",
    ),
    "exchanged": (
        lambda flats: flats.rename({"lat": "lon", "lon": "lat"}).write_csv(),
        "columns 'lat' and 'lon' look exchanged: each fits the range of the other; in city.toml: [identifiers]",
        f"table 'flats.csv', column 'lat', row 1: {OUTSIDE} (120 such rows)",
    ),
    "one label": (
        lambda flats: flats.with_columns(price=7).write_csv(),
        "column 'price' has one value only; predict another column",
        "the label of primary 'city' has one value only; predict another column",
    ),
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
    spoil, checked, trained = BAD[what]
    content = spoil(pl.read_csv("flats.csv"))
    Path("flats.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    check = CliRunner().invoke(app, ["check", "job.toml", "city.toml", "--quiet"])
    assert (check.exit_code, checked in check.stderr) == (2, True), check.stderr
    assert str(train()) == trained


def test_a_table_that_is_gone_is_told():
    Path("flats.csv").unlink()
    check = CliRunner().invoke(app, ["check", "job.toml", "city.toml", "--quiet"])
    assert (check.exit_code, "flats.csv does not exist; " in check.stderr) == (2, True)
    assert str(train()) == "flats.csv does not exist; check the path"


def test_a_database_that_refuses_is_told_without_the_password():
    change(Path("city.toml"), 'file = "flats.csv"', 'url = "postgresql://ann:secret@127.0.0.1:1/city"\ntable = "flats"')
    told = "postgresql://127.0.0.1:1/city does not answer: nobody listens there; check host and port"
    check = CliRunner().invoke(app, ["check", "job.toml", "city.toml", "--quiet"])
    assert (check.exit_code, told in check.stderr, "secret" in check.stderr) == (2, True, False)
    assert str(train()).startswith(told)


def test_a_mark_before_utf_8_harms_nothing():
    Path("flats.csv").write_bytes(Path("flats.csv").read_text(encoding="utf-8").encode("utf-8-sig"))
    assert CliRunner().invoke(app, ["check", "job.toml", "city.toml", "--quiet"]).exit_code == 0
    change(Path("job.toml"), "epochs = 8", "epochs = 1")
    for file in FILES:
        CliRunner().invoke(app, ["approve", "job.toml", file, "--yes"])
    assert CliRunner().invoke(app, ["train", "job.toml", *FILES, "--quiet"]).exit_code == 0
