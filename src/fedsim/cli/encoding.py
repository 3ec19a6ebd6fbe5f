"""The work behind ``fedsim encode``: read, encode, write."""

from __future__ import annotations

import json
from pathlib import Path

from fedsim.data.files import check_outputs, check_readable, read_bytes
from fedsim.data.readers import files_among, read_table
from fedsim.data.sql_source import Source
from fedsim.errors import FileError
from fedsim.linkage.encoded_file import save_encoded
from fedsim.linkage.encoding import Key, Schema
from fedsim.party.own_table import encode_table
from fedsim.types import EncodedTable


def run_encode(table: Source, schema: Path, key: Path, out: Path, separator: str | None) -> EncodedTable:
    """Write the filters of a table and hand them back."""
    check_outputs([out], [*files_among([table]), schema, key])
    agreed = read_schema(schema)
    frame = read_table(table, list(agreed.columns), separator=separator)
    encoded = encode_table(agreed, frame, Key.read(key), str(table))
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
