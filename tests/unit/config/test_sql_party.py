"""A party whose table is in a database: its file, its owner's approval, and a password that never shows."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from fedsim.cli.agreement import approve_job
from fedsim.config.job import read_job
from fedsim.config.party_file import PartyFile, read_party_file, resolve_columns
from fedsim.config.toml_file import ConfigFileError
from fedsim.data.sql import SqlTable
from fedsim.errors import FedSimError

EXAMPLE = Path(__file__).parents[3] / "examples" / "three_processes"

SECRET = "hunter2"  # noqa: S105
URL = f"postgresql://ann:{SECRET}@db.example.org/city"
TABLE = 'url = "sqlite:///rentals.db"\ntable = "rentals"'


def party(folder: Path, data: str) -> PartyFile:
    """The example's secondary with another [data]."""
    text = (EXAMPLE / "rentals.toml").read_text(encoding="utf-8").replace('file = "rentals.csv"', data)
    (folder / "rentals.toml").write_text(text, encoding="utf-8")
    return read_party_file(folder / "rentals.toml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database beside the party file."""
    with sqlite3.connect(tmp_path / "rentals.db") as database:
        database.execute("create table rentals (id, lat, lon, rooms, rating, rent)")
        database.executemany("insert into rentals values (?, 1.3, 103.8, 3, 4.5, 900)", [(row,) for row in range(1200)])
    database.close()
    return tmp_path


@pytest.mark.parametrize("data", [TABLE, 'url = "sqlite:///rentals.db"\nquery = "select * from rentals order by id;"'])
def test_a_database_lies_beside_the_file_that_names_it(folder, data):
    source = party(folder, data).data.source
    assert isinstance(source, SqlTable)
    assert source.file == folder / "rentals.db"
    assert source.read(["rent", "lat"]).row(0) == (900, 1.3)


def test_an_owner_approves_columns_of_a_database(folder, capsys, monkeypatch):
    party(folder, TABLE)
    (folder / "job.toml").write_bytes((EXAMPLE / "job.toml").read_bytes())
    assert approve_job(folder / "job.toml", folder / "rentals.toml", ask=lambda: True).approved
    assert "rooms, rating, rent" in capsys.readouterr().out


def test_a_missing_column_is_reported_with_the_table(folder):
    own = party(folder, TABLE)
    with pytest.raises(FedSimError, match=re.escape("rentals in sqlite:///rentals.db")) as caught:
        resolve_columns(read_job(EXAMPLE / "job.toml"), own, ["lon", "rent"])
    assert (caught.value.code, caught.value.column) == ("missing-column", "lat")


@pytest.mark.parametrize(
    ("data", "code", "setting"),
    [
        ("missing = []", "file-or-url", "data.file"),
        (f'file = "a.csv"\n{TABLE}', "file-or-url", "data.file"),
        ('file = "a.csv"\ntable = "a"', "setting-not-applicable", "data.table"),
        (f'{TABLE}\nseparator = ";"', "setting-not-applicable", "data.separator"),
        (f'url = "{URL}"', None, "data"),
        (f'url = "{URL}"\ntable = "a"\nquery = "b"', None, "data"),
        (f'url = "mysql{URL}"\ntable = "a"', None, "data"),
        (f'file = "{URL}"', "url-as-path", "data.file"),
        (f'url = "{URL}"\ntabel = "a"', "unknown-setting", "data.tabel"),
    ],
)
def test_invalid_data_settings_are_refused_without_showing_the_password(folder, data, code, setting):
    with pytest.raises(ConfigFileError) as caught:
        party(folder, data)
    assert caught.value.setting == setting
    assert code is None or caught.value.code == code
    assert SECRET not in str(caught.value)


def test_the_password_shows_in_no_repr(folder):
    own = party(folder, f'url = "{URL}"\ntable = "rentals"')
    assert SECRET not in f"{own!r} {own.data!r} {own.data.source!r} {own.data.source}"
    assert own.data.source.without_password() == "postgresql://ann@db.example.org/city"
