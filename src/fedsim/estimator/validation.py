"""Which of the training records are set aside to choose the best epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.data.splits import group_split
from fedsim.errors import InputError, SettingError
from fedsim.types import Integers, Split

NOBODY = np.zeros(0, dtype=np.int64)


def check_fraction(fraction: float) -> None:
    """Some records must be left on either side."""
    if not 0 < fraction < 1:
        raise SettingError(f"validation_fraction={fraction}; a share above 0 and below 1 is needed")


def by_record(n_records: int, fraction: float, rng: np.random.Generator, kinds: NDArray[Any] | None = None) -> Split:
    """Records drawn one by one; with classes as ``kinds``, about as many of each, and a class of one record trains.

    >>> by_record(16, 1 / 8, np.random.default_rng(0))
    Split(14 training, 2 validation, 0 test records)
    """
    if n_records < 2:
        raise InputError("n_samples=1: one record is too few; at least one to train and one to validate are needed")
    order = rng.permutation(n_records)
    kinds = np.zeros(n_records, dtype=np.int64) if kinds is None else kinds
    last = order[np.argsort(_place_in_kind(kinds[order]), kind="stable")][::-1]
    count = min(max(1, round(fraction * n_records)), n_records - 1)
    return Split(np.sort(last[count:]), np.sort(last[:count]), NOBODY)


def by_group(groups: Integers, fraction: float, rng: np.random.Generator) -> Split:
    """Records with equal identifiers stay together."""
    return group_split(groups, rng, parts=(1 - fraction, fraction, 0))


def _place_in_kind(kinds: NDArray[Any]) -> NDArray[np.float64]:
    """How far each record stands in the queue of its kind: 0 for the first, almost 1 for the last of many."""
    place = np.empty(len(kinds))
    for kind in np.unique(kinds):
        members = np.flatnonzero(kinds == kind)
        place[members] = np.arange(len(members)) / len(members)
    return place
