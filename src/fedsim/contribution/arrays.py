"""One train/validation/test split of linked tables as plain NumPy arrays; needs torch and numpy only.

Letters: n primary records, L distinct lists of partners, K partners of each, m records of a secondary.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.splitnn.layers import Features
from fedsim.storage.tensor_file import arrays_digest
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
        return arrays_digest(*(array for _, array in sorted(self.named().items())))

    @cached_property
    def own_digest(self) -> str:
        """Digest of the arrays that the primary has without any partner."""
        own = {name: array for name, array in self.named().items() if not name.startswith("secondary")}
        return arrays_digest(*(array for _, array in sorted(own.items())))

    def named(self) -> NamedArrays:
        """Return all arrays by name."""
        flat = {"labels": self.labels, "groups": self.groups}
        flat |= {f"split.{name}": getattr(self.split, name) for name in ("train", "validation", "test")}
        tables = {f"secondary{place}": linked.features for place, linked in enumerate(self.secondaries)}
        for party, features in {"primary": self.primary, "own": self.own, **tables}.items():
            flat[f"{party}.numbers"] = features.numbers
            flat[f"{party}.codes"] = features.codes.astype(np.int32)
            flat[f"{party}.cardinalities"] = np.array(features.cardinalities, np.int64)
            flat[f"{party}.spread"] = np.array(features.many_valued, np.int64)
        for place, linked in enumerate(self.secondaries):
            flat |= {f"secondary{place}.{part}": getattr(linked, part) for part in LINK_ARRAYS}
        return flat
