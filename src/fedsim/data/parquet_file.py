"""A Parquet file as a frame."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from polars.exceptions import PanicException, PolarsError

from fedsim.data.header import choose
from fedsim.errors import FileError, InputError

MAGIC = b"PAR1"


def read_parquet(path: Path, columns: list[str] | None) -> pl.DataFrame:
    """The columns asked for, in that order."""
    _check_frame(path)
    try:
        header = list(pl.read_parquet_schema(path))
        wanted = [header[place] for place in choose(path, header, columns)]
        frame = pl.read_parquet(path, columns=wanted).select(wanted)
    except (PolarsError, PanicException, OSError):
        # From None: the reader's own text may quote cells, and a traceback would show it.
        raise FileError(f"{path} is damaged and cannot be read as Parquet; write it again") from None
    if frame.is_empty():
        raise InputError(f"{path} has columns but no rows; at least one record is needed")
    return frame


def _check_frame(path: Path) -> None:
    """Parquet begins and ends with the same four bytes, so a cut file shows at once."""
    with path.open("rb") as file:
        start = file.read(4)
        size = file.seek(0, 2)
        file.seek(max(0, size - 4))
        end = file.read(4)
    if size == 0:
        raise FileError(f"{path} is empty; write it again")
    if start != MAGIC:
        raise FileError(f"{path} is not a Parquet file; a text table needs a name ending in .csv or .tsv")
    if size < 12 or end != MAGIC:
        raise FileError(f"{path} is cut off: its end is missing; copy or write it again")
