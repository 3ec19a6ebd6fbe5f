"""A table from a file, by the ending of its name, or from a database.

Errors name file, column and data row (the first row under the header is row 1), never what stands in a cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from fedsim.data.csv_file import header_widths, read_csv
from fedsim.data.files import check_readable
from fedsim.data.parquet_file import read_parquet
from fedsim.data.sql_source import Source, SqlTable, source_of
from fedsim.errors import FileError, SettingError

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = (".parquet", ".pq")


def read_table(
    source: Source | str,
    columns: list[str] | None = None,
    *,
    separator: str | None = None,
    option: str = "--separator",
) -> pl.DataFrame:
    """The columns asked for, in that order; all of them for ``None``.

    ``option`` is where the reader of an error may name another ``separator``. Text may be a path or the URL of a
    database with a table, ``sqlite:///flats.db#flats``.

    Cells of a CSV file come as text, exactly as written, so that ``007`` stays ``007``:
    :mod:`fedsim.data.columns` turns them into numbers, names or dates and says which row is not one.
    """
    path = source_of(source) if isinstance(source, str) else source
    if isinstance(path, SqlTable):
        return path.read(columns)
    check_readable(path)
    if path.name.lower().endswith(PARQUET):
        return read_parquet(path, columns)
    return read_csv(path, columns, separator=_separator(path, separator), option=option)


def likely_separator(path: Path) -> str | None:
    """What stands between the cells of a text table, where that is not what the ending of its name says."""
    check_readable(path)
    if path.name.lower().endswith(PARQUET):
        return None
    usual, widths = _separator(path, None), header_widths(path)
    widest = max(widths, key=lambda separator: widths[separator])
    return widest if widths[usual] == 1 < widths[widest] else None


def files_among(sources: Iterable[Source]) -> list[Path]:
    """The files that tables are read from; a database server has none."""
    found = [source.file if isinstance(source, SqlTable) else source for source in sources]
    return [path for path in found if path]


def _separator(path: Path, asked: str | None) -> str:
    if asked is None:
        endings = [ending for ending in SEPARATORS if path.name.lower().endswith(ending)]
        if not endings:
            known = ", ".join([*SEPARATORS, *PARQUET])
            raise FileError(f"{path}: the ending of the name tells no kind of file; use one of {known}")
        return SEPARATORS[endings[0]]
    separator = "\t" if asked in ("\\t", "tab") else asked
    if len(separator.encode()) != 1 or separator in '"\r\n':
        raise SettingError(f"separator {asked!r} is not one plain character; use ',', ';', '|' or tab")
    return separator
