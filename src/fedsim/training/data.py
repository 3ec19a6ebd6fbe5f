"""The arrays that training takes from each party, and the checks on them."""

from __future__ import annotations

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

# What training takes: plain arrays, one value per party
#
# Letters: n primary records, K partners of each.


class TaskType(Enum):
    """What the labels are."""

    NUMBERS = "regression"
    CLASSES = "classification"


@dataclass(frozen=True, eq=False)
class PrimaryData:
    """The party with the labels: numbers, or whole numbers that stand for classes."""

    features: Features | NDArray[Any]
    labels: NDArray[Any]  # (n,)
    task_type: TaskType = TaskType.NUMBERS
    name: str = "primary"

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", as_features(self.features))
        object.__setattr__(self, "labels", np.asarray(self.labels))


@dataclass(frozen=True, eq=False)
class SecondaryData:
    """A party without labels, and every primary record's partners in it.

    A secondary whose rows correspond one to one with those of an earlier one names that in ``aligned_with`` and brings
    no list of its own: both answer for the same partner rows, and their cut layers stand side by side (paper, appendix
    "Extension to Multiple Parties").
    """

    features: Features | NDArray[Any]
    partner: NDArray[Any] | None = None  # (n, K), rows of this party
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
    """Every primary record's partners, and the parties that hold those rows, in this process or elsewhere."""

    neighbours: Neighbours
    holders: tuple[Secondary, ...]


def as_features(features: Features | NDArray[Any]) -> Features:
    """Plain arrays are columns of numbers."""
    return features if isinstance(features, Features) else Features(np.asarray(features))


# What training refuses, in words that name the party and the way out, and show no value


MAX_LABEL = 1e150


def check_primary(primary: PrimaryData, split: Split) -> None:
    """Features, labels and split of the primary."""
    features = as_features(primary.features)
    features.check(primary.name)
    if primary.labels.shape != (len(features),):
        raise InputError(
            f"{primary.name} has labels of shape {primary.labels.shape} for {len(features)} records; give one label "
            "per record"
        )
    _check_split(split, len(features))
    _check_labels(primary, split)


def check_names(names: Sequence[str]) -> None:
    """Every party has a name of its own, fit for a folder."""
    if len(set(names)) < len(names):
        raise InputError(f"the parties are called {', '.join(names)}; give every party a name of its own")
    for name in names:
        if not re.fullmatch(r"\w[\w. -]*", name):
            raise SettingError(f"party name '{name}'; use letters, digits, '_', '-', '.' and blanks")


def check_lists(lists: Sequence[NeighbourList], n_records: int, wanted: PartnerRequirement) -> None:
    """Every list fits the primary's records and those of all its holders."""
    for held in lists:
        if not held.holders:
            raise InputError("a list of partners has no holder; give at least one secondary that has those rows")
        leader = held.holders[0]
        check_neighbours(held.neighbours, leader.name, n_records, leader.n_records)
        check_missing_partners(held.neighbours, leader.name, wanted)
        for holder in held.holders:
            if holder.n_records != leader.n_records:
                raise InputError(
                    f"{holder.name} has {holder.n_records} records and {leader.name} has {leader.n_records}; aligned "
                    "parties hold the same rows"
                )


def check_neighbours(neighbours: Neighbours, party: str, n_records: int, n_candidates: int) -> None:
    """A list of partners fits the primary's records and the secondary's."""
    partner, similarity = neighbours.partner, neighbours.similarity
    if partner.ndim != 2 or partner.shape != similarity.shape or len(partner) != n_records or not partner.size:
        raise InputError(
            f"the list of {party} has partners of shape {partner.shape} and similarities of shape {similarity.shape} "
            f"for {n_records} primary records; both need a row per record and a column per partner"
        )
    if neighbours.k > n_candidates:
        raise SettingError(
            f"k={neighbours.k} partners per record, but {party} has {n_candidates} records; "
            f"choose k between 1 and {n_candidates}"
        )
    if not np.issubdtype(partner.dtype, np.integer) or partner.min() < -1 or partner.max() >= n_candidates:
        raise InputError(f"the list of {party} names partners outside its {n_candidates} rows; rows count from zero")
    if not (np.issubdtype(similarity.dtype, np.number) and np.isfinite(similarity).all()):
        raise InputError(f"the similarities of {party} are not all finite; link again")


def check_missing_partners(neighbours: Neighbours, party: str, wanted: PartnerRequirement) -> None:
    """Only a method that can do without a partner is given records without one."""
    if wanted is PartnerRequirement.EVERY and (neighbours.partner < 0).any():
        raise InputError(
            f"the list of {party} leaves some records without a partner (row -1); only the method Exact can use it"
        )


def _check_split(split: Split, n_records: int) -> None:
    parts = {"training": split.train, "validation": split.validation, "test": split.test}
    for name, rows in parts.items():
        if (
            rows.ndim != 1
            or not np.issubdtype(rows.dtype, np.integer)
            or (len(rows) and (rows.min() < 0 or rows.max() >= n_records))
        ):
            raise InputError(f"the {name} rows of the split are not row numbers below {n_records}")
        if not len(rows) and name != "test":
            raise InputError(f"the split has no {name} rows; give at least one")
    together = np.concatenate(list(parts.values()))
    if len(np.unique(together)) < len(together):
        raise InputError("the parts of the split share rows; each record belongs to one part")


def _check_labels(primary: PrimaryData, split: Split) -> None:
    labels: NDArray[Any] = primary.labels
    if primary.task_type is TaskType.NUMBERS:
        real = np.issubdtype(labels.dtype, np.integer) or np.issubdtype(labels.dtype, np.floating)
        if not (real and np.isfinite(labels).all()):
            raise InputError(f"the labels of {primary.name} are not all finite numbers; drop those records")
        if np.abs(labels.astype(np.float64)).max() > MAX_LABEL:
            raise InputError(f"the labels of {primary.name} are too large to be squared; choose a larger unit")
    elif not (np.issubdtype(labels.dtype, np.integer) or labels.dtype == bool):
        raise InputError(f"the classes of {primary.name} are of type {labels.dtype}; give whole numbers")
    elif len(np.unique(labels[split.train])) < 2:
        raise InputError(f"the training labels of {primary.name} are all of one class; at least two are needed")
