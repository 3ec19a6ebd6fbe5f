"""Links as Parquet files: one row per primary record, a list of K per column, all else in the file's metadata."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.exceptions import PanicException, PolarsError

from fedsim.errors import FileError
from fedsim.linkage.whole_file import whole_file
from fedsim.types import Links, Scale

FORMAT = "fedsim links 1"
LISTS = {"partner": pl.Int64, "distance": pl.Float64, "similarity": pl.Float64}


def save_links(links: Links, path: str | Path) -> None:
    """Write the links; the file appears whole or not at all, and :func:`load_links` gives them back bit for bit."""
    about = {
        "scale": [links.scale.mean.hex(), links.scale.deviation.hex()],
        "sigma": float(links.sigma).hex(),
        "metric": links.metric,
        "n_candidates": links.n_candidates,
        "saturated": None if links.saturated is None else float(links.saturated).hex(),
        "plan": links.plan,
        "sha256": _digest(links),
    }
    columns: dict[str, Any] = {
        name: pl.Series(name, getattr(links, name), dtype=pl.Array(kind, links.k)) for name, kind in LISTS.items()
    }
    frame = pl.DataFrame({**columns, "next_distance": links.next_distance})
    with whole_file(Path(path)) as part:
        try:
            frame.write_parquet(part, metadata={"fedsim": FORMAT, "links": json.dumps(about)})
        except PolarsError as error:
            raise FileError(f"cannot write {path}: {type(error).__name__}; check folder and space") from error


def load_links(path: str | Path) -> Links:
    """Links written by :func:`save_links`."""
    path = Path(path)
    if not path.is_file():
        raise FileError(f"there is no file {path}; give a file written by `fedsim link`")
    try:
        metadata = pl.read_parquet_metadata(path)
        if metadata.get("fedsim") != FORMAT:
            raise FileError(f"{path} holds no links of this version of FedSim; make it again with `fedsim link`")
        about = json.loads(metadata["links"])
        links = _links(pl.read_parquet(path), about)
    except (PolarsError, PanicException, OSError, ValueError, LookupError, TypeError) as error:
        raise FileError(f"{path} cannot be read as links ({type(error).__name__}); make it again") from None
    if _digest(links) != about["sha256"]:
        raise FileError(f"{path} has changed since it was written; make it again with `fedsim link`")
    return links


def _digest(links: Links) -> str:
    """Finds the flipped bit that a Parquet reader lets pass."""
    digest = hashlib.sha256()
    for name in (*LISTS, "next_distance"):
        digest.update(np.ascontiguousarray(getattr(links, name)).data)
    return digest.hexdigest()


def _links(frame: pl.DataFrame, about: dict[str, Any]) -> Links:
    partner, distance, similarity = (np.array(frame[name].to_numpy()) for name in LISTS)
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
