"""Read tables from SQLite and PostgreSQL in read-only transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import polars as pl

from fedsim.data.sql import SqlTable
from fedsim.errors import FedSimError, FileError, InputError, SettingError, nearest_word
from fedsim.storage.files import check_readable

if TYPE_CHECKING:
    from psycopg import Column, Connection


def open_database(source: SqlTable) -> AbstractContextManager[SqliteDatabase | PostgresDatabase]:
    """Open the database of a table for the length of a ``with`` block."""
    return open_sqlite(source) if source.file else open_postgres(source)


def relation(source: SqlTable) -> str:
    """Return the SQL after FROM, with quoted names; a dot separates schema and table."""
    if source.table:
        return ".".join(quote_identifier(name) for name in source.table.split("."))
    # On a line of its own: the query may end in a comment.
    return f"({(source.query or '').strip().rstrip(';')}\n) AS asked"


def quote_identifier(name: str) -> str:
    """Quote the name of a table or column.

    >>> quote_identifier('flats"; drop table flats')
    '"flats""; drop table flats"'
    """
    if not name or "\0" in name:
        message = "the name of a table or column is empty or contains a zero byte; correct it"
        raise SettingError(message, code="bad-names")
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def missing_table_error(source: SqlTable, tables: list[str]) -> InputError:
    """Return the error for a table that does not exist."""
    if not source.table:
        return InputError(f"{source}: the query names a table that does not exist; correct it", code="missing-table")
    near = nearest_word(source.table.rpartition(".")[2], tables)
    hint = f"did you mean '{near}'?" if near else "check the name, letter case included"
    message = f"{source.place}: there is no table '{source.table}' among its {len(tables)}; {hint}"
    return InputError(message, code="missing-table", suggestion=near)


# SQLite through Python's own driver; the file is opened read-only
#
# The type of a column follows from its values: whole numbers, numbers, or text. SQLite stores dates as text, true as 1.


SQLITE_BATCH = 20_000
SQLITE_TIMEOUT = 10.0  # seconds to wait while another program writes
SQLITE_DTYPES = {int: pl.Int64, float: pl.Float64, str: pl.String, type(None): pl.Null}
SQLITE_NUMBERS = {int, float}


@dataclass(frozen=True, eq=False)
class SqliteDatabase:
    """One open SQLite file."""

    source: SqlTable
    connection: sqlite3.Connection

    def header(self) -> list[str]:
        # The query itself: in a subquery SQLite renames duplicate columns.
        statement = self.source.query or f"SELECT * FROM {relation(self.source)} LIMIT 0"  # noqa: S608 - quoted
        with self._translate_errors():
            return [column[0] for column in self.connection.execute(statement).description or ()]

    def rows(self, columns: list[str]) -> pl.DataFrame:
        names = ", ".join(map(quote_identifier, columns))
        batches = []
        with self._translate_errors():
            cursor = self.connection.execute(f"SELECT {names} FROM {relation(self.source)}")  # noqa: S608 - quoted
            while rows := cursor.fetchmany(SQLITE_BATCH):
                cells = zip(columns, zip(*rows, strict=True), strict=True)
                batches.append(pl.DataFrame([self._series(name, values) for name, values in cells]))
        for name in columns:
            kinds = {batch[name].dtype for batch in batches}
            if pl.String in kinds and len(kinds - {pl.String, pl.Null}):
                raise self._mixed(name)
        empty = pl.DataFrame(schema=dict.fromkeys(columns, pl.Null))
        frame = pl.concat([empty, *batches], how="vertical_relaxed")
        # An empty column is read as text, as in a file.
        return frame.with_columns(pl.col(pl.Null).cast(pl.String))

    def _series(self, name: str, values: Sequence[Any]) -> pl.Series:
        kinds = {type(value) for value in values} - {type(None)}
        if kinds <= SQLITE_NUMBERS or kinds == {str}:
            kind = float if float in kinds else next(iter(kinds), type(None))
            return pl.Series(name, values, dtype=SQLITE_DTYPES[kind], strict=False)
        if not kinds <= set(SQLITE_DTYPES):
            message = f"{self.source}: column '{name}' holds bytes; exclude it with a query that lists the columns"
            raise InputError(message, code="wrong-type", column=name)
        raise self._mixed(name)

    def _mixed(self, name: str) -> InputError:
        way_out = f"convert it with a query such as select cast({quote_identifier(name)} as text)"
        message = f"{self.source}: column '{name}' holds both numbers and text; {way_out}"
        return InputError(message, code="mixed-types", column=name)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise our own errors, from None: SQLite's messages may quote the query."""
        try:
            yield
        except sqlite3.Error as error:
            message = str(error)
            if message.startswith("no such table"):
                found = self.connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
                raise missing_table_error(self.source, [name for (name,) in found]) from None
            for start, (code, reason) in SQLITE_FAULTS.items():
                if message.startswith(start):
                    raise FileError(f"{self.source.place} {reason}", code=code) from None
            reason = "the query is not valid SQL for SQLite; try it in sqlite3"
            raise InputError(f"{self.source} cannot be read: {reason}", code="bad-query") from None


SQLITE_FAULTS = {
    "file is not a database": ("not-a-database", "is not an SQLite database; check the path"),
    "database disk image is malformed": ("damaged-file", "is damaged; restore it from a backup"),
    "unable to open": ("not-readable", "cannot be opened; check the permissions of the file and its folder"),
    "attempt to write": ("read-only", "would be changed by the query; only reading is allowed"),
    "database is locked": ("database-locked", "is being written by another program; try again later"),
    "no such column": ("missing-column", "does not have a column that the query names; correct the query"),
}


@contextmanager
def open_sqlite(source: SqlTable) -> Iterator[SqliteDatabase]:
    """Open an SQLite file for the length of a ``with`` block."""
    path = source.file
    if path is None:
        raise FileError(f"{source.place} is not an SQLite file; check the URL", code="not-a-database")
    check_readable(path)
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=SQLITE_TIMEOUT)
    try:
        yield SqliteDatabase(source, connection)
    finally:
        connection.close()


# PostgreSQL through psycopg, in one read-only transaction; our messages never quote the server's
#
# Timestamps with a time zone are read in UTC, as the server stores them. Rows arrive in their order on disk, which is
# stable while the table is not written to; for another order, or for unsupported types, write a query.


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

# Parts of the server's message when a connection fails, and their meaning; the first match wins.
POSTGRES_REFUSALS = {
    "password authentication failed": ("wrong-password", "does not accept this user and password; check both"),
    "no password supplied": ("password-required", "asks for a password; use PGPASSWORD or ~/.pgpass"),
    "Connection refused": ("connection-refused", "refuses the connection; check host, port and server"),
    "No such file or directory": ("no-socket", "has no such socket; check host, port and server"),
    "failed to resolve host": ("unknown-host", "has an unknown host name; check the name"),
    "timeout": ("no-answer", "does not answer in time; check host, port and firewall"),
    "no pg_hba.conf entry": ("not-admitted", "does not admit this user from this machine; ask its administrator"),
    "SSL": ("ssl-mismatch", "and this machine do not agree on SSL; check sslmode in the URL"),
    'database "': ("missing-database", "has no database of this name; check the end of the URL"),
    'role "': ("unknown-user", "does not know this user; check the URL"),
}
POSTGRES_FAULTS = {
    "42703": ("missing-column", "names a column that does not exist; correct the query"),
    "42501": ("no-permission", "may not be read by this user; ask for the right to SELECT"),
    "25006": ("read-only", "would change the database; only reading is allowed"),
    "42601": ("bad-query", "is not valid SQL, or more than one statement; try it in psql first"),
    "3F000": ("missing-schema", "is in a schema that does not exist; check the name"),
    "57014": ("query-timeout", "was stopped by the server after statement_timeout; read less or raise it"),
}


@dataclass(frozen=True, eq=False)
class PostgresDatabase:
    """One connection in a read-only transaction."""

    source: SqlTable
    connection: Connection[tuple[Any, ...]]

    def header(self) -> list[str]:
        return [column.name for column in self._columns()]

    def rows(self, columns: list[str]) -> pl.DataFrame:
        described = {column.name: column for column in self._columns()}
        schema = {name: self._kind(described[name]) for name in columns}
        names = ", ".join(map(quote_identifier, columns))
        statement = f"SELECT {names} FROM {relation(self.source)}"  # noqa: S608 - quoted
        with self._translate_errors():
            stream = self.connection.cursor().stream(statement.encode())
            batches = iter(lambda: list(islice(stream, POSTGRES_BATCH)), [])
            frames = [pl.DataFrame(rows, schema=schema, orient="row") for rows in batches]
        return pl.concat([pl.DataFrame(schema=schema), *frames])

    def _columns(self) -> Sequence[Column]:
        statement = f"SELECT * FROM {relation(self.source)} LIMIT 0"  # noqa: S608 - quoted
        with self._translate_errors():
            # Prepared: the server then refuses a second statement, which might end the transaction.
            return self.connection.execute(statement.encode(), prepare=True).description or []

    def _kind(self, column: Column) -> Any:
        word = column.type_display.partition("(")[0]
        if word in POSTGRES_DTYPES:
            return POSTGRES_DTYPES[word]
        if self.connection.execute(POSTGRES_ENUM_QUERY, [column.type_code]).fetchone():
            return pl.String
        message = f"{self.source}: column '{column.name}' has the unsupported type {word}; cast or omit it in a query"
        raise InputError(message, code="wrong-type", column=column.name, held=word)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        import psycopg  # noqa: PLC0415

        try:
            yield
        except psycopg.Error as error:
            raise self._describe_error(error.sqlstate or "") from None

    def _describe_error(self, state: str) -> FedSimError:
        if self.connection.closed:
            return FileError(f"{self.source.place} closed the connection; try again", code="connection-closed")
        if state == "42P01":
            self.connection.rollback()
            tables = self.connection.execute(POSTGRES_TABLES_QUERY.encode())
            return missing_table_error(self.source, [name for (name,) in tables])
        if state in POSTGRES_FAULTS:
            code, fault = POSTGRES_FAULTS[state]
            return InputError(f"{self.source} {fault}", code=code)
        reason = f"the server reports the code {state}" if state else "a date is outside the years 1 to 9999"
        message = f"{self.source} cannot be read: {reason}; correct the data, or exclude it with a query"
        return InputError(message, code="bad-data", state=state)


@contextmanager
def open_postgres(source: SqlTable) -> Iterator[PostgresDatabase]:
    """Connect to a PostgreSQL server for the length of a ``with`` block."""
    try:
        import psycopg  # noqa: PLC0415
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415
        from psycopg.types.numeric import FloatLoader  # noqa: PLC0415
        from psycopg.types.string import TextLoader  # noqa: PLC0415
    except ImportError:
        message = "PostgreSQL needs the driver psycopg: pip install 'fedsim-vfl[sql]'"
        raise SettingError(message, code="missing-package") from None
    try:
        settings: dict[str, Any] = {"connect_timeout": POSTGRES_TIMEOUT, **conninfo_to_dict(source.url)}
    except psycopg.ProgrammingError:
        message = f"{source.place}: the URL has a part that PostgreSQL does not know; correct it"
        raise SettingError(message, code="bad-url") from None
    settings |= {"client_encoding": "UTF8", "application_name": "fedsim"}
    try:
        connection = psycopg.connect(**settings)
    except psycopg.Error as error:
        message = str(error)
        refusals = (refusal for part, refusal in POSTGRES_REFUSALS.items() if part in message)
        code, reason = next(refusals, ("not-reachable", "cannot be reached; check the URL"))
        raise FileError(f"{source.place} {reason}", code=code) from None
    with connection:
        connection.read_only = True
        connection.adapters.register_loader("numeric", FloatLoader)
        connection.adapters.register_loader("uuid", TextLoader)
        connection.execute(POSTGRES_SETTINGS.encode())
        yield PostgresDatabase(source, connection)
