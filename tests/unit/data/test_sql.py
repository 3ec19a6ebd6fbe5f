"""Tables out of a real SQLite file: the same table as from a CSV, and one sentence for everything that goes wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl
import pytest

from error_fixtures import raises
from fedsim.data.sql import SqlTable, parse_source
from fedsim.data.table_reader import read_table, source_files
from fedsim.errors import FedSimError, FileError, InputError, SettingError

CANARY = "Zaphod"
SECRET = "hunter2"  # noqa: S105


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database with plain and with odd tables."""
    with sqlite3.connect(tmp_path / "flats.db") as db:
        db.execute("create table flats (id integer primary key, lat real, rooms, name text, gap, born date)")
        rows = [(1, 1.3, 3, "a", None, "1984-07-31"), (2, 1.31, 2.5, None, None, "1985-01-01")]
        db.executemany("insert into flats values (?, ?, ?, ?, ?, ?)", rows)
        db.execute('create table "drop table flats; --" ("a ""b" integer)')
        db.execute('insert into "drop table flats; --" values (7)')
        db.execute("create table odd (mixed, photo)")
        db.executemany("insert into odd values (?, ?)", [(1, b"x"), (CANARY, b"y")])
        db.execute("create table empty (a)")
    db.close()
    return tmp_path


def table(folder: Path, **settings: str) -> SqlTable:
    return SqlTable("sqlite:///flats.db", folder=folder, **settings)


def refusal(source: SqlTable, columns: list[str] | None = None) -> FedSimError:
    with pytest.raises(FedSimError) as caught:
        source.read(columns)
    assert CANARY not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_columns_have_the_type_of_their_values(folder):
    frame = table(folder, table="flats").read()
    assert frame.dtypes == [pl.Int64, pl.Float64, pl.Float64, pl.String, pl.String, pl.String]
    assert frame["rooms"].to_list() == [3.0, 2.5]


def test_types_may_change_between_batches(folder, monkeypatch):
    monkeypatch.setattr("fedsim_ops.sql_drivers.SQLITE_BATCH", 1)
    assert table(folder, table="flats").read(["rooms", "name"]).rows() == [(3.0, "a"), (2.5, None)]
    assert refusal(table(folder, table="odd"), ["mixed"]).code == "mixed-types"


def test_a_word_on_the_command_line_names_file_and_table(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert read_table("sqlite:///flats.db#flats", ["lat", "id"]).columns == ["lat", "id"]
    assert read_table(f"sqlite:///{folder}/flats.db#flats").height == 2
    assert source_files([parse_source("sqlite:///flats.db#flats"), Path("a.csv")]) == [Path("flats.db"), Path("a.csv")]


def test_a_query_may_end_in_anything_and_order_its_rows(folder):
    asked = table(folder, query="select lat, id as n from flats order by id desc; ")
    assert asked.read(["n"])["n"].to_list() == [2, 1]
    assert table(folder, query="select id from flats -- all of them").read().height == 2


def test_names_are_quoted(folder):
    assert table(folder, table="drop table flats; --").read(['a "b']).item() == 7
    assert table(folder, table="flats").read().height == 2


def test_nothing_can_be_written(folder):
    assert refusal(table(folder, query="delete from flats")).code == "read-only"
    assert refusal(table(folder, query="select 1) as a; drop table flats; --")).code == "bad-query"
    assert table(folder, table="flats").read().height == 2


@pytest.mark.parametrize(
    ("settings", "columns", "code", "details"),
    [
        ({"table": "flat"}, None, "missing-table", {"suggestion": "flats"}),
        ({"table": "flats"}, ["latt"], "missing-column", {"column": "latt", "suggestion": "lat"}),
        ({"query": "select * from nowhere"}, None, "missing-table", {}),
        ({"query": "select latt from flats"}, None, "missing-column", {}),
        ({"query": "select id, id from flats"}, None, "duplicate-column", {"column": "id"}),
        ({"query": f"selct '{CANARY}'"}, None, "bad-query", {}),
        ({"table": "empty"}, None, "no-records", {}),
        ({"table": "odd"}, ["mixed"], "mixed-types", {"column": "mixed"}),
        ({"table": "odd"}, ["photo"], "wrong-type", {"column": "photo"}),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence(folder, settings, columns, code, details):
    error = refusal(table(folder, **settings), columns)
    assert (error.code, error.details | details) == (code, error.details)


def test_a_file_that_is_absent_or_no_database_is_told(tmp_path):
    with raises(FileError, "file-not-found"):
        table(tmp_path, table="flats").read()
    (tmp_path / "flats.db").write_text("lat,lon\n" * 200)
    with raises(FileError, "not-a-database"):
        table(tmp_path, table="flats").read()


@pytest.mark.parametrize(
    "url",
    [
        "mysql://a@b/c",
        "postgresql:flats",
        "sqlite://flats.db",
        "sqlite:///",
        f"postgresql://ann:{SECRET}/x@host/db",
        f"postgresql://ann:{SECRET}#x@host/db",
        f"postgresql://ann:{SECRET}?x@host/db",
        f"postgresql://ann:{SECRET}@host:port/db",
        f"postgresql://ann:{SECRET}@[host/db",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_and_not_shown(url):
    with raises(SettingError, "bad-url") as caught:
        SqlTable(url, table="flats")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("settings", [{}, {"table": "a", "query": "b"}])
def test_either_table_or_query(settings):
    with raises(SettingError, "table-or-query"):
        SqlTable("sqlite:///flats.db", **settings)


def test_a_url_without_table_tells_how_to_name_one():
    with raises(SettingError, "no-table"):
        read_table("sqlite:///flats.db")


def test_a_password_never_shows():
    source = SqlTable(f"postgresql://ann:{SECRET}@db.example.org:5433/city?password={SECRET}", query=f"'{SECRET}'")
    assert f"{source} {source!r} {source.place}".count(SECRET) == 0
    assert str(source) == "the query in postgresql://db.example.org:5433/city"


def test_an_input_error_and_a_file_error_are_told_apart(folder):
    with pytest.raises(InputError):
        table(folder, table="flts").read()
