"""Read a table from a CSV, TSV or Parquet file, a database or an in-memory object into a polars frame.

Errors name the file, column and data row (the first row below the header is row 1), never the contents of a cell.
"""

import csv
import gzip
import hashlib
import io
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from fedsim.cells import is_missing, rewrite_cells, to_series
from fedsim.data.column_names import column_positions
from fedsim.data.sql import SqlTable, TableSource, parse_source
from fedsim.errors import FileError, InputError, SettingError, replace_unprintable
from fedsim.storage.files import check_readable, read_bytes

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
SEPARATOR_NAMES = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}
PARQUET_SUFFIXES = (".parquet", ".pq")
PARQUET_MAGIC = b"PAR1"
HEADER_BYTES = 1 << 20
# Limits against tables crafted to exhaust memory; legitimate tables stay far below them.
MAX_COLUMNS = 10_000
MAX_LINE_BYTES = 16 << 20
MAX_CELL_BYTES = 1 << 20
MAX_EXPANSION = 100  # times the size of a compressed file, beyond what small files may take
FREE_BYTES = 256 << 20
CELL_BYTES = 16  # of a cell in memory, about
ROWS_AT_ONCE = 1 << 16
FOREIGN_EXTENSIONS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers"), "a spreadsheet"),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), "an Arrow file"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "JSON"),
    **dict.fromkeys((".sas7bdat", ".xpt", ".sav", ".dta", ".rds", ".rdata"), "a file of a statistics package"),
    **dict.fromkeys((".pkl", ".pickle"), "a pickle, which can run code when it is opened"),
    **dict.fromkeys((".h5", ".hdf5", ".npz", ".npy", ".avro", ".orc"), "a binary format"),
    **dict.fromkeys((".zip", ".7z", ".tar"), "an archive"),
}
FOREIGN_MAGIC = {
    PARQUET_MAGIC: "Parquet; give it the extension .parquet",
    b"PK\x03\x04": "a spreadsheet or archive; export the table as CSV or Parquet",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
}
QUOTE_FAULT = "has a quote that is not closed properly; put the cell in quotes and double the quotes inside it"


def read_table(
    source: TableSource | str,
    columns: list[str] | None = None,
    *,
    separator: str | None = None,
    option: str = "--separator",
    formats: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """Read a table from a file or a database.

    Parameters
    ----------
    source
        A path, a database table, or a string for either: ``flats.csv``, ``sqlite:///flats.db#flats``.
    columns
        The columns to read, in this order; all of them by default.
    separator
        The separator between the cells of a text file; derived from the file extension by default.
    option
        The option that sets the separator, as named in error messages.
    formats
        How numbers or dates of some columns are written.

    Returns
    -------
    The columns. Cells of a CSV file are text, exactly as in the file, so that ``007`` stays ``007``, but for columns
    with a format; :func:`fedsim.cells.read_cells` turns them into numbers or dates.
    """
    frame = _read_source(parse_source(source) if isinstance(source, str) else source, columns, separator, option)
    return apply_formats(frame, formats or {})


def apply_formats(frame: pl.DataFrame, formats: Mapping[str, str]) -> pl.DataFrame:
    """Return a table with its numbers and dates as :func:`fedsim.cells.rewrite_cells` writes them."""
    return frame.with_columns(rewrite_cells(frame[name], formats[name]) for name in frame.columns if name in formats)


def _read_source(path: TableSource, columns: list[str] | None, separator: str | None, option: str) -> pl.DataFrame:
    if isinstance(path, SqlTable):
        return path.read(columns)
    check_readable(path)
    if not path.is_file():  # a device or pipe may never end
        raise FileError(f"{path} is not a regular file; copy the table into one", code="not-a-regular-file")
    if path.name.lower().endswith(PARQUET_SUFFIXES):
        frame = _read_parquet(path, columns)
    else:
        frame = _read_csv(path, columns, _resolve_separator(path, separator), option)
    _check_cells(path, frame)
    return frame


def detect_separator(path: Path) -> str | None:
    """Return the separator of a text table if it differs from the one implied by the file extension."""
    check_readable(path)
    if path.name.lower().endswith(PARQUET_SUFFIXES):
        return None
    content, usual = _read_content(path), _resolve_separator(path, None)
    widths = {separator: len(_read_header(path, content, separator)) for separator in SEPARATOR_NAMES}
    widest = max(widths, key=lambda separator: widths[separator])
    return widest if widths[usual] == 1 < widths[widest] else None


def source_files(sources: Iterable[TableSource]) -> list[Path]:
    """Return the files that the tables are read from; a table on a database server has none."""
    files = [source.file if isinstance(source, SqlTable) else source for source in sources]
    return [path for path in files if path]


def infer_numbers(table: pl.DataFrame, missing: Sequence[str] = ()) -> pl.DataFrame:
    """Convert text columns that hold only numbers; blanks and the words in ``missing`` become null.

    >>> infer_numbers(pl.DataFrame({"area": ["40", "NA"], "town": ["a", "1"]}), ["NA"]).dtypes
    [Float64, String]
    """
    columns = []
    for column in table.iter_columns():
        text = column if column.dtype != pl.String else column.replace([*missing, ""], None)
        numbers = text.cast(pl.Float64, strict=False) if text.dtype == pl.String else text
        columns.append(numbers if numbers.null_count() == text.null_count() else text)
    return pl.DataFrame(columns)


def _resolve_separator(path: Path, given: str | None) -> str:
    if given is None:
        extension = next((suffix for suffix in SEPARATORS if path.name.lower().endswith(suffix)), None)
        if extension is None:
            kind = FOREIGN_EXTENSIONS.get(path.suffix.lower())
            fault = f"unrecognised file extension '{path.suffix}'; use one of "
            fault += ", ".join([*SEPARATORS, *PARQUET_SUFFIXES])
            if kind:
                fault = f"this is {kind}; export the table as CSV or Parquet"
            raise FileError(f"{path}: {fault}", code="unknown-extension", extension=path.suffix, kind=kind)
        return SEPARATORS[extension]
    separator = "\t" if given in ("\\t", "tab") else given
    if len(separator.encode()) != 1 or separator in '"\r\n':
        message = f"separator {given!r} is not one plain character; use ',', ';', '|' or tab"
        raise SettingError(message, code="bad-separator")
    return separator


def _check_columns(path: Path, n_columns: int) -> None:
    if n_columns > MAX_COLUMNS:
        message = f"{path} has {n_columns:,} columns, and the limit is {MAX_COLUMNS:,}; keep those that are used"
        raise InputError(message, code="too-many-columns", limit=MAX_COLUMNS)


def _check_cells(path: Path, frame: pl.DataFrame) -> None:
    """Refuse texts too long for an identifier or category: every later step would copy them."""
    for name in (name for name, dtype in frame.schema.items() if dtype == pl.String):
        sizes = frame[name].str.len_bytes()
        too_long = (sizes > MAX_CELL_BYTES).arg_true()
        if len(too_long):
            row = int(too_long[0]) + 1
            message = f"{path}: column '{name}' has a cell of {sizes[row - 1]:,} bytes in row {row}"
            rule = f"the limit is {MAX_CELL_BYTES:,}; shorten or leave out the column"
            raise InputError(f"{message}; {rule}", code="cell-too-long", column=name, row=row, limit=MAX_CELL_BYTES)


def _check_expansion(path: Path, needed: int) -> None:
    """Refuse a small file that would expand to a lot of memory."""
    limit = FREE_BYTES + MAX_EXPANSION * path.stat().st_size
    if needed > limit:
        message = f"{path} would take at least {needed:,} bytes of memory, and for its size the limit is {limit:,}"
        raise FileError(
            f"{message}; check where it comes from, or write it again as CSV", code="too-large", limit=limit
        )


# Parquet


def _read_parquet(path: Path, columns: list[str] | None) -> pl.DataFrame:
    # Parquet begins and ends with the same four bytes, so a truncated file is detected at once.
    with path.open("rb") as file:
        start, size = file.read(4), file.seek(0, 2)
        file.seek(max(0, size - 4))
        end = file.read(4)
    if size == 0:
        raise FileError(f"{path} is empty; write it again", code="empty-file")
    if start != PARQUET_MAGIC:
        message = f"{path} is not a Parquet file; a text table needs the extension .csv or .tsv"
        raise FileError(message, code="wrong-format")
    if size < 12 or end != PARQUET_MAGIC:
        raise FileError(f"{path} is truncated; copy or write it again", code="damaged-file")
    try:
        stored = list(pl.read_parquet_schema(path))
        _check_columns(path, len(stored))
        header = list(map(replace_unprintable, stored))
        wanted = [stored[place] for place in column_positions(path, header, columns)]
        n_rows = pl.scan_parquet(path).select(pl.len()).collect().item()  # from the footer
        _check_expansion(path, n_rows * len(wanted) * CELL_BYTES)
        frame = pl.read_parquet(path, columns=wanted).select(wanted).rename(replace_unprintable)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        # From None: the reader's own message may quote cells, and a traceback would show it.
        message = f"{path} is damaged and cannot be read as Parquet; write it again"
        raise FileError(message, code="damaged-file") from None
    if frame.is_empty():
        raise InputError(f"{path} has columns but no rows; at least one record is needed", code="no-records")
    return frame


# CSV and TSV, plain or gzipped, as a frame of text
#
# Polars reads the file. What it accepts silently is checked here (repeated names, short rows, truncated archives, old
# line ends), and what it refuses is read again, slowly, to name the row without showing the cell.


def _read_csv(path: Path, columns: list[str] | None, separator: str, option: str) -> pl.DataFrame:
    content = _read_content(path)
    header = _read_header(path, content, separator)
    if columns is None or not set(columns) <= set(header):
        _check_separator(path, content, columns, separator, option)
    places = column_positions(path, header, columns)
    try:
        # Read all columns even if few are needed: polars detects surplus cells only when it reads the whole row.
        frame = pl.read_csv(content, separator=separator, infer_schema=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        # From None: the reader's own message quotes cells, and a traceback would show it.
        code, row, fault = find_csv_fault(content, separator)
        raise FileError(f"{path}: {fault}", code=code, row=row) from None
    blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
    filled = (~blank).arg_true()
    n_rows = int(filled[-1]) + 1 if len(filled) else 0  # blank lines at the end are not records
    frame, blank = frame.head(n_rows), blank.head(n_rows)
    if frame.width != len(header):
        raise FileError(f"{path}: the header cannot be split into columns; check its quotes", code="bad-header")
    # Polars pads short rows; they can only be where the last cell is missing.
    width = max((place for place, name in enumerate(header, 1) if name), default=0)
    ends_early = frame.to_series(width - 1).is_null() & ~blank
    if ends_early.any() and (short := find_short_row(content, separator, width, set(ends_early.arg_true()))):
        row, count, fault = short
        raise FileError(f"{path}: {fault}", code="short-row", row=row, count=count)
    if frame.is_empty():
        raise InputError(f"{path} has a header but no rows; at least one record is needed", code="no-records")
    return frame[:, places].rename(replace_unprintable)


def _read_content(path: Path) -> bytes:
    content = read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        limit = FREE_BYTES + MAX_EXPANSION * len(content)
        try:
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(limit + 1)
            _check_expansion(path, len(content))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            message = f"{path} is truncated or damaged and cannot be unpacked; copy it again"
            raise FileError(message, code="damaged-file") from error
    if not content.strip():
        raise FileError(f"{path} is empty; it needs a header line and at least one row", code="empty-file")
    for magic, kind in FOREIGN_MAGIC.items():
        if content.startswith(magic):
            raise FileError(f"{path} is not a UTF-8 text table; it looks like {kind}", code="wrong-format", found=kind)
    start = 0
    while len(content) - start > MAX_LINE_BYTES:
        end = content.rfind(b"\n", start, start + MAX_LINE_BYTES)
        if end < 0:
            message = f"{path} has a line of more than {MAX_LINE_BYTES:,} bytes; check its line ends and separators"
            raise FileError(message, code="line-too-long", limit=MAX_LINE_BYTES)
        start = end + 1
    if b"\0" in content[:HEADER_BYTES]:  # UTF-16 without its mark has one beside every plain letter
        message = f"{path} contains zero bytes, which text files never do; it may be UTF-16: save it as UTF-8"
        raise FileError(message, code="wrong-format", found="UTF-16")
    return content


def _read_header(path: Path, content: bytes, separator: str) -> list[str]:
    start = content[:HEADER_BYTES]
    if b"\r" in start and b"\n" not in start:
        message = f"{path} has classic Mac OS line endings; save it with Unix or Windows line endings"
        raise FileError(message, code="line-ends")
    # The limit may cut a character in two at the very end, far beyond the header.
    text = start.decode("utf-8-sig", errors="replace")
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        header = [replace_unprintable(name) for name in next(line for line in lines if line)]
    except (csv.Error, StopIteration) as error:
        raise FileError(f"{path}: the header line cannot be read; check its quotes", code="bad-header") from error
    _check_columns(path, len(header))
    if any("\ufffd" in name for name in header):
        raise FileError(
            f"{path}: the header is not UTF-8 text; save the file as UTF-8 (in Excel: CSV UTF-8)", code="not-utf8"
        )
    return header


def _check_separator(path: Path, content: bytes, columns: list[str] | None, separator: str, option: str) -> None:
    """Report the separator that the file seems to use if the given one does not split the table."""
    header = _read_header(path, content, separator)
    names = {**SEPARATOR_NAMES, **{mark: f"'{mark}'" for mark in _repeated_marks(content)}}
    for other, name in names.items():
        split = [] if other == separator else _read_header(path, content, other)
        if len(split) > 1 and (len(header) == 1 or (columns and set(columns) <= set(split))):
            used = SEPARATOR_NAMES.get(separator, repr(separator))
            message = f"{path} has {len(header)} column(s) when split at {used}, but {len(split)} at {name}"
            raise InputError(f"{message}; use {option} {name}", code="wrong-separator", separator=other)


def _repeated_marks(content: bytes) -> Iterator[str]:
    """Yield the characters that are as frequent in the header as in the line below it: the possible separators."""
    head, *below = _decode_latin1(content[:HEADER_BYTES]).splitlines()[:2] or [""]
    for mark in dict.fromkeys(head):
        plain = mark.isascii() and mark.isprintable() and not mark.isalnum() and mark not in "\" '._-"
        if plain and below and head.count(mark) == below[0].count(mark):
            yield mark


def find_csv_fault(content: bytes, separator: str) -> tuple[str, int, str]:
    """Return the code, row and description of the first fault in a text that polars rejects.

    >>> find_csv_fault(b"id,name\\n1,a\\n2,b,c\\n", ",")
    ('long-row', 2, 'row 2 has 3 cells, but the header has 2; put cells with a separator in quotes')
    """
    width = row = 0
    try:
        for row, (raw, cells) in enumerate(_raw_rows(content, separator)):
            width = width or len(cells)
            raw.encode("latin-1").decode("utf-8")
            escaped = ['"' + cell.replace('"', '""') + '"' for cell in cells if '"' in cell]
            if len(cells) > width:
                fault = f"has {len(cells)} cells, but the header has {width}; put cells with a separator in quotes"
                return "long-row", row, f"row {row} {fault}"
            if any(cell not in raw for cell in escaped):
                return "stray-quote", row, f"row {row} {QUOTE_FAULT}"
    except UnicodeDecodeError:
        return "not-utf8", row, f"row {row} is not UTF-8 text; save the file as UTF-8 (in Excel: CSV UTF-8)"
    except csv.Error:
        return "stray-quote", row + 1, f"row {row + 1} {QUOTE_FAULT}"
    return "bad-csv", row, "it cannot be read as a table; look for quotes in the middle of a cell"


def find_short_row(content: bytes, separator: str, width: int, places: Container[int]) -> tuple[int, int, str] | None:
    """Return the number, cell count and description of the first of these rows (counted from 0) with too few cells.

    >>> find_short_row(b"id,name\\n1,a\\n2\\n", ",", 2, {1})[:2]
    (2, 1)
    """
    with suppress(csv.Error):  # a cell may be too long for this reader, although polars accepts it
        rows = csv.reader(io.StringIO(_decode_latin1(content), newline=""), delimiter=separator)
        next(rows)
        for place, cells in enumerate(rows):
            if 0 < len(cells) < width and place in places:
                count = f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'}"
                way_out = "it may be cut off: copy the file again, or add a separator for each gap"
                fault = f"row {place + 1} has {count}, but the header has {width}; {way_out}"
                return place + 1, len(cells), fault
    return None


def _decode_latin1(content: bytes) -> str:
    # Latin-1 maps every byte to one character, so rows can be counted before we know which one is not UTF-8.
    return content.removeprefix(b"\xef\xbb\xbf").decode("latin-1").lstrip("\r\n")


def _raw_rows(content: bytes, separator: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every row both as raw text and as cells; the header is row 0."""
    text = _decode_latin1(content)
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            taken.append(line)
            yield line

    for cells in csv.reader(lines(), delimiter=separator, strict=True):
        yield "".join(taken), cells
        taken.clear()


# Tables in memory: pandas, polars, Arrow, a NumPy array, a list of rows


def to_polars(table: Any, *, party: str) -> pl.DataFrame:
    """Convert a table to polars, keeping column order and names (as text); array columns become x0, x1, ...

    >>> to_polars(np.array([[1.0, 2.0]]), party="primary").columns
    ['x0', 'x1']
    """
    if isinstance(table, pl.DataFrame):
        return table
    try:
        frame = nw.from_native(table, pass_through=True, eager_only=True)
        if isinstance(frame, nw.DataFrame):
            columns = zip(frame.columns, frame.iter_columns(), strict=True)
            return pl.DataFrame([_typed_series(str(name), column, party) for name, column in columns])
    except (nw.exceptions.DuplicateError, pl.exceptions.DuplicateError):
        names = [str(name) for name in getattr(table, "column_names", getattr(table, "columns", ()))]
        twice = next((name for name in names if names.count(name) > 1), "")
        message = f"the {party} table has two columns named '{twice}'; rename one of them"
        raise InputError(message, code="duplicate-column", party=party, column=twice) from None
    array = np.asarray(table) if isinstance(table, list | tuple | np.ndarray) else None
    if array is None or array.ndim != 2:
        found = f"a {type(table).__name__}" if array is None else f"an array of {array.ndim} dimension(s)"
        way_out = "give a pandas, polars or Arrow table, or an array with one row per record"
        raise InputError(f"the {party} table is {found}; {way_out}", code="unknown-table-type")
    return pl.DataFrame([_typed_series(f"x{place}", column, party) for place, column in enumerate(array.T)])


def _typed_series(name: str, column: Any, party: str) -> pl.Series:
    """Return a column with values of a single type; numbers of several types become floats."""
    series = to_series(column, name)
    if series.dtype != pl.Object:
        return series
    values = [None if is_missing(value) else value for value in series.to_list()]
    if isinstance(column, nw.Series) and isinstance(column.dtype, nw.Categorical | nw.Enum):
        values = [value if value is None else str(value) for value in values]
    types = {type(value) for value in values} - {type(None)}
    try:
        if len(types) > 1 and all(issubclass(kind, int | float | np.number) and kind is not bool for kind in types):
            return pl.Series(name, [None if value is None else float(value) for value in values], pl.Float64)
        series = pl.Series(name, values)
    except (pl.exceptions.PolarsError, TypeError, OverflowError):
        series = pl.Series(name, values, pl.Object)
    if series.dtype == pl.Object:
        found = " and ".join(sorted(kind.__name__ for kind in types))
        message = f"{party}: column '{name}' holds {found} values; give it numbers, text, true/false or dates"
        raise InputError(message, code="wrong-type", column=name)
    return series


def frame_digest(frame: pl.DataFrame) -> str:
    """Return a digest of all cells of a table; it never leaves the party's folder."""

    def parts() -> Iterator[bytes]:  # a part at a time, because the text may take more memory than the table
        for start in range(0, max(1, len(frame)), ROWS_AT_ONCE):
            part = frame[start : start + ROWS_AT_ONCE].select(pl.all().cast(pl.String))
            yield part.write_csv(include_header=not start).encode()

    digest = hashlib.sha256(f"uint8({sum(map(len, parts()))},)".encode())  # as arrays_digest of one array of bytes
    for part in parts():
        digest.update(part)
    return digest.hexdigest()
