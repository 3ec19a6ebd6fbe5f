"""Read and clean public files: required columns, complete rows, one-hot columns, samples.

Errors name the file and the column, as :mod:`fedsim.data.table_reader` does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.cells import CellType, read_cells
from fedsim.data.column_names import column_positions
from fedsim.data.table_reader import read_table
from fedsim.errors import FileError, InputError
from fedsim.storage.files import check_readable


def read_with_columns(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Return the complete table of a file that must have these ``columns``; cells are text."""
    frame = read_table(path, None)
    column_positions(path, frame.columns, columns)
    return frame


def read_columns(path: Path, columns: Sequence[str], numbers: Sequence[str] = ()) -> pl.DataFrame:
    """Return these ``columns`` of a file; cells are text, or finite numbers in the columns ``numbers``."""
    return cast_to_numbers(read_with_columns(path, columns).select(columns), numbers, path)


def read_lossy_csv(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Return these ``columns`` of a CSV file of unknown encoding; non-ASCII letters may be lost, digits are not."""
    check_readable(path)
    try:
        frame = pl.read_csv(path, infer_schema=False, encoding="utf8-lossy")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        # From None: the reader's own message quotes cells.
        raise FileError(f"{path} cannot be read as a CSV table; get the file again", code="bad-csv") from None
    column_positions(path, frame.columns, columns)
    return frame


def cast_to_numbers(frame: pl.DataFrame, columns: Sequence[str], path: Path) -> pl.DataFrame:
    """Convert these columns to finite numbers, null where a cell is empty."""
    return frame.with_columns(
        read_cells(frame[name], CellType.NUMBER).require(str(path), allow_missing=True) for name in columns
    )


def drop_incomplete_rows(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Return the rows without missing cells; at least one must remain."""
    return require_rows(frame.drop_nulls(), path, "a cell in every column")


def require_rows(frame: pl.DataFrame, path: Path, rule: str) -> pl.DataFrame:
    """Return the frame, or raise an error if it has no rows."""
    if frame.is_empty():
        raise InputError(f"{path}: no row has {rule}; is this the right file?", code="no-records")
    return frame


def one_hot(frame: pl.DataFrame, prefixes: Mapping[str, str]) -> pl.DataFrame:
    """Replace columns with a 0/1 column per value except the first, in sorted order, as in the authors' encoding.

    >>> one_hot(pl.DataFrame({"town": ["b", "a", "c"]}), {"town": "t"}).to_dict(as_series=False)
    {'t_b': [1, 0, 0], 't_c': [0, 0, 1]}
    """
    for column, prefix in prefixes.items():
        levels = frame[column].unique().drop_nulls().sort()
        flags = [(frame[column] == level).cast(pl.UInt8).alias(f"{prefix}_{level}") for level in levels[1:]]
        frame = frame.drop(column).hstack(flags)
    return frame


def multi_hot(frame: pl.DataFrame, column: str, separator: str, prefix: str) -> pl.DataFrame:
    """Replace a column of lists with a 0/1 column per word.

    >>> multi_hot(pl.DataFrame({"on": ["pc;mac", "pc"]}), "on", ";", "on").to_dict(as_series=False)
    {'on_mac': [1, 0], 'on_pc': [1, 1]}
    """
    words = frame[column].str.split(separator)
    known = sorted(set(words.explode().drop_nulls()) - {""})
    held = [words.list.contains(word).cast(pl.UInt8).alias(f"{prefix}_{word}") for word in known]
    return frame.drop(column).hstack(held)


def sample_rows(frame: pl.DataFrame, count: int, rng: np.random.Generator) -> pl.DataFrame:
    """Draw ``count`` rows without replacement; return all rows if there are not more."""
    if len(frame) <= count:
        return frame
    return frame[rng.choice(len(frame), count, replace=False)]
