"""Files of links (Parquet) and of encoded tables (safetensors layout), checked by digest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from polars.exceptions import PanicException, PolarsError

from fedsim.errors import FileError
from fedsim.storage.files import atomic_write
from fedsim.types import Bits, EncodedTable, Links, Scale

# Links as Parquet files: one row per primary record, a list of K per column, all else in the file's metadata


LINKS_FORMAT = "fedsim links 1"
LIST_COLUMNS = {"partner": pl.Int64, "distance": pl.Float64, "similarity": pl.Float64}


def save_links(links: Links, path: str | Path) -> None:
    """Write the links; the file appears whole or not at all, and :func:`load_links` gives them back bit for bit."""
    about = {
        "scale": [links.scale.mean.hex(), links.scale.deviation.hex()],
        "sigma": float(links.sigma).hex(),
        "metric": links.metric,
        "n_candidates": links.n_candidates,
        "saturated": None if links.saturated is None else float(links.saturated).hex(),
        "plan": links.plan,
        "sha256": _links_digest(links),
    }
    columns: dict[str, Any] = {
        name: pl.Series(name, getattr(links, name), dtype=pl.Array(kind, links.k))
        for name, kind in LIST_COLUMNS.items()
    }
    frame = pl.DataFrame({**columns, "next_distance": links.next_distance})
    with atomic_write(Path(path)) as part:
        try:
            frame.write_parquet(part, metadata={"fedsim": LINKS_FORMAT, "links": json.dumps(about)})
        except PolarsError as error:
            raise FileError(f"cannot write {path}: {type(error).__name__}; check folder and space") from error


def load_links(path: str | Path) -> Links:
    """Links written by :func:`save_links`."""
    path = Path(path)
    if not path.is_file():
        raise FileError(f"there is no file {path}; give a file written by `fedsim link`")
    try:
        metadata = pl.read_parquet_metadata(path)
        if metadata.get("fedsim") != LINKS_FORMAT:
            raise FileError(f"{path} holds no links of this version of FedSim; make it again with `fedsim link`")
        about = json.loads(metadata["links"])
        links = _links_from_frame(pl.read_parquet(path), about)
    except (PolarsError, PanicException, OSError, ValueError, LookupError, TypeError) as error:
        raise FileError(f"{path} cannot be read as links ({type(error).__name__}); make it again") from None
    if _links_digest(links) != about["sha256"]:
        raise FileError(f"{path} has changed since it was written; make it again with `fedsim link`")
    return links


def _links_digest(links: Links) -> str:
    """Finds the flipped bit that a Parquet reader lets pass."""
    digest = hashlib.sha256()
    for name in (*LIST_COLUMNS, "next_distance"):
        digest.update(np.ascontiguousarray(getattr(links, name)).data)
    return digest.hexdigest()


def _links_from_frame(frame: pl.DataFrame, about: dict[str, Any]) -> Links:
    partner, distance, similarity = (np.array(frame[name].to_numpy()) for name in LIST_COLUMNS)
    return Links(
        partner=partner,
        distance=distance,
        similarity=similarity,
        scale=Scale(*(float.fromhex(number) for number in about["scale"])),
        sigma=float.fromhex(about["sigma"]),
        metric=about["metric"],
        n_candidates=about["n_candidates"],
        next_distance=np.array(frame["next_distance"].to_numpy()),
        saturated=None if about["saturated"] is None else float.fromhex(about["saturated"]),
        plan=about["plan"],
    )


# Encoded tables as files: what a party sends and the coordinator reads
#
# The layout is that of safetensors: the length of a header, the header in JSON, the packed filters. A coordinator reads
# files from parties it need not trust, so every size is checked against the file before memory is taken, and a digest
# finds the flipped bit; a Parquet reader, tried first, aborted the whole process over a single one.


ENCODED_FORMAT = "fedsim encoded table 1"
FILTERS_TENSOR = "filters"
MAX_HEADER_BYTES = 4096


def save_encoded(table: EncodedTable, path: Path | str) -> None:
    """Write an encoded table; ``path`` holds the old file or the whole new one, never a part."""
    bits = np.ascontiguousarray(table.bits)
    header = json.dumps(_encoded_header(table)).encode()
    # The standard aligns the data to eight bytes with spaces.
    header += b" " * (-len(header) % 8)
    with atomic_write(Path(path)) as part, part.open("wb") as file:
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
    table = None if bits is None else _table_if_valid(bits, header)
    if table is None:
        raise FileError(f"{path} is cut short or damaged; copy it anew from the party that encoded it")
    return table


def _encoded_header(table: EncodedTable) -> dict[str, Any]:
    metadata = {
        "format": ENCODED_FORMAT,
        "n_bits": str(table.n_bits),
        "fingerprint": table.fingerprint,
        "sha256": encoded_table_digest(table),
    }
    shape = [len(table), table.bits.shape[1]]
    tensor = {"dtype": "U8", "shape": shape, "data_offsets": [0, shape[0] * shape[1]]}
    return {"__metadata__": metadata, FILTERS_TENSOR: tensor}


def _read_header(file: BinaryIO) -> dict[str, Any] | None:
    """The header, if this is one of ours."""
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        return None
    try:
        header = json.loads(file.read(length))
        return header if header["__metadata__"]["format"] == ENCODED_FORMAT else None
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _read_bits(file: BinaryIO, header: dict[str, Any], n_bytes: int) -> Bits | None:
    """The filters, if the header speaks the truth about the ``n_bytes`` that follow it."""
    try:
        n_rows, width = (int(size) for size in header[FILTERS_TENSOR]["shape"])
        n_bits = int(header["__metadata__"]["n_bits"])
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    if n_rows < 0 or n_bits < 1 or width != -(-n_bits // 8) or n_rows * width != n_bytes:
        return None
    return np.frombuffer(file.read(n_bytes), dtype=np.uint8).reshape(n_rows, width)


def _table_if_valid(bits: Bits, header: dict[str, Any]) -> EncodedTable | None:
    """The table, if digest and spare bits are as they should be."""
    metadata = header["__metadata__"]
    table = EncodedTable(bits=bits, n_bits=int(metadata["n_bits"]), fingerprint=str(metadata.get("fingerprint")))
    spare = (1 << (-table.n_bits % 8)) - 1
    whole = header == _encoded_header(table) and not (bits[:, -1] & spare).any()
    return table if whole else None


def encoded_table_digest(table: EncodedTable) -> str:
    """SHA-256 over all that an encoded table is."""
    digest = hashlib.sha256(f"{ENCODED_FORMAT}|{table.n_bits}|{table.fingerprint}|{len(table)}|".encode())
    digest.update(np.ascontiguousarray(table.bits).data)
    return digest.hexdigest()
