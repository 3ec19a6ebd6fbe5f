"""Store one train/validation/test split in a file, to train on another machine; requires only torch and NumPy."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.contribution.rungs import LINK_ARRAYS, LinkedSecondary, NamedArrays, SplitArrays
from fedsim.storage.files import atomic_write
from fedsim.types import Features, Split


def save_arrays(arrays: SplitArrays, path: Path) -> None:
    """Write one compressed file atomically."""
    buffer, names = io.BytesIO(), json.dumps([linked.name for linked in arrays.secondaries])
    plain: dict[str, Any] = {"about": np.array(json.dumps(arrays.about)), "names": np.array(names), **arrays.named()}
    np.savez_compressed(buffer, **plain)
    with atomic_write(path) as part:
        part.write_bytes(buffer.getvalue())


def load_arrays(path: Path) -> SplitArrays:
    """Read arrays written by :func:`save_arrays`."""
    with np.load(path, allow_pickle=False) as file:
        flat = {name: file[name] for name in file.files}
    secondaries = tuple(
        LinkedSecondary(
            _load_features(flat, f"secondary{place}"),
            **{part: flat[f"secondary{place}.{part}"] for part in LINK_ARRAYS},
            name=name,
            match=flat.get(f"secondary{place}.match"),
        )
        for place, name in enumerate(json.loads(str(flat["names"])))
    )
    return SplitArrays(
        _load_features(flat, "primary"),
        _load_features(flat, "own"),
        secondaries,
        flat["labels"],
        flat["groups"],
        Split(*(flat[f"split.{part}"] for part in ("train", "validation", "test"))),
        json.loads(str(flat["about"])),
    )


def _load_features(flat: NamedArrays, party: str) -> Features:
    return Features(
        numbers=flat[f"{party}.numbers"],
        codes=flat[f"{party}.codes"].astype(np.int64),
        cardinalities=tuple(flat[f"{party}.cardinalities"].tolist()),
        spread=tuple(flat[f"{party}.spread"].tolist()),
        periodic=tuple(flat.get(f"{party}.periodic", np.zeros(0, np.int64)).tolist()),
    )
