"""Files of links (Parquet) and encoded tables (safetensors), verified by digest."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.errors import FileError
from fedsim.storage.files import atomic_write
from fedsim.storage.tensor_file import damaged_file, read_safetensors, write_safetensors
from fedsim.types import ENCODED_FORMAT, EncodedTable, LinkageResult, Scale

LINKS_FORMAT, WIDE_LINKS_FORMAT = "fedsim links 2", "fedsim links 1"  # 1 had one row per record, with lists
LINK_COLUMNS = ("partner", "distance", "similarity")


def save_links(
    links: LinkageResult,
    path: str | Path,
    primary_ids: Any = None,
    secondary_ids: Any = None,
) -> None:
    """Write links to a Parquet file in long form: one row per record and partner, nearest first.

    Parameters
    ----------
    links
        The result of :func:`fedsim.linkage.link`; :func:`load_links` restores it bit for bit.
    path
        The file, which is written atomically.
    primary_ids, secondary_ids
        Keys of the records for the columns ``record_id`` and ``partner_id``, as in :meth:`LinkageResult.to_polars`.
    """
    about = {
        "k": links.k,
        "scale": [links.scale.mean.hex(), links.scale.deviation.hex()],
        "sigma": float(links.sigma).hex(),
        "metric": links.metric,
        "n_candidates": links.n_candidates,
        "saturated": None if links.saturated is None else float(links.saturated).hex(),
        "plan": links.plan,
        "sha256": _links_digest(links),
    }
    frame = links.to_polars(primary_ids, secondary_ids).with_columns(
        next_distance=np.repeat(links.next_distance, links.k)
    )
    with atomic_write(Path(path)) as unfinished:
        try:
            frame.write_parquet(unfinished, metadata={"fedsim": LINKS_FORMAT, "links": json.dumps(about)})
        except pl.exceptions.PolarsError as error:
            message = f"cannot write {path}: {type(error).__name__}; check folder and free space"
            raise FileError(message, code="not-writable") from error


def load_links(path: str | Path) -> LinkageResult:
    """Read links from a file; raise ``FileError`` if the format is wrong or the content has changed.

    Parameters
    ----------
    path
        A file written by :func:`save_links`.
    """
    path = Path(path)
    if not path.exists():
        raise FileError(f"{path} does not exist; give a file written by `fedsim link`", code="file-not-found")
    try:
        metadata = pl.read_parquet_metadata(path)
        if metadata.get("fedsim") not in (LINKS_FORMAT, WIDE_LINKS_FORMAT):
            raise damaged_file(path, LINKS_FORMAT)
        about = json.loads(metadata["links"])
        frame = pl.read_parquet(path, columns=[*LINK_COLUMNS, "next_distance"])
        partner, distance, similarity = (np.array(frame[name].to_numpy()) for name in LINK_COLUMNS)
        next_distance = np.array(frame["next_distance"].to_numpy())
        if metadata["fedsim"] == LINKS_FORMAT:
            partner, distance, similarity = (
                values.reshape(-1, about["k"]) for values in (partner, distance, similarity)
            )
            next_distance = next_distance[:: about["k"]].copy()
        links = LinkageResult(
            partner=partner,
            distance=distance,
            similarity=similarity,
            scale=Scale(*(float.fromhex(number) for number in about["scale"])),
            sigma=float.fromhex(about["sigma"]),
            metric=about["metric"],
            n_candidates=about["n_candidates"],
            next_distance=next_distance,
            saturated=None if about["saturated"] is None else float.fromhex(about["saturated"]),
            plan=about["plan"],
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, LookupError, TypeError):
        raise damaged_file(path, LINKS_FORMAT) from None
    if _links_digest(links) != about["sha256"]:
        raise damaged_file(path, LINKS_FORMAT)
    return links


def _links_digest(links: LinkageResult) -> str:
    """Return a digest that detects flipped bits, which a Parquet reader may not notice."""
    digest = hashlib.sha256()
    for name in (*LINK_COLUMNS, "next_distance"):
        digest.update(np.ascontiguousarray(getattr(links, name)).data)
    return digest.hexdigest()


def save_encoded(table: EncodedTable, path: Path | str) -> None:
    """Write an encoded table to a safetensors file, atomically.

    Parameters
    ----------
    table
        The result of :meth:`fedsim.linkage.encoding.Schema.encode`.
    path
        The file, which may then be sent to the coordinator.
    """
    # Not Parquet: a coordinator reads files of other parties, and a flipped bit can abort polars' reader.
    write_safetensors(path, {"filters": table.bits}, _encoded_metadata(table))


def load_encoded(path: Path | str) -> EncodedTable:
    """Read a table written by :func:`save_encoded`; raise ``FileError`` for another format or changed content.

    Parameters
    ----------
    path
        The file.
    """
    metadata, tensors = read_safetensors(path, ENCODED_FORMAT)
    try:
        bits, n_bits = tensors["filters"], int(metadata["n_bits"])
        table = EncodedTable(bits, n_bits, metadata["fingerprint"])
        intact = (
            len(tensors) == 1
            and n_bits >= 1
            and bits.dtype == np.uint8
            and bits.shape == (len(bits), -(-n_bits // 8))
            and metadata == _encoded_metadata(table)
            and not (bits[:, -1] & table.spare_bits).any()
        )
    except (ValueError, TypeError, LookupError):
        intact = False
    if not intact:
        raise damaged_file(path, ENCODED_FORMAT)
    return table


def _encoded_metadata(table: EncodedTable) -> dict[str, str]:
    return {
        "format": ENCODED_FORMAT,
        "n_bits": str(table.n_bits),
        "fingerprint": table.fingerprint,
        "sha256": table.digest,
    }
