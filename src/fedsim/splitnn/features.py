"""A party's features as arrays and as tensors.

Letters: n records, d columns of numbers, e columns of category codes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import InputError
from fedsim.types import Integers


class PreparedColumns(Protocol):
    """What a preparation of tables gives, wherever that lives."""

    @property
    def numbers(self) -> NDArray[Any]: ...

    @property
    def codes(self) -> Integers: ...

    @property
    def cardinalities(self) -> tuple[int, ...]: ...

    @property
    def spread(self) -> tuple[int, ...]: ...


def _empty_codes() -> Integers:
    return np.zeros((0, 0), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Features:
    """Columns of numbers, ready for a network (standardised), and columns of codes of categories.

    ``spread`` names the columns of ``numbers`` that take many values and deserve an embedding where the network has
    one; by default those with more than two distinct values. ``names`` (numbers first, then codes) serve messages.

    >>> Features(np.array([[0.0, 1.5], [1.0, 0.5], [0.0, -2.0]]))
    Features(3 records x 2 numbers and 0 codes)
    """

    numbers: NDArray[Any]  # (n, d)
    codes: Integers = field(default_factory=_empty_codes)  # (n, e), column j below cardinalities[j]
    cardinalities: tuple[int, ...] = ()
    spread: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", np.ascontiguousarray(self.numbers, dtype=np.float32))
        if not self.codes.size and not self.cardinalities:
            object.__setattr__(self, "codes", np.zeros((len(self.numbers), 0), dtype=np.int64))

    @classmethod
    def of(cls, prepared: PreparedColumns) -> Features:
        """Columns that a party's preparation made."""
        return cls(prepared.numbers, prepared.codes, prepared.cardinalities, prepared.spread)

    @classmethod
    def without_records(cls, n_numbers: int, cardinalities: tuple[int, ...], spread: tuple[int, ...]) -> Features:
        """The shape of a table with nobody in it."""
        codes = np.zeros((0, len(cardinalities)), dtype=np.int64)
        return cls(np.zeros((0, n_numbers), dtype=np.float32), codes, cardinalities, spread)

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return "Features({} records x {} numbers and {} codes)".format(len(self), *self.columns)

    @property
    def columns(self) -> tuple[int, int]:
        """How many columns of numbers and of codes there are."""
        return self.numbers.shape[1], self.codes.shape[1]

    @property
    def many_valued(self) -> tuple[int, ...]:
        """``spread``, or what these very records say of it."""
        return _many_valued(self.numbers) if self.spread is None else self.spread

    def take(self, rows: NDArray[Any]) -> Features:
        """The same columns of some records."""
        return replace(self, numbers=self.numbers[rows], codes=self.codes[rows])

    def on(self, device: torch.device) -> FeatureTensors:
        """The same, resident on a device."""
        return FeatureTensors(torch.from_numpy(self.numbers).to(device), torch.from_numpy(self.codes).to(device))

    def check(self, party: str) -> None:
        """Refuse what no network can learn from; names party and column, never a value."""
        if self.numbers.ndim != 2 or self.codes.shape != (len(self), len(self.cardinalities)):
            raise InputError(
                f"the features of {party} have shapes {self.numbers.shape} and {self.codes.shape} for "
                f"{len(self.cardinalities)} cardinalities; give two tables with a row per record and a cardinality "
                "per column of codes"
            )
        if not self.numbers.shape[1] + self.codes.shape[1]:
            raise InputError(f"{party} has no feature columns; give at least one")
        faulty = ~np.isfinite(self.numbers).all(axis=0)
        if faulty.any():
            raise InputError(f"{self._column(int(faulty.argmax()), party)} is not finite in every row; fill it first")
        for place, cardinality in enumerate(self.cardinalities):
            column = self.codes[:, place]
            if len(column) and (column.min() < 0 or column.max() >= cardinality):
                where = self._column(self.numbers.shape[1] + place, party)
                raise InputError(f"{where} has codes outside 0..{cardinality - 1}; the codes count from zero")

    def _column(self, place: int, party: str) -> str:
        name = f"'{self.names[place]}'" if place < len(self.names) else str(place)
        return f"feature column {name} of {party}"


def _many_valued(numbers: NDArray[np.float32]) -> tuple[int, ...]:
    """Columns with more than two values; a 0/1 column gains nothing from an embedding."""
    if numbers.ndim != 2 or not len(numbers):
        return ()
    low, high = numbers.min(axis=0), numbers.max(axis=0)
    return tuple(np.flatnonzero(((numbers != low) & (numbers != high)).any(axis=0)).tolist())


@dataclass(frozen=True, eq=False)
class FeatureTensors:
    """Features on a device."""

    numbers: Tensor  # (n, d)
    codes: Tensor  # (n, e)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Tensor) -> FeatureTensors:
        """The same columns of some records."""
        codes = self.codes.index_select(0, rows) if self.codes.shape[1] else self.codes[:0]
        return FeatureTensors(self.numbers.index_select(0, rows), codes)
