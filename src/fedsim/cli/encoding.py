"""The work behind ``fedsim encode``: read, encode, write."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.data.columns import date, number, text
from fedsim.data.files import check_outputs, check_readable, read_bytes
from fedsim.data.readers import read_table
from fedsim.errors import FileError
from fedsim.linkage.encoded_file import save_encoded
from fedsim.linkage.encoding import DateFilter, Key, NumericFilter, Schema
from fedsim.types import EncodedTable


def run_encode(table: Path, schema: Path, key: Path, out: Path, separator: str | None) -> EncodedTable:
    """Write the filters of a table and hand them back."""
    check_outputs([out], [table, schema, key])
    agreed = read_schema(schema)
    secret = Key.read(key)
    columns = _columns(agreed, read_table(table, list(agreed.columns), separator=separator), str(table))
    # Noise on the bits must not be repeatable by anyone, so it has no seed to give away.
    encoded = agreed.encode(columns, secret, np.random.default_rng(), table=str(table))
    save_encoded(encoded, out)
    return encoded


def read_schema(path: Path) -> Schema:
    """The schema in a JSON file."""
    check_readable(path)
    try:
        described = json.loads(read_bytes(path))
    except json.JSONDecodeError as error:
        raise FileError(
            f"{path} is not JSON (line {error.lineno}, column {error.colno}); correct it or copy the schema again"
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"{path} is not JSON; copy the schema again") from error
    return Schema.from_dict(described)


def _columns(schema: Schema, frame: pl.DataFrame, table: str) -> dict[str, pl.Series]:
    """The columns in the type their encoding wants; a column that only salts another stays as it is."""
    readers = {NumericFilter: number, DateFilter: date}
    kinds = {field.column: readers.get(type(field.encoding), text) for field in schema.fields}
    return {name: kinds[name](frame[name], table=table) if name in kinds else frame[name] for name in schema.columns}
