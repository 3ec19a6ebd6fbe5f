"""Tables in databases; neither messages nor ``repr`` show a password.

``sqlite:///flats.db`` is a relative path, ``sqlite:////data/flats.db`` an absolute one, ``postgresql://user@host/city``
a server. For PostgreSQL the password comes from the URL, PGPASSWORD or ``~/.pgpass``, in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from fedsim.data.column_names import column_positions
from fedsim.errors import InputError, SettingError, replace_unprintable
from fedsim.registry import SERVICES

if TYPE_CHECKING:
    import polars as pl

SQLITE, POSTGRES = ("sqlite",), ("postgresql", "postgres")
SCHEMES = (*SQLITE, *POSTGRES)
EXAMPLE_URLS = "sqlite:///flats.db or postgresql://user@host/database"


@dataclass(frozen=True, repr=False)
class SqlTable:
    """A database ``table`` or the result of a ``query``; relative SQLite paths are resolved against ``folder``.

    >>> SqlTable("postgresql://ann:secret@db.example.org/city", table="flats")
    SqlTable(flats in postgresql://db.example.org/city)
    """

    url: str
    table: str | None = None
    query: str | None = None
    folder: Path = Path()

    def __post_init__(self) -> None:
        parts = _split_url(self.url)
        if parts.scheme in SQLITE and (parts.netloc or not self._path):
            message = "an SQLite URL needs three slashes before the file: sqlite:///flats.db"
            raise SettingError(message, code="bad-url", scheme="sqlite")
        if bool(self.table) == bool(self.query):
            raise SettingError("a database needs either the name of a table or a query", code="table-or-query")

    def __str__(self) -> str:
        return f"{self.stem} in {self.place}"

    def __repr__(self) -> str:
        return f"SqlTable({self})"

    @property
    def place(self) -> str:
        """The URL without user and password."""
        parts = _split_url(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def without_password(self) -> str:
        """Return the URL without the password, safe to store."""
        parts = _split_url(self.url)
        user, at, host = parts.netloc.rpartition("@")
        query = "&".join(each for each in parts.query.split("&") if not each.startswith("password="))
        return parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query=query).geturl()

    @property
    def stem(self) -> str:
        """A short name for titles."""
        return self.table or "the query"

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database, None for a server."""
        return self.folder / self._path if _split_url(self.url).scheme in SQLITE else None

    @property
    def _path(self) -> str:
        return unquote(_split_url(self.url).path.removeprefix("/"))

    def read(self, columns: list[str] | None = None) -> pl.DataFrame:
        """Read the given columns, in that order; all of them for ``None``."""
        with SERVICES["database"](self) as database:
            stored = database.header()
            header = list(map(replace_unprintable, stored))
            wanted = [stored[place] for place in column_positions(self, header, columns)]
            frame: pl.DataFrame = database.rows(wanted).rename(replace_unprintable)
        if frame.is_empty():
            raise InputError(f"{self} has columns but no rows; at least one record is needed", code="no-records")
        return frame


TableSource = Path | SqlTable


def is_database_url(word: str) -> bool:
    """Return whether a word names a database rather than a file.

    >>> is_database_url("sqlite:///flats.db#flats"), is_database_url("flats.csv")
    (True, False)
    """
    return "://" in word


def parse_source(word: str, query: str | None = None) -> TableSource:
    """Parse a command-line argument: a file path or a URL such as ``sqlite:///flats.db#flats``.

    With a ``query``, the argument is only the URL of the database.

    >>> parse_source("flats.csv"), parse_source("sqlite:///flats.db#flats")
    (PosixPath('flats.csv'), SqlTable(flats in sqlite:///flats.db))
    >>> parse_source("sqlite:///flats.db", "select * from flats where sold is null")
    SqlTable(the query in sqlite:///flats.db)
    """
    if query is not None:
        if not is_database_url(word) or "#" in word:
            message = "a query needs the URL of a database without a table, such as sqlite:///flats.db"
            raise SettingError(message, code="table-or-query")
        return SqlTable(word, query=query)
    if not is_database_url(word):
        return Path(word)
    url, mark, table = word.rpartition("#")
    if not mark or not table:
        _split_url(word)
        message = "a database URL needs the name of a table after #: sqlite:///flats.db#flats"
        raise SettingError(message, code="no-table")
    return SqlTable(url, table=table)


def _split_url(url: str) -> SplitResult:
    """Split a supported URL; errors never repeat it, because it may contain a password."""
    try:
        parts = urlsplit(url)
        port = parts.port  # raises if it is not a number
        whole = not parts.fragment and "@" not in f"{parts.path}{parts.query}{port}"
        known = parts.scheme in SCHEMES and is_database_url(url)
    except ValueError:
        whole = known = False
    if not (whole and known):
        fix = f"use one such as {EXAMPLE_URLS}, and in a password write %2F %3F %23 %40 for / ? # @"
        raise SettingError(f"not a supported database URL; {fix}", code="bad-url")
    return parts
