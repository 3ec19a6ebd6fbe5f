"""An experiment's tables as plain arrays: linked, split, prepared - ready for a machine with torch and numpy alone."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.linkage.whole_file import whole_file
from fedsim.types import Split

Parts = dict[str, NDArray[Any]]
PLAIN = ("place", "list_of", "partner", "similarity", "labels")


@dataclass(frozen=True, eq=False)
class Arrays:
    """Everything one split of one experiment trains on.

    ``primary``, ``secondary`` and ``place`` (the primary's own identifiers, where they are numbers) hold the parts of
    prepared features by name; ``partner`` and ``similarity`` have one row per distinct identifier of the primary, and
    ``list_of`` says which of these lists is a record's.
    """

    primary: Parts
    secondary: Parts
    place: NDArray[Any]
    list_of: NDArray[Any]
    partner: NDArray[Any]
    similarity: NDArray[Any]
    labels: NDArray[Any]
    split: Split
    about: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write one compressed file, whole or not at all."""
        flat = {f"primary.{name}": part for name, part in self.primary.items()}
        flat |= {f"secondary.{name}": part for name, part in self.secondary.items()}
        flat |= {name: getattr(self, name) for name in PLAIN}
        flat |= {f"split.{name}": getattr(self.split, name) for name in ("train", "validation", "test")}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, about=np.array(json.dumps(self.about)), **flat)  # type: ignore[arg-type]
        with whole_file(path) as part:
            part.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Arrays:
        """What :meth:`save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            flat = {name: file[name] for name in file.files}
        parts = {
            party: {name.removeprefix(f"{party}."): part for name, part in flat.items() if name.startswith(f"{party}.")}
            for party in ("primary", "secondary", "split")
        }
        plain = {name: flat[name] for name in PLAIN}
        return cls(
            parts["primary"],
            parts["secondary"],
            split=Split(**parts["split"]),
            about=json.loads(str(flat["about"])),
            **plain,
        )
