"""SQLite by Python's own driver; the file is opened for reading only.

A column has the type of its values: whole numbers, numbers, or text. SQLite keeps dates as text and true as 1.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl

from fedsim.data.files import check_readable
from fedsim.data.sql_source import SqlTable, absent_table, quoted
from fedsim.errors import FileError, InputError

BATCH = 20_000
PATIENCE = 10.0  # seconds to wait while another program writes
KINDS = {int: pl.Int64, float: pl.Float64, str: pl.String, type(None): pl.Null}
NUMBERS = {int, float}


@dataclass(frozen=True, eq=False)
class SqliteDatabase:
    """One open file."""

    source: SqlTable
    connection: sqlite3.Connection

    def header(self) -> list[str]:
        # The query as it stands: inside another one SQLite renames what is named twice.
        statement = self.source.query or f"SELECT * FROM {self.source.relation} LIMIT 0"  # noqa: S608 - quoted
        return [column[0] for column in self._ask(statement).description or ()]

    def rows(self, columns: list[str]) -> pl.DataFrame:
        names = ", ".join(map(quoted, columns))
        answer = self._ask(f"SELECT {names} FROM {self.source.relation}")  # noqa: S608 - quoted
        batches = [self._batch(columns, rows) for rows in self._batches(answer)]
        for name in columns:
            kinds = {batch[name].dtype for batch in batches}
            if pl.String in kinds and len(kinds - {pl.String, pl.Null}):
                raise self._mixed(name)
        empty = pl.DataFrame(schema=dict.fromkeys(columns, pl.Null))
        frame = pl.concat([empty, *batches], how="vertical_relaxed")
        # A column without any value is text, as in a file.
        return frame.with_columns(pl.col(pl.Null).cast(pl.String))

    def _ask(self, statement: str) -> sqlite3.Cursor:
        try:
            return self.connection.execute(statement)
        except sqlite3.Error as error:
            raise self._fault(error) from None

    def _batches(self, answer: sqlite3.Cursor) -> Iterator[list[Any]]:
        try:
            while rows := answer.fetchmany(BATCH):
                yield rows
        except sqlite3.Error as error:
            raise self._fault(error) from None

    def _batch(self, columns: Sequence[str], rows: list[Any]) -> pl.DataFrame:
        cells = zip(columns, zip(*rows, strict=True), strict=True)
        return pl.DataFrame([self._series(name, values) for name, values in cells])

    def _series(self, name: str, values: Sequence[Any]) -> pl.Series:
        kinds = {type(value) for value in values} - {type(None)}
        if kinds <= NUMBERS or kinds == {str}:
            kind = float if float in kinds else next(iter(kinds), type(None))
            return pl.Series(name, values, dtype=KINDS[kind], strict=False)
        if not kinds <= set(KINDS):
            raise InputError(f"{self.source}: column '{name}' holds bytes; leave it out by naming columns in a query")
        raise self._mixed(name)

    def _mixed(self, name: str) -> InputError:
        return InputError(
            f"{self.source}: column '{name}' holds both numbers and text; make it one of them by a query such as "
            f"select cast({quoted(name)} as text)"
        )

    def _fault(self, error: sqlite3.Error) -> Exception:
        """SQLite's own words name tables and columns, but may also quote the query."""
        words = str(error)
        if words.startswith("no such table"):
            found = self.connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            return absent_table(self.source, [name for (name,) in found])
        for begin, reason in FAULTS.items():
            if words.startswith(begin):
                return FileError(f"{self.source.place} {reason}")
        return InputError(f"{self.source} cannot be read: the query is no valid SQL for SQLite; try it in sqlite3")


FAULTS = {
    "file is not a database": "is no SQLite database; check the path",
    "database disk image is malformed": "is damaged; restore it from a copy",
    "unable to open": "cannot be opened; check the permissions of the file and its folder",
    "attempt to write": "would be changed by the query; only reading is allowed",
    "database is locked": "is being written by another program; try again later",
    "no such column": "has no such column as the query names; correct the query",
}


@contextmanager
def connected(source: SqlTable) -> Iterator[SqliteDatabase]:
    """The database, until the block ends."""
    path = source.file
    if path is None:
        raise FileError(f"{source.place} is no SQLite file; check the URL")
    check_readable(path)
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=PATIENCE)
    try:
        yield SqliteDatabase(source, connection)
    finally:
        connection.close()
