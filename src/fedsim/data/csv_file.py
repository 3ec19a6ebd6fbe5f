"""Read CSV and TSV files, plain or gzipped, and name the row of every fault without showing its cells."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path

import polars as pl
from polars.exceptions import PanicException, PolarsError

from fedsim.data.column_names import column_positions
from fedsim.errors import FileError, InputError
from fedsim.storage.files import read_bytes

# Where a CSV text breaks the rules, in words, without its content


QUOTE_FAULT = "has a quote that is not closed properly; put the cell in quotes and double the quotes inside it"


def describe_csv_fault(content: bytes, separator: str) -> str:
    """The first fault of a text that the fast reader refused.

    >>> describe_csv_fault(b"id,name\\n1,a\\n2,b,c\\n", ",")
    'row 2 has 3 cells, but the header has 2; put cells with a separator in quotes'
    """
    width = row = 0
    try:
        for row, (raw, cells) in enumerate(_raw_rows(content, separator)):
            width = width or len(cells)
            said = _row_fault(raw, cells, width)
            if said:
                return f"row {row} {said}"
    except csv.Error:
        return f"row {row + 1} {QUOTE_FAULT}"
    return "it cannot be read as a table; look for quotes in the middle of a cell"


def describe_short_row(content: bytes, separator: str, width: int, places: Container[int]) -> str:
    """The first row at these places (from 0) that has too few cells; nothing where none has.

    >>> describe_short_row(b"id,name\\n1,a\\n2\\n", ",", 2, {1})
    'row 2 has 1 cell, but the header has 2; it may be cut off: copy the file again, or add a separator for each gap'
    """
    with suppress(csv.Error):  # a cell too long for this reader, and none too few for the fast one
        rows = csv.reader(io.StringIO(_decode_latin1(content), newline=""), delimiter=separator)
        next(rows)
        for place, cells in enumerate(rows):
            if 0 < len(cells) < width and place in places:
                seen = f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'}"
                way_out = "it may be cut off: copy the file again, or add a separator for each gap"
                return f"row {place + 1} has {seen}, but the header has {width}; {way_out}"
    return ""


def _decode_latin1(content: bytes) -> str:
    # Latin-1 maps every byte to one character, so rows can be counted before we know which one is not UTF-8.
    return content.removeprefix(b"\xef\xbb\xbf").decode("latin-1").lstrip("\r\n")


def _raw_rows(content: bytes, separator: str) -> Iterator[tuple[str, list[str]]]:
    """Every row as it stands in the file and as cells; the header is row 0."""
    text = _decode_latin1(content)
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            taken.append(line)
            yield line

    for cells in csv.reader(lines(), delimiter=separator, strict=True):
        yield "".join(taken), cells
        taken.clear()


def _row_fault(raw: str, cells: list[str], width: int) -> str:
    if not _is_utf8(raw):
        return "is not UTF-8 text; save the file as UTF-8"
    if len(cells) > width:
        return f"has {len(cells)} cells, but the header has {width}; put cells with a separator in quotes"
    if any(_escape_cell(cell) not in raw for cell in cells if '"' in cell):
        return QUOTE_FAULT
    return ""


def _escape_cell(cell: str) -> str:
    doubled = cell.replace('"', '""')
    return f'"{doubled}"'


def _is_utf8(raw: str) -> bool:
    try:
        raw.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# A CSV or TSV file, plain or gzipped, as a frame of text
#
# The fast path is polars. What it accepts in silence is checked here (repeated names, short rows, cut archives, old
# line ends), and what it refuses is looked up again, slowly, to name the row without showing the cell.


HEADER_BYTES = 1 << 20
FOREIGN_MAGIC = {
    b"PAR1": "Parquet; give it the ending .parquet",
    b"PK\x03\x04": "a spreadsheet or archive; save the table as CSV",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
}
SEPARATOR_NAMES = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}


def read_csv(path: Path, columns: list[str] | None, *, separator: str, option: str = "--separator") -> pl.DataFrame:
    """The columns asked for, in that order, every cell as the text that stands there (``None`` where nothing does)."""
    content = _read_content(path)
    header = _read_header(path, content, separator)
    if columns is None or not set(columns) <= set(header):
        _check_separator(path, content, columns, separator, option)
    places = column_positions(path, header, columns)
    frame = _parse(path, content, separator)
    if frame.width != len(header):
        raise FileError(f"{path}: the header cannot be split into columns; check its quotes")
    _refuse_short_rows(path, content, separator, frame, header)
    if frame.is_empty():
        raise InputError(f"{path} has a header but no rows; at least one record is needed")
    return frame[:, places]


def header_widths(path: Path) -> dict[str, int]:
    """Into how many columns each common separator splits the header."""
    content = _read_content(path)
    return {separator: len(_read_header(path, content, separator)) for separator in SEPARATOR_NAMES}


def _read_content(path: Path) -> bytes:
    content = read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileError(f"{path} is cut off or damaged and cannot be unpacked; copy it again") from error
    if not content.strip():
        raise FileError(f"{path} is empty; it needs a header line and at least one row")
    for magic, kind in FOREIGN_MAGIC.items():
        if content.startswith(magic):
            raise FileError(f"{path} is not a UTF-8 text table; it looks like {kind}")
    if b"\0" in content[:HEADER_BYTES]:  # UTF-16 without its mark has one beside every plain letter
        raise FileError(f"{path} holds zero bytes, which no text has; it may be UTF-16: save it as UTF-8")
    return content


def _read_header(path: Path, content: bytes, separator: str) -> list[str]:
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
    header = _read_header(path, content, separator)
    for other, name in SEPARATOR_NAMES.items():
        split = [] if other == separator else _read_header(path, content, other)
        if len(split) > 1 and (len(header) == 1 or (columns and set(columns) <= set(split))):
            here = SEPARATOR_NAMES.get(separator, repr(separator))
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
        raise FileError(f"{path}: {describe_csv_fault(content, separator)}") from None
    filled = (~_blank_rows(frame)).arg_true()
    return frame.head(int(filled[-1]) + 1 if len(filled) else 0)


def _refuse_short_rows(path: Path, content: bytes, separator: str, frame: pl.DataFrame, header: list[str]) -> None:
    """Polars fills them up in silence; they are looked for only where a last cell is missing."""
    width = max((place for place, name in enumerate(header, 1) if name), default=0)
    ends_early = frame.to_series(width - 1).is_null() & ~_blank_rows(frame)
    said = describe_short_row(content, separator, width, set(ends_early.arg_true())) if ends_early.any() else ""
    if said:
        raise FileError(f"{path}: {said}")


def _blank_rows(frame: pl.DataFrame) -> pl.Series:
    return frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
