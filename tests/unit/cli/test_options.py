"""Wrong inputs as newcomers make them: each message names what was seen and the way out, and is no traceback."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from fedsim.cli import ExitCode, describe_failure
from fedsim.cli.app import app
from fedsim.config.job import read_job
from fedsim.errors import FedSimError
from init_fixtures import TOWN
from job_fixtures import PARTIES, approve_now, change, fill

FILES = [f"{name}.toml" for name in PARTIES]
FLATS = TOWN.flats.write_csv()
INIT = ["init", "--primary", "flats.csv", "--secondary", "rentals.csv", "--label", "price", "--yes"]
CHECK = ["check", "job.toml", *FILES, "--json"]
TRAIN = ["train", "job.toml", *FILES]


@dataclass(frozen=True)
class WrongInput:
    """What a user does wrong, in ``words`` and files, and what the message must contain beside its ``code``."""

    code: str
    shown: tuple[str, ...]  # the value seen and the way out
    words: list[str]
    spoil: Callable[[], object] = lambda: None


def write(content: str | bytes, name: str = "flats.csv") -> Callable[[], object]:
    return lambda: Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def cell(row: int, column: int, word: str) -> Callable[[], object]:
    """Put a word into one cell of the flats; rows count from 1."""
    lines = [line.split(",") for line in FLATS.splitlines()]
    lines[row][column] = word
    return write("\n".join(map(",".join, lines)) + "\n")


def edit(name: str, old: str, new: str) -> Callable[[], object]:
    return lambda: change(Path(name), old, new)


def folder_for_file() -> None:
    Path("flats.csv").unlink()
    Path("flats.csv").mkdir()


def exchange_tables() -> None:
    content = Path("flats.csv").read_bytes()
    Path("rentals.csv").rename("flats.csv")
    Path("rentals.csv").write_bytes(content)


def add_dates() -> None:
    """Add dates as spreadsheets write them, one of which is not in the calendar."""
    days = pl.date_range(date(2020, 1, 1), date(2024, 1, 1), eager=True).head(len(TOWN.flats)).dt.strftime("%d/%m/%Y")
    TOWN.flats.with_columns(sold=days.scatter(2, "31/13/2020")).write_csv("flats.csv")


def init(*words: str) -> list[str]:
    """The usual words of init with some options changed, the first of each pair in ``words``."""
    new = dict(zip(words[::2], words[1::2], strict=True))
    kept = [word for pair in zip(INIT[1:7:2], INIT[2:8:2], strict=True) if pair[0] not in new for word in pair]
    return ["init", *kept, *words, "--yes"]


TABLES = {
    "an empty file": WrongInput("empty-file", ("flats.csv", "header line"), INIT, write("")),
    "a header without rows": WrongInput(
        "no-records", ("flats.csv", "at least one record"), INIT, write(FLATS.partition("\n")[0])
    ),
    "a single record": WrongInput(
        "too-few-records",
        ("flats.csv", "only one record", "many records"),
        INIT,
        write("\n".join(FLATS.splitlines()[:2])),
    ),
    "a column name twice": WrongInput(
        "duplicate-column", ("'age'", "rename"), INIT, write(FLATS.replace("storey", "age", 1))
    ),
    "UTF-16": WrongInput("wrong-format", ("UTF-16", "UTF-8"), INIT, write(FLATS.encode("utf-16"))),
    "Latin-1 in the header": WrongInput(
        "not-utf8", ("header", "CSV UTF-8"), INIT, write(FLATS.replace("area", "fläche", 1).encode("latin-1"))
    ),
    "Latin-1 in a cell": WrongInput(
        "not-utf8", ("row 1", "CSV UTF-8"), INIT, write(FLATS.replace(",24,", ",München,", 1).encode("latin-1"))
    ),
    "a spreadsheet": WrongInput(
        "wrong-format",
        ("flats.xlsx", "spreadsheet", "CSV"),
        init("--primary", "flats.xlsx"),
        write(b"PK\3\4", "flats.xlsx"),
    ),
    "a spreadsheet named .csv": WrongInput("wrong-format", ("spreadsheet", "export"), INIT, write(b"PK\3\4....")),
    "another extension": WrongInput(
        "unknown-extension", ("'.txt'", ".csv"), init("--primary", "flats.txt"), write(FLATS, "flats.txt")
    ),
    "a folder": WrongInput("is-a-folder", ("flats.csv", "name the file"), INIT, folder_for_file),
    "a truncated archive": WrongInput(
        "damaged-file",
        ("flats.csv.gz", "copy it again"),
        init("--primary", "flats.csv.gz"),
        write(gzip.compress(FLATS.encode())[:300], "flats.csv.gz"),
    ),
    "a misspelt file": WrongInput("file-not-found", ("flat.csv", "'flats.csv'"), init("--primary", "flat.csv")),
    "a row with a cell more": WrongInput(
        "long-row",
        ("row 1", "7 cells", "quotes"),
        INIT,
        cell(1, 5, "1,2"),
    ),
    "a row with a cell less": WrongInput(
        "short-row",
        ("row 4", "5 cells", "copy the file"),
        INIT,
        write("\n".join(line.rpartition(",")[0] if row == 4 else line for row, line in enumerate(FLATS.splitlines()))),
    ),
    "a word among the labels": WrongInput(
        "not-a-number", ("'price'", "row 3", "correct it"), INIT, cell(3, 5, "n. s.")
    ),
    "a word among the numbers of a feature": WrongInput(
        "", ("area", "not in row 3", "correct it"), INIT, cell(3, 2, "large")
    ),
    "a day that does not exist among dates": WrongInput(
        "",
        ("sold", "not in row 3", "correct it"),
        INIT,
        add_dates,
    ),
    "a latitude of 95": WrongInput("outside-range", ("'lat'", "row 3", "90", "correct it"), INIT, cell(3, 0, "95")),
    "a label of 1e308": WrongInput("number-too-large", ("'price'", "row 3", "correct it"), INIT, cell(3, 5, "1e308")),
    "a label that is constant": WrongInput(
        "constant-label",
        ("'price'", "another label"),
        INIT,
        lambda: TOWN.flats.with_columns(price=5).write_csv("flats.csv"),
    ),
    "an identifier without values": WrongInput(
        "empty-column",
        ("'lat'", "flats.csv"),
        init("--on", "lat,lon"),
        lambda: TOWN.flats.with_columns(lat=None).write_csv("flats.csv"),
    ),
    "latitude and longitude swapped": WrongInput(
        "",
        ("'lat'", "'lon'", "swapped"),
        INIT,
        lambda: TOWN.flats.rename({"lat": "lon", "lon": "lat"}).write_csv("flats.csv"),
    ),
}
OPTIONS = {
    "a misspelt label": WrongInput("missing-column", ("'prize'", "'price'"), init("--label", "prize")),
    "a misspelt identifier": WrongInput("missing-column", ("'latt'", "'lat'"), init("--on", "latt,lon")),
    "a misspelt task": WrongInput("unknown-task", ("'regresion'", "'regression'"), init("--task", "regresion")),
    "more partners than records": WrongInput("k-too-large", ("k=5000", "200"), init("--k", "5000")),
    "negative epochs": WrongInput("", ("--epochs", "1"), init("--epochs", "-1")),
    "a misspelt option": WrongInput("", ("--primry", "--primary"), ["init", "--primry", "flats.csv"]),
    "a misspelt command": WrongInput("", ("'inti'", "'init'"), ["inti"]),
    "files that would be replaced": WrongInput("files-exist", ("job.toml", "--force"), INIT, write("mine", "job.toml")),
    "a run that does not exist": WrongInput("", ("nowhere", "run folder"), ["report", "nowhere"]),
    "a misspelt setting to explain": WrongInput("", ("'trainig.wire'", "'training.wire'"), ["explain", "trainig.wire"]),
}
JOBS = {
    "an unknown setting": WrongInput("", ("epoch", "'epochs'"), CHECK, edit("job.toml", "epochs = ", "epoch = ")),
    "negative epochs in the job": WrongInput(
        "", ("epochs", "-8", "1"), CHECK, edit("job.toml", "epochs = 8", "epochs = -8")
    ),
    "text for a number": WrongInput("", ("epochs", "many"), CHECK, edit("job.toml", "epochs = 8", 'epochs = "many"')),
    "invalid TOML": WrongInput("", ("job.toml", "line"), CHECK, edit("job.toml", "[training]", "[training")),
    "k beyond the partner's table": WrongInput("", ("5,000", "1,000"), CHECK, edit("job.toml", "k = 20", "k = 5000")),
    "the label misspelt in a party file": WrongInput(
        "missing-column", ("'prcie'", "'price'"), CHECK, edit("city.toml", '"price"', '"prcie"')
    ),
    "the table misspelt in a party file": WrongInput(
        "file-not-found", ("flat.csv", "'flats.csv'"), CHECK, edit("city.toml", '"flats.csv"', '"flat.csv"')
    ),
    "the tables of two parties exchanged": WrongInput(
        "tables-swapped", ("'price'", "rentals.csv", "swap", "city.toml", "rentals.toml"), CHECK, exchange_tables
    ),
    "a semicolon where a comma was meant": WrongInput(
        "wrong-separator", ("';'", "data.separator"), CHECK, write(FLATS.replace(",", ";"))
    ),
    "the role of another party": WrongInput(
        "", ("label", "primary", "remove"), CHECK, edit("city.toml", '"primary"', '"secondary"')
    ),
    "a name that the job does not have": WrongInput(
        "not-a-party", ("town", "city"), CHECK, edit("city.toml", 'name = "city"', 'name = "town"')
    ),
    "no linkage key": WrongInput("", ("linkage.key", "channel"), CHECK, lambda: Path("linkage.key").unlink()),
    "job and party file exchanged": WrongInput(
        "argument-order", ("city.toml", "fedsim check job.toml city.toml"), ["check", "city.toml", "job.toml", "--json"]
    ),
    "a job that was not approved": WrongInput("not-approved", ("city", "fedsim approve"), TRAIN),
    "a missing party file": WrongInput("missing-party-file", ("rentals", "party files"), TRAIN[:-1]),
    "a misspelt job file": WrongInput("", ("jb.toml", "'job.toml'"), ["train", "jb.toml", *FILES]),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    fill(folder)
    return folder


def assert_told(wrong: WrongInput) -> None:
    wrong.spoil()
    done = CliRunner().invoke(app, wrong.words)
    codes, text = [""], done.output
    if isinstance(done.exception, FedSimError):
        codes, text = [done.exception.code], describe_failure(done.exception)[0]
        assert done.exit_code == 1  # of the runner; the command exits as follows
        assert describe_failure(done.exception)[1] == ExitCode.INVALID_INPUT
        assert "\n" not in text
    elif wrong.words[0] == "check":
        findings = [found for section in json.loads(done.stdout)["sections"] for found in section["findings"]]
        bad = [found for found in findings if found["level"] == "fails"]
        codes = [found["code"] for found in bad]
        text = " ".join(f"{found['result']}; {found['fix']}" for found in bad)
        assert done.exit_code == ExitCode.INVALID_INPUT
    else:
        assert isinstance(done.exception, SystemExit | None), done.exception
    text = re.sub(r"\s+", " ", text)
    assert wrong.code in ("", *codes)
    assert [word for word in wrong.shown if word not in text] == [], text
    assert "Traceback" not in done.output


@pytest.mark.parametrize("case", TABLES | OPTIONS)
def test_a_wrong_table_or_option_is_told_with_the_way_out(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("flats.csv").write_text(FLATS)
    TOWN.rentals.write_csv("rentals.csv")
    assert_told((TABLES | OPTIONS)[case])


@pytest.mark.parametrize("case", JOBS)
def test_a_wrong_job_or_party_file_is_told_with_the_way_out(case, filled, tmp_path, monkeypatch):
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    shutil.rmtree("city-run", ignore_errors=True)
    assert_told(JOBS[case])


def test_a_port_in_use_is_told_with_the_way_out(filled, tmp_path, monkeypatch):
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    address = read_job(Path("job.toml")).primary.address
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))):
        assert_told(WrongInput("port-unavailable", (address, "another port"), CHECK))
        approve_now(tmp_path, "city")
        assert_told(WrongInput("", (address,), ["party", "job.toml", "city.toml"]))


def test_at_least_25_wrong_inputs_are_listed():
    assert len(TABLES) + len(OPTIONS) + len(JOBS) >= 25
