"""One split of some tables as plain arrays: linked, split, prepared - ready for a machine with torch and numpy alone.

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

from fedsim.digest import arrays_digest
from fedsim.linkage.whole_file import whole_file
from fedsim.splitnn.features import Features
from fedsim.types import Split

Array = NDArray[Any]
Parts = dict[str, Array]
LISTS = ("list_of", "partner", "similarity", "equal")


@dataclass(frozen=True, eq=False)
class Linked:
    """A secondary: its features, the lists of partners, which list is a record's, and the row equal to a record.

    ``equal`` holds, for every list, the row whose identifiers are exactly the record's, or -1.
    """

    features: Features  # (m, ...)
    list_of: Array  # (n,)
    partner: Array  # (L, K)
    similarity: Array  # (L, K)
    equal: Array  # (L,)
    name: str = "secondary"


@dataclass(frozen=True, eq=False)
class Arrays:
    """Everything one split trains on: ``own`` are the primary's identifiers as features, ``groups`` tell equal ones.

    ``about`` says what this is, in types that JSON has: name, unit, task, split and seed at least.
    """

    primary: Features
    own: Features
    secondaries: tuple[Linked, ...]
    labels: Array  # (n,)
    groups: Array  # (n,)
    split: Split
    about: dict[str, Any] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Stands for all values."""
        return arrays_digest(*(array for _, array in sorted(self._flat().items())))

    @cached_property
    def own_digest(self) -> str:
        """Stands for the values the primary has without any partner."""
        own = {name: array for name, array in self._flat().items() if not name.startswith("secondary")}
        return arrays_digest(*(array for _, array in sorted(own.items())))

    def save(self, path: Path) -> None:
        """Write one compressed file, whole or not at all."""
        buffer = io.BytesIO()
        names = json.dumps([linked.name for linked in self.secondaries])
        plain: dict[str, Any] = {"about": np.array(json.dumps(self.about)), "names": np.array(names), **self._flat()}
        np.savez_compressed(buffer, **plain)
        with whole_file(path) as part:
            part.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Arrays:
        """What :meth:`save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            flat = {name: file[name] for name in file.files}
        names = json.loads(str(flat["names"]))
        secondaries = tuple(
            Linked(
                _features(_below(flat, f"secondary{place}")),
                **{part: flat[f"secondary{place}.{part}"] for part in LISTS},
                name=name,
            )
            for place, name in enumerate(names)
        )
        return cls(
            _features(_below(flat, "primary")),
            _features(_below(flat, "own")),
            secondaries,
            flat["labels"],
            flat["groups"],
            Split(**_below(flat, "split")),
            json.loads(str(flat["about"])),
        )

    def _flat(self) -> Parts:
        flat = {"labels": self.labels, "groups": self.groups}
        flat |= {f"split.{name}": getattr(self.split, name) for name in ("train", "validation", "test")}
        flat |= dict(_named("primary", self.primary)) | dict(_named("own", self.own))
        for place, linked in enumerate(self.secondaries):
            flat |= dict(_named(f"secondary{place}", linked.features))
            flat |= {f"secondary{place}.{part}": getattr(linked, part) for part in LISTS}
        return flat


def _below(flat: Parts, party: str) -> Parts:
    return {name.removeprefix(f"{party}."): part for name, part in flat.items() if name.startswith(f"{party}.")}


def _named(party: str, features: Features) -> Iterator[tuple[str, Array]]:
    yield f"{party}.numbers", features.numbers
    yield f"{party}.codes", features.codes.astype(np.int32)
    yield f"{party}.cardinalities", np.array(features.cardinalities, np.int64)
    yield f"{party}.spread", np.array(features.many_valued, np.int64)


def _features(parts: Parts) -> Features:
    return Features(
        numbers=parts["numbers"],
        codes=parts["codes"].astype(np.int64),
        cardinalities=tuple(parts["cardinalities"].tolist()),
        spread=tuple(parts["spread"].tolist()),
    )
