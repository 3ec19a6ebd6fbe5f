"""A CSV or TSV file, plain or gzipped, as a frame of text.

The fast path is polars. What it accepts in silence is checked here (repeated names, short rows, cut archives, old line
ends), and what it refuses is looked up again, slowly, to name the row without showing the cell.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from pathlib import Path

import polars as pl
from polars.exceptions import PanicException, PolarsError

from fedsim.data.csv_faults import fault, short_row
from fedsim.data.files import read_bytes
from fedsim.data.header import choose
from fedsim.errors import FileError, InputError

HEADER_BYTES = 1 << 20
FOREIGN = {
    b"PAR1": "Parquet; give it the ending .parquet",
    b"PK\x03\x04": "a spreadsheet or archive; save the table as CSV",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
}
NAMES = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}


def read_csv(path: Path, columns: list[str] | None, *, separator: str, option: str = "--separator") -> pl.DataFrame:
    """The columns asked for, in that order, every cell as the text that stands there (``None`` where nothing does)."""
    content = _content(path)
    header = _header(path, content, separator)
    if columns is None or not set(columns) <= set(header):
        _check_separator(path, content, columns, separator, option)
    places = choose(path, header, columns)
    frame = _parse(path, content, separator)
    if frame.width != len(header):
        raise FileError(f"{path}: the header cannot be split into columns; check its quotes")
    _refuse_short_rows(path, content, separator, frame, header)
    if frame.is_empty():
        raise InputError(f"{path} has a header but no rows; at least one record is needed")
    return frame[:, places]


def header_widths(path: Path) -> dict[str, int]:
    """Into how many columns each common separator splits the header."""
    content = _content(path)
    return {separator: len(_header(path, content, separator)) for separator in NAMES}


def _content(path: Path) -> bytes:
    content = read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileError(f"{path} is cut off or damaged and cannot be unpacked; copy it again") from error
    if not content.strip():
        raise FileError(f"{path} is empty; it needs a header line and at least one row")
    for magic, kind in FOREIGN.items():
        if content.startswith(magic):
            raise FileError(f"{path} is not a UTF-8 text table; it looks like {kind}")
    if b"\0" in content[:HEADER_BYTES]:  # UTF-16 without its mark has one beside every plain letter
        raise FileError(f"{path} holds zero bytes, which no text has; it may be UTF-16: save it as UTF-8")
    return content


def _header(path: Path, content: bytes, separator: str) -> list[str]:
    start = content[:HEADER_BYTES]
    if b"\r" in start and b"\n" not in start:
        raise FileError(f"{path} ends its lines in the old Macintosh way; save it with Unix or Windows line ends")
    # A byte limit may cut a letter in two at the very end, far behind the header.
    text = start.decode("utf-8-sig", errors="replace")
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        header = next(line for line in lines if line)
    except (csv.Error, StopIteration) as error:
        raise FileError(f"{path}: the header line cannot be read; check its quotes") from error
    if any("\ufffd" in name for name in header):
        raise FileError(f"{path}: the header is not UTF-8 text; save the file as UTF-8")
    return header


def _check_separator(path: Path, content: bytes, columns: list[str] | None, separator: str, option: str) -> None:
    """Say which separator it looks like when this one leaves the table in one piece."""
    header = _header(path, content, separator)
    for other, name in NAMES.items():
        split = [] if other == separator else _header(path, content, other)
        if len(split) > 1 and (len(header) == 1 or (columns and set(columns) <= set(split))):
            here = NAMES.get(separator, repr(separator))
            raise InputError(
                f"{path} has {len(header)} column(s) when split at {here}, but {len(split)} at {name}; "
                f"say {option} {name}"
            )


def _parse(path: Path, content: bytes, separator: str) -> pl.DataFrame:
    """All columns, although few are wanted: polars looks for surplus cells only where it reads the whole row."""
    try:
        frame = pl.read_csv(content, separator=separator, infer_schema=False)
    except (PolarsError, PanicException):
        # From None: the reader's own text quotes cells, and a traceback would show it.
        raise FileError(f"{path}: {fault(content, separator)}") from None
    filled = (~_blank(frame)).arg_true()
    return frame.head(int(filled[-1]) + 1 if len(filled) else 0)


def _refuse_short_rows(path: Path, content: bytes, separator: str, frame: pl.DataFrame, header: list[str]) -> None:
    """Polars fills them up in silence; they are looked for only where a last cell is missing."""
    width = max((place for place, name in enumerate(header, 1) if name), default=0)
    ends_early = frame.to_series(width - 1).is_null() & ~_blank(frame)
    said = short_row(content, separator, width, set(ends_early.arg_true())) if ends_early.any() else ""
    if said:
        raise FileError(f"{path}: {said}")


def _blank(frame: pl.DataFrame) -> pl.Series:
    return frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
