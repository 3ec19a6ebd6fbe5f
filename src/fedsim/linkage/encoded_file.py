"""Encoded tables as files: what a party sends and the coordinator reads.

The layout is that of safetensors: the length of a header, the header in JSON, the packed filters. A coordinator reads
files from parties it need not trust, so every size is checked against the file before memory is taken, and a digest
finds the flipped bit; a Parquet reader, tried first, aborted the whole process over a single one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedsim.errors import FileError
from fedsim.linkage.whole_file import whole_file
from fedsim.types import Bits, EncodedTable

FORMAT = "fedsim encoded table 1"
TENSOR = "filters"
MAX_HEADER_BYTES = 4096


def save_encoded(table: EncodedTable, path: Path | str) -> None:
    """Write an encoded table; ``path`` holds the old file or the whole new one, never a part."""
    bits = np.ascontiguousarray(table.bits)
    header = json.dumps(_header(table)).encode()
    # The standard aligns the data to eight bytes with spaces.
    header += b" " * (-len(header) % 8)
    with whole_file(Path(path)) as part, part.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(bits.data)


def load_encoded(path: Path | str) -> EncodedTable:
    """The table :func:`save_encoded` wrote; a ``FileError`` if the file is anything else or has changed since."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            header = _read_header(file)
            if header is None:
                raise FileError(f"{path} is no encoded table of this release; make it with `fedsim encode`")
            bits = _read_bits(file, header, path.stat().st_size - file.tell())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    table = None if bits is None else _table(bits, header)
    if table is None:
        raise FileError(f"{path} is cut short or damaged; copy it anew from the party that encoded it")
    return table


def _header(table: EncodedTable) -> dict[str, Any]:
    metadata = {
        "format": FORMAT,
        "n_bits": str(table.n_bits),
        "fingerprint": table.fingerprint,
        "sha256": table_digest(table),
    }
    shape = [len(table), table.bits.shape[1]]
    tensor = {"dtype": "U8", "shape": shape, "data_offsets": [0, shape[0] * shape[1]]}
    return {"__metadata__": metadata, TENSOR: tensor}


def _read_header(file: BinaryIO) -> dict[str, Any] | None:
    """The header, if this is one of ours."""
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        return None
    try:
        header = json.loads(file.read(length))
        return header if header["__metadata__"]["format"] == FORMAT else None
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _read_bits(file: BinaryIO, header: dict[str, Any], n_bytes: int) -> Bits | None:
    """The filters, if the header speaks the truth about the ``n_bytes`` that follow it."""
    try:
        n_rows, width = (int(size) for size in header[TENSOR]["shape"])
        n_bits = int(header["__metadata__"]["n_bits"])
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    if n_rows < 0 or n_bits < 1 or width != -(-n_bits // 8) or n_rows * width != n_bytes:
        return None
    return np.frombuffer(file.read(n_bytes), dtype=np.uint8).reshape(n_rows, width)


def _table(bits: Bits, header: dict[str, Any]) -> EncodedTable | None:
    """The table, if digest and spare bits are as they should be."""
    metadata = header["__metadata__"]
    table = EncodedTable(bits=bits, n_bits=int(metadata["n_bits"]), fingerprint=str(metadata.get("fingerprint")))
    spare = (1 << (-table.n_bits % 8)) - 1
    whole = header == _header(table) and not (bits[:, -1] & spare).any()
    return table if whole else None


def table_digest(table: EncodedTable) -> str:
    """SHA-256 over all that an encoded table is."""
    digest = hashlib.sha256(f"{FORMAT}|{table.n_bits}|{table.fingerprint}|{len(table)}|".encode())
    digest.update(np.ascontiguousarray(table.bits).data)
    return digest.hexdigest()
