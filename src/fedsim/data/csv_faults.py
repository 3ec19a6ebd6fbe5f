"""Where a CSV text breaks the rules, in words, without its content."""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterator
from contextlib import suppress

QUOTES = "has a quote that is not closed properly; put the cell in quotes and double the quotes inside it"


def fault(content: bytes, separator: str) -> str:
    """The first fault of a text that the fast reader refused.

    >>> fault(b"id,name\\n1,a\\n2,b,c\\n", ",")
    'row 2 has 3 cells, but the header has 2; put cells with a separator in quotes'
    """
    width = row = 0
    try:
        for row, (raw, cells) in enumerate(_rows(content, separator)):
            width = width or len(cells)
            said = _row_fault(raw, cells, width)
            if said:
                return f"row {row} {said}"
    except csv.Error:
        return f"row {row + 1} {QUOTES}"
    return "it cannot be read as a table; look for quotes in the middle of a cell"


def short_row(content: bytes, separator: str, width: int, places: Container[int]) -> str:
    """The first row at these places (from 0) that has too few cells; nothing where none has.

    >>> short_row(b"id,name\\n1,a\\n2\\n", ",", 2, {1})
    'row 2 has 1 cell, but the header has 2; it may be cut off: copy the file again, or add a separator for each gap'
    """
    with suppress(csv.Error):  # a cell too long for this reader, and none too few for the fast one
        rows = csv.reader(io.StringIO(_text(content), newline=""), delimiter=separator)
        next(rows)
        for place, cells in enumerate(rows):
            if 0 < len(cells) < width and place in places:
                seen = f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'}"
                way_out = "it may be cut off: copy the file again, or add a separator for each gap"
                return f"row {place + 1} has {seen}, but the header has {width}; {way_out}"
    return ""


def _text(content: bytes) -> str:
    # Latin-1 maps every byte to one character, so rows can be counted before we know which one is not UTF-8.
    return content.removeprefix(b"\xef\xbb\xbf").decode("latin-1").lstrip("\r\n")


def _rows(content: bytes, separator: str) -> Iterator[tuple[str, list[str]]]:
    """Every row as it stands in the file and as cells; the header is row 0."""
    text = _text(content)
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
    if any(_escaped(cell) not in raw for cell in cells if '"' in cell):
        return QUOTES
    return ""


def _escaped(cell: str) -> str:
    doubled = cell.replace('"', '""')
    return f'"{doubled}"'


def _is_utf8(raw: str) -> bool:
    try:
        raw.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
