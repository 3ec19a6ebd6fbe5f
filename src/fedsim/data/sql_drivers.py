"""Read tables of SQLite and PostgreSQL, in transactions that may only read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import polars as pl

from fedsim.errors import FedSimError, FileError, InputError, SettingError
from fedsim.storage.files import check_readable

if TYPE_CHECKING:
    from psycopg import Column, Connection, Error
from fedsim.data.sql import SqlTable, missing_table_error, quote_identifier

# SQLite by Python's own driver; the file is opened for reading only
#
# A column has the type of its values: whole numbers, numbers, or text. SQLite keeps dates as text and true as 1.


SQLITE_BATCH = 20_000
SQLITE_TIMEOUT = 10.0  # seconds to wait while another program writes
SQLITE_DTYPES = {int: pl.Int64, float: pl.Float64, str: pl.String, type(None): pl.Null}
SQLITE_NUMBERS = {int, float}


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
        names = ", ".join(map(quote_identifier, columns))
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
            while rows := answer.fetchmany(SQLITE_BATCH):
                yield rows
        except sqlite3.Error as error:
            raise self._fault(error) from None

    def _batch(self, columns: Sequence[str], rows: list[Any]) -> pl.DataFrame:
        cells = zip(columns, zip(*rows, strict=True), strict=True)
        return pl.DataFrame([self._series(name, values) for name, values in cells])

    def _series(self, name: str, values: Sequence[Any]) -> pl.Series:
        kinds = {type(value) for value in values} - {type(None)}
        if kinds <= SQLITE_NUMBERS or kinds == {str}:
            kind = float if float in kinds else next(iter(kinds), type(None))
            return pl.Series(name, values, dtype=SQLITE_DTYPES[kind], strict=False)
        if not kinds <= set(SQLITE_DTYPES):
            raise InputError(f"{self.source}: column '{name}' holds bytes; leave it out by naming columns in a query")
        raise self._mixed(name)

    def _mixed(self, name: str) -> InputError:
        return InputError(
            f"{self.source}: column '{name}' holds both numbers and text; make it one of them by a query such as "
            f"select cast({quote_identifier(name)} as text)"
        )

    def _fault(self, error: sqlite3.Error) -> Exception:
        """SQLite's own words name tables and columns, but may also quote the query."""
        words = str(error)
        if words.startswith("no such table"):
            found = self.connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            return missing_table_error(self.source, [name for (name,) in found])
        for begin, reason in SQLITE_FAULTS.items():
            if words.startswith(begin):
                return FileError(f"{self.source.place} {reason}")
        return InputError(f"{self.source} cannot be read: the query is no valid SQL for SQLite; try it in sqlite3")


SQLITE_FAULTS = {
    "file is not a database": "is no SQLite database; check the path",
    "database disk image is malformed": "is damaged; restore it from a copy",
    "unable to open": "cannot be opened; check the permissions of the file and its folder",
    "attempt to write": "would be changed by the query; only reading is allowed",
    "database is locked": "is being written by another program; try again later",
    "no such column": "has no such column as the query names; correct the query",
}


@contextmanager
def open_sqlite(source: SqlTable) -> Iterator[SqliteDatabase]:
    """The database, until the block ends."""
    path = source.file
    if path is None:
        raise FileError(f"{source.place} is no SQLite file; check the URL")
    check_readable(path)
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=SQLITE_TIMEOUT)
    try:
        yield SqliteDatabase(source, connection)
    finally:
        connection.close()


# PostgreSQL by psycopg, in one transaction that may only read; nothing of the server's own words reaches a message
#
# Moments with a time zone are told in UTC: the server keeps no other. Rows come in the order in which they lie on the
# disk, the same each time while the table is not written to; for another order, and for types not known here, write a
# query.


POSTGRES_BATCH = 20_000
POSTGRES_TIMEOUT = 10  # seconds for a server to answer
POSTGRES_DTYPES: dict[str, Any] = {
    **dict.fromkeys(("int2", "int4", "int8"), pl.Int64),
    **dict.fromkeys(("float4", "float8", "numeric"), pl.Float64),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "uuid"), pl.String),
    "bool": pl.Boolean,
    "date": pl.Date,
    "timestamp": pl.Datetime("us"),
    "timestamptz": pl.Datetime("us", "UTC"),
}
# The order of rows must not depend on who else reads or on the number of processors.
POSTGRES_SETTINGS = """
    SET LOCAL TIME ZONE 'UTC';
    SET LOCAL synchronize_seqscans = off;
    SET LOCAL max_parallel_workers_per_gather = 0
"""
POSTGRES_ENUM_QUERY = "SELECT typname FROM pg_catalog.pg_type WHERE oid = %s AND typtype = 'e'"
POSTGRES_TABLES_QUERY = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema !~ '^(pg_|information_schema)'"
)

# What a server that does not let us in says, and what that means; the first that fits is told.
POSTGRES_REFUSALS = {
    "password authentication failed": "does not accept this user and password; check both",
    "no password supplied": "asks for a password; give one in password_file, in PGPASSWORD or in ~/.pgpass",
    "Connection refused": "does not answer: nobody listens there; check host and port, and that the server runs",
    "No such file or directory": "does not answer: there is no such socket; check host, port and that the server runs",
    "failed to resolve host": "is at a host whose name nobody knows; check the name",
    "timeout": "does not answer in time; check host, port and firewall",
    "no pg_hba.conf entry": "does not let this user in from this machine; ask its administrator",
    "SSL": "and this machine do not agree on SSL; check sslmode in the URL",
    'database "': "has no database of this name; check the end of the URL",
    'role "': "does not know this user; check the URL",
}
POSTGRES_FAULTS = {
    "42703": "names a column that does not exist; correct the query",
    "42501": "may not be read by this user; ask for the right to SELECT",
    "25006": "would change the database; only reading is allowed",
    "42601": "is no valid SQL, or more than one statement; try it in psql first",
    "3F000": "lies in a schema that does not exist; check the name",
    "57014": "was stopped by the server because it took too long; read less, or ask for a longer statement_timeout",
}


@dataclass(frozen=True, eq=False)
class PostgresDatabase:
    """One connection in a transaction that may only read."""

    source: SqlTable
    connection: Connection[tuple[Any, ...]]

    def header(self) -> list[str]:
        return [column.name for column in self._columns()]

    def rows(self, columns: list[str]) -> pl.DataFrame:
        described = {column.name: column for column in self._columns()}
        schema = {name: self._kind(described[name]) for name in columns}
        names = ", ".join(map(quote_identifier, columns))
        answer = self._stream(f"SELECT {names} FROM {self.source.relation}")  # noqa: S608 - quoted
        empty = pl.DataFrame(schema=schema)
        batches = iter(lambda: list(islice(answer, POSTGRES_BATCH)), [])
        return pl.concat([empty, *(pl.DataFrame(rows, schema=schema, orient="row") for rows in batches)])

    def _columns(self) -> Sequence[Column]:
        import psycopg  # noqa: PLC0415

        statement = f"SELECT * FROM {self.source.relation} LIMIT 0"  # noqa: S608 - quoted
        try:
            # Prepared, for that way the server refuses a second statement, which might end the transaction.
            found = self.connection.execute(statement.encode(), prepare=True)
        except psycopg.Error as error:
            raise self._fault(error) from None
        return found.description or []

    def _stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        import psycopg  # noqa: PLC0415

        try:
            yield from self.connection.cursor().stream(statement.encode())
        except psycopg.Error as error:
            raise self._fault(error) from None

    def _kind(self, column: Column) -> Any:
        word = column.type_display.partition("(")[0]
        if word in POSTGRES_DTYPES:
            return POSTGRES_DTYPES[word]
        if self.connection.execute(POSTGRES_ENUM_QUERY, [column.type_code]).fetchone():
            return pl.String
        known = "numbers, text, true or false, dates and moments"
        raise InputError(
            f"{self.source}: column '{column.name}' is of the type {word}, and only {known} can be read; leave it out "
            "or convert it in a query"
        )

    def _fault(self, error: Error) -> FedSimError:
        state = error.sqlstate or ""
        if self.connection.closed:
            return FileError(f"{self.source.place} closed the connection while it was read; try again")
        if state == "42P01":
            self.connection.rollback()
            return missing_table_error(
                self.source, [name for (name,) in self.connection.execute(POSTGRES_TABLES_QUERY.encode())]
            )
        if state in POSTGRES_FAULTS:
            return InputError(f"{self.source} {POSTGRES_FAULTS[state]}")
        reason = f"the server refuses with the code {state}" if state else "a date lies outside the years 1 to 9999"
        return InputError(f"{self.source} cannot be read: {reason}; correct the data, or leave it out by a query")


@contextmanager
def open_postgres(source: SqlTable) -> Iterator[PostgresDatabase]:
    """The database, until the block ends."""
    try:
        import psycopg  # noqa: PLC0415
        from psycopg.types.numeric import FloatLoader  # noqa: PLC0415
        from psycopg.types.string import TextLoader  # noqa: PLC0415
    except ImportError:
        raise SettingError("PostgreSQL needs the driver psycopg: pip install 'fedsim-vfl[sql]'") from None
    try:
        connection = psycopg.connect(**_connection_settings(source))
    except psycopg.Error as error:
        raise FileError(f"{source.place} {_explain_refusal(str(error))}") from None
    with connection:
        connection.read_only = True
        connection.adapters.register_loader("numeric", FloatLoader)
        connection.adapters.register_loader("uuid", TextLoader)
        connection.execute(POSTGRES_SETTINGS.encode())
        yield PostgresDatabase(source, connection)


def _connection_settings(source: SqlTable) -> dict[str, Any]:
    from psycopg import ProgrammingError  # noqa: PLC0415
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        found = conninfo_to_dict(source.url)
    except ProgrammingError:
        raise SettingError(f"{source.place}: the URL has a part that PostgreSQL does not know; correct it") from None
    password = {"password": _read_password(source)} if source.password_file else {}
    return {
        "connect_timeout": POSTGRES_TIMEOUT,
        **found,
        **password,
        "client_encoding": "UTF8",
        "application_name": "fedsim",
    }


def _read_password(source: SqlTable) -> str:
    path = source.folder / (source.password_file or "")
    check_readable(path)
    try:
        found = path.read_text(encoding="utf-8").partition("\n")[0].strip("\r")
    except (OSError, ValueError):
        found = ""
    if not found:
        raise FileError(f"{path} holds no password; write it on the first line")
    return found


def _explain_refusal(words: str) -> str:
    return next((told for said, told in POSTGRES_REFUSALS.items() if said in words), "cannot be reached; check the URL")
