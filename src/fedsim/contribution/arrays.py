"""One train/validation/test split of linked tables as plain NumPy arrays; needs torch and numpy only.

Letters: n primary records, L distinct lists of partners, K partners of each, m records of a secondary.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.splitnn.layers import Features
from fedsim.storage.digest import arrays_digest
from fedsim.storage.files import atomic_write
from fedsim.types import Split

AnyArray = NDArray[Any]
NamedArrays = dict[str, AnyArray]
LINK_ARRAYS = ("list_of", "partner", "similarity", "equal")


@dataclass(frozen=True, eq=False)
class LinkedSecondary:
    """A secondary: its features, the distinct lists of partners, and the list of every record.

    ``equal`` has, for every list, the row whose identifiers equal the record's, or -1.
    """

    features: Features  # (m, ...)
    list_of: AnyArray  # (n,)
    partner: AnyArray  # (L, K)
    similarity: AnyArray  # (L, K)
    equal: AnyArray  # (L,)
    name: str = "secondary"


@dataclass(frozen=True, eq=False)
class SplitArrays:
    """Everything that trainings on one split use.

    ``own`` are the primary's identifiers as features; records with equal identifiers are in the same group. ``about``
    has JSON values: name, unit, task, split and seed at least.
    """

    primary: Features
    own: Features
    secondaries: tuple[LinkedSecondary, ...]
    labels: AnyArray  # (n,)
    groups: AnyArray  # (n,)
    split: Split
    about: dict[str, Any] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Digest of all arrays."""
        return arrays_digest(*(array for _, array in sorted(self._flat().items())))

    @cached_property
    def own_digest(self) -> str:
        """Digest of the arrays that the primary has without any partner."""
        own = {name: array for name, array in self._flat().items() if not name.startswith("secondary")}
        return arrays_digest(*(array for _, array in sorted(own.items())))

    def save(self, path: Path) -> None:
        """Write one compressed file, completely or not at all."""
        buffer = io.BytesIO()
        names = json.dumps([linked.name for linked in self.secondaries])
        plain: dict[str, Any] = {"about": np.array(json.dumps(self.about)), "names": np.array(names), **self._flat()}
        np.savez_compressed(buffer, **plain)
        with atomic_write(path) as part:
            part.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> SplitArrays:
        """Read what :meth:`save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            flat = {name: file[name] for name in file.files}
        names = json.loads(str(flat["names"]))
        secondaries = tuple(
            LinkedSecondary(
                _load_features(_with_prefix(flat, f"secondary{place}")),
                **{part: flat[f"secondary{place}.{part}"] for part in LINK_ARRAYS},
                name=name,
            )
            for place, name in enumerate(names)
        )
        return cls(
            _load_features(_with_prefix(flat, "primary")),
            _load_features(_with_prefix(flat, "own")),
            secondaries,
            flat["labels"],
            flat["groups"],
            Split(**_with_prefix(flat, "split")),
            json.loads(str(flat["about"])),
        )

    def _flat(self) -> NamedArrays:
        flat = {"labels": self.labels, "groups": self.groups}
        flat |= {f"split.{name}": getattr(self.split, name) for name in ("train", "validation", "test")}
        flat |= dict(_feature_arrays("primary", self.primary)) | dict(_feature_arrays("own", self.own))
        for place, linked in enumerate(self.secondaries):
            flat |= dict(_feature_arrays(f"secondary{place}", linked.features))
            flat |= {f"secondary{place}.{part}": getattr(linked, part) for part in LINK_ARRAYS}
        return flat


def _with_prefix(flat: NamedArrays, party: str) -> NamedArrays:
    return {name.removeprefix(f"{party}."): part for name, part in flat.items() if name.startswith(f"{party}.")}


def _feature_arrays(party: str, features: Features) -> Iterator[tuple[str, AnyArray]]:
    yield f"{party}.numbers", features.numbers
    yield f"{party}.codes", features.codes.astype(np.int32)
    yield f"{party}.cardinalities", np.array(features.cardinalities, np.int64)
    yield f"{party}.spread", np.array(features.many_valued, np.int64)


def _load_features(parts: NamedArrays) -> Features:
    return Features(
        numbers=parts["numbers"],
        codes=parts["codes"].astype(np.int64),
        cardinalities=tuple(parts["cardinalities"].tolist()),
        spread=tuple(parts["spread"].tolist()),
    )
