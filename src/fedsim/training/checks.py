"""What training refuses, in words that name the party and the way out, and show no value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError, SettingError
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.method import Partners
from fedsim.training.data import Goal, PrimaryData, SecondaryData, as_features
from fedsim.types import Split

LARGEST_LABEL = 1e150


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


def check_secondaries(secondaries: Sequence[SecondaryData], n_records: int, wanted: Partners) -> None:
    """Features and lists of all secondaries."""
    for place, secondary in enumerate(secondaries):
        as_features(secondary.features).check(secondary.name)
        if secondary.aligned_with:
            _check_aligned(secondary, secondaries[:place])
        else:
            check_neighbours(secondary.neighbours, secondary.name, n_records, len(as_features(secondary.features)))
            check_partners(secondary.neighbours, secondary.name, wanted)


def check_neighbours(neighbours: Neighbours | None, party: str, n_records: int, n_candidates: int) -> None:
    """A list of partners fits the primary's records and the secondary's."""
    if neighbours is None:
        raise InputError(f"{party} has no list of partners; give partner and similarity, or aligned_with")
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


def check_partners(neighbours: Neighbours | None, party: str, wanted: Partners) -> None:
    """Only a method that can do without a partner is given records without one."""
    if neighbours is not None and wanted is Partners.EVERY and (neighbours.partner < 0).any():
        raise InputError(
            f"the list of {party} leaves some records without a partner (row -1); only the method Exact can use it"
        )


def _check_aligned(secondary: SecondaryData, earlier: Sequence[SecondaryData]) -> None:
    leader = next((other for other in earlier if other.name == secondary.aligned_with and not other.aligned_with), None)
    if leader is None:
        raise InputError(
            f"{secondary.name} is aligned with '{secondary.aligned_with}', which is no earlier secondary with a list"
        )
    own, theirs = len(as_features(secondary.features)), len(as_features(leader.features))
    if own != theirs:
        raise InputError(
            f"{secondary.name} has {own} records and {leader.name} has {theirs}; aligned parties hold the same rows"
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
    if primary.goal is Goal.NUMBERS:
        real = np.issubdtype(labels.dtype, np.integer) or np.issubdtype(labels.dtype, np.floating)
        if not (real and np.isfinite(labels).all()):
            raise InputError(f"the labels of {primary.name} are not all finite numbers; drop those records")
        if np.abs(labels.astype(np.float64)).max() > LARGEST_LABEL:
            raise InputError(f"the labels of {primary.name} are too large to be squared; choose a larger unit")
    elif not (np.issubdtype(labels.dtype, np.integer) or labels.dtype == bool):
        raise InputError(f"the classes of {primary.name} are of type {labels.dtype}; give whole numbers")
    elif len(np.unique(labels[split.train])) < 2:
        raise InputError(f"the training labels of {primary.name} are all of one class; at least two are needed")
