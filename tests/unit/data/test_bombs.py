"""Tables that were made to exhaust memory, and names that were made to be more than names."""

from __future__ import annotations

import gzip
import os
import sqlite3
import tracemalloc
from pathlib import Path

import polars as pl
import pytest

from error_fixtures import raises
from fedsim.data import table_reader
from fedsim.data.sql import SqlTable
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError, FileError, InputError


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits a thousand times smaller, so that tests need no gigabytes."""
    monkeypatch.setattr(table_reader, "FREE_BYTES", 256 << 10)
    monkeypatch.setattr(table_reader, "MAX_LINE_BYTES", 16 << 10)
    monkeypatch.setattr(table_reader, "MAX_CELL_BYTES", 1 << 10)


@pytest.mark.usefixtures("small_limits")
def test_a_gzip_bomb_is_given_up_long_before_it_is_unpacked(tmp_path: Path) -> None:
    path, row = tmp_path / "bomb.csv.gz", b"1,2\n"
    path.write_bytes(gzip.compress(b"a,b\n" + row * 5_000_000))
    tracemalloc.start()
    with raises(FileError, "too-large"):
        read_table(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.usefixtures("small_limits")
def test_a_parquet_bomb_is_known_by_its_footer(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    pl.DataFrame({"a": pl.repeat(7, 1_000_000, eager=True)}).write_parquet(path)
    assert path.stat().st_size < 100_000
    with raises(FileError, "too-large"):
        read_table(path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_ten_thousand_columns_are_read_and_one_more_is_refused(tmp_path: Path, suffix: str) -> None:
    for width in (10_000, 10_001):
        frame = pl.DataFrame({f"c{number}": [number] for number in range(width)})
        getattr(frame, f"write_{suffix}")(tmp_path / f"wide{width}.{suffix}")
    assert read_table(tmp_path / f"wide10000.{suffix}", ["c9999", "c0"]).row(0) in ((9999, 0), ("9999", "0"))
    with raises(InputError, "too-many-columns", limit=10_000):
        read_table(tmp_path / f"wide10001.{suffix}", ["c0"])


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("cell", ["x" * (20 << 10), '"' + "x\n" * (10 << 10) + '"', "x" * (2 << 10)])
def test_a_cell_of_a_gigabyte_is_refused(tmp_path: Path, cell: str) -> None:
    (tmp_path / "long.csv").write_text(f"a,b\n1,2\n1,{cell}\n")
    with pytest.raises(FedSimError) as caught:
        read_table(tmp_path / "long.csv")
    assert caught.value.code in ("line-too-long", "cell-too-long")
    assert "xx" not in str(caught.value)


@pytest.mark.usefixtures("small_limits")
def test_a_long_cell_of_a_parquet_file_is_named_by_row_and_column(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1, 2], "b": ["x", "x" * 2000]}).write_parquet(tmp_path / "long.parquet")
    with raises(InputError, "cell-too-long", column="b", row=2):
        read_table(tmp_path / "long.parquet")


def test_what_is_no_file_is_not_read_for_ever(tmp_path: Path) -> None:
    for name, target in (("zero.csv", "/dev/zero"), ("null.parquet", "/dev/null")):
        (tmp_path / name).symlink_to(target)
    os.mkfifo(tmp_path / "pipe.csv")
    for path in tmp_path.iterdir():
        with raises(FileError, "not-a-regular-file"):
            read_table(path)


def test_symbolic_links_lead_to_files_and_not_in_circles(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a\n1\n")
    (tmp_path / "link.csv").symlink_to("table.csv")
    (tmp_path / "circle.csv").symlink_to("circle.csv")
    assert len(read_table(tmp_path / "link.csv")) == 1
    with pytest.raises(FileError):
        read_table(tmp_path / "circle.csv")


NAMES = [
    'a"; drop table flats; --',
    "a'; drop table flats; --",
    "a) from flats; delete from flats; --",
    "1=1",
    "[a]",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_tables_and_columns_are_never_sql(tmp_path: Path, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    with sqlite3.connect(tmp_path / "flats.db") as database:
        database.execute("create table flats (a)")
        database.execute("insert into flats values (1)")
        database.execute(f"create table {quoted} ({quoted})")
        database.execute(f"insert into {quoted} values (2)")  # noqa: S608
    found = SqlTable("sqlite:///flats.db", table=name, folder=tmp_path).read([name])
    assert found.rows() == [(2,)]
    with pytest.raises(FedSimError):
        SqlTable("sqlite:///flats.db", table="flats", folder=tmp_path).read([name])
    assert SqlTable("sqlite:///flats.db", table="flats", folder=tmp_path).read().rows() == [(1,)]


@pytest.mark.parametrize("name", ["*", "^.*$"])
def test_a_name_that_would_select_other_columns_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "table.csv").write_text(f"a,{name}\n1,2\n")
    with raises(InputError, "pattern-as-name"):
        read_table(tmp_path / "table.csv", [name])
