"""The arrays that training takes from each party, and the checks on them.

Letters: n primary records, K partners of each.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError, SettingError
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.methods import PartnerRequirement
from fedsim.splitnn.secondary_model import Secondary
from fedsim.types import Split


class TaskType(Enum):
    """What the labels are: numbers (regression) or classes (classification)."""

    NUMBERS = "regression"
    CLASSES = "classification"


@dataclass(frozen=True, eq=False)
class PrimaryData:
    """The table of the party with the labels.

    Parameters
    ----------
    features
        Columns ready for a network; a plain array holds numbers.
    labels
        One number per record, (n,), or one integer per record that stands for its class.
    task_type
        Whether the labels are numbers or classes.
    name
        Name of the party, as in messages and folders.
    """

    features: Features | NDArray[Any]
    labels: NDArray[Any]  # (n,)
    task_type: TaskType = TaskType.NUMBERS
    name: str = "primary"

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", as_features(self.features))
        object.__setattr__(self, "labels", np.asarray(self.labels))


@dataclass(frozen=True, eq=False)
class SecondaryData:
    """The table of a party without labels, and every primary record's partners in it.

    Parameters
    ----------
    features
        Columns ready for a network; a plain array holds numbers.
    partner, similarity
        Rows of this party and their similarities, (n, K) each.
    name
        Name of the party.
    aligned_with
        Name of an earlier secondary whose rows correspond one to one with these. Such a party has no list of its own:
        both answer for the same partner rows (paper, appendix "Extension to Multiple Parties").
    """

    features: Features | NDArray[Any]
    partner: NDArray[Any] | None = None  # (n, K)
    similarity: NDArray[Any] | None = None  # (n, K)
    name: str = "secondary"
    aligned_with: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", as_features(self.features))

    @property
    def neighbours(self) -> Neighbours | None:
        """Its own list, if it has one."""
        if self.partner is None or self.similarity is None:
            return None
        return Neighbours(np.asarray(self.partner), np.asarray(self.similarity))


@dataclass(frozen=True, eq=False)
class NeighbourList:
    """A list of partners and the parties that hold those rows.

    Parameters
    ----------
    neighbours
        Every primary record's partners.
    holders
        Secondaries that hold the partner rows, in this process or elsewhere; several if they are aligned.
    """

    neighbours: Neighbours
    holders: tuple[Secondary, ...]


def as_features(features: Features | NDArray[Any]) -> Features:
    """Return features; a plain array holds columns of numbers."""
    return features if isinstance(features, Features) else Features(np.asarray(features))


# Checks before training. Messages name the party and the way out, and show no value.


MAX_LABEL = 1e150  # the square of a larger one overflows


def check_primary(primary: PrimaryData, split: Split) -> None:
    """Raise InputError if features, labels or split of the primary cannot be used."""
    name, labels = primary.name, primary.labels
    features = as_features(primary.features)
    features.check(name)
    if labels.shape != (len(features),):
        message = f"{name} has labels of shape {labels.shape} for {len(features)} records; give one label per record"
        raise InputError(message, code="label-shape")
    _check_split(split, len(features))
    if primary.task_type is TaskType.NUMBERS:
        real = np.issubdtype(labels.dtype, np.integer) or np.issubdtype(labels.dtype, np.floating)
        if not (real and np.isfinite(labels).all()):
            message = f"the labels of {name} are not all finite numbers; drop those records"
            raise InputError(message, code="label-not-finite")
        if np.abs(labels.astype(np.float64)).max() > MAX_LABEL:
            message = f"labels of {name} are above {MAX_LABEL:g}; choose a larger unit"
            raise InputError(message, code="label-too-large")
    elif not (np.issubdtype(labels.dtype, np.integer) or labels.dtype == bool):
        message = f"the classes of {name} are of type {labels.dtype}; give integers"
        raise InputError(message, code="class-not-integer")
    elif len(np.unique(labels[split.train])) < 2:
        message = f"the training labels of {name} are all of one class; give at least two"
        raise InputError(message, code="one-class")


def _check_split(split: Split, n_records: int) -> None:
    parts = {"training": split.train, "validation": split.validation, "test": split.test}
    for name, rows in parts.items():
        integers = rows.ndim == 1 and np.issubdtype(rows.dtype, np.integer)
        if not integers or (len(rows) and (rows.min() < 0 or rows.max() >= n_records)):
            raise InputError(f"the {name} rows of the split are not row numbers below {n_records}", code="split-rows")
        if not len(rows) and name != "test":
            raise InputError(f"the split has no {name} rows; give at least one", code="split-empty")
    rows = np.concatenate(list(parts.values()))
    if len(np.unique(rows)) < len(rows):
        raise InputError("the parts of the split share rows; each record belongs to one part", code="split-overlap")


def check_names(names: Sequence[str]) -> None:
    """Raise an error unless every party has a different name that can be a folder's."""
    if len(set(names)) < len(names):
        raise InputError(f"the parties are called {', '.join(names)}; give each another name", code="repeated-name")
    for name in names:
        if not re.fullmatch(r"\w[\w. -]*", name):
            raise SettingError(f"party name '{name}'; use letters, digits, '_', '-', '.' and blanks", code="party-name")


def check_lists(lists: Sequence[NeighbourList], n_records: int, required: PartnerRequirement) -> None:
    """Raise an error if a list does not fit the primary's records or those of its holders."""
    for listed in lists:
        if not listed.holders:
            raise InputError("a list of partners has no holder; give a secondary that has those rows", code="no-holder")
        party, n_rows = listed.holders[0].name, listed.holders[0].n_records
        partner, similarity = listed.neighbours.partner, listed.neighbours.similarity
        if partner.ndim != 2 or partner.shape != similarity.shape or len(partner) != n_records or not partner.size:
            raise InputError(
                f"the list of {party} has partners of shape {partner.shape} and similarities of shape "
                f"{similarity.shape} for {n_records} primary records; both need a row per record and a "
                "column per partner",
                code="list-shape",
            )
        if (k := listed.neighbours.k) > n_rows:
            message = f"k={k}, but {party} has {n_rows} records; choose k between 1 and {n_rows}"
            raise SettingError(message, code="k-too-large", limit=n_rows)
        if not np.issubdtype(partner.dtype, np.integer) or partner.min() < -1 or partner.max() >= n_rows:
            message = f"the list of {party} has partners outside its {n_rows} rows; rows count from zero"
            raise InputError(message, code="partner-out-of-range")
        if not (np.issubdtype(similarity.dtype, np.number) and np.isfinite(similarity).all()):
            message = f"the similarities of {party} are not all finite; link again"
            raise InputError(message, code="similarity-not-finite")
        if required is PartnerRequirement.EVERY and (partner < 0).any():
            message = f"the list of {party} has records without a partner (row -1), which only the method Exact allows"
            raise InputError(message, code="missing-partners")
        for holder in listed.holders:
            if holder.n_records != n_rows:
                sizes = f"{holder.name} has {holder.n_records} records and {party} has {n_rows}"
                raise InputError(f"{sizes}; aligned parties hold the same rows", code="aligned-sizes")
