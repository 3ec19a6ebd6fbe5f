"""A distance over several columns of different kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage import identifiers
from fedsim.linkage.choices import metric_named
from fedsim.linkage.metric import Backend, Metric, by_blocks
from fedsim.linkage.search.blocks import Blocks
from fedsim.linkage.search.distinct import Records
from fedsim.types import Floats, Integers


@dataclass(frozen=True)
class Field:
    """One column of a weighted sum (or several between commas, for places), its metric and its weight.

    >>> Field("lat,lon", "great-circle", weight=0.001).columns
    ['lat', 'lon']
    """

    column: str
    metric: Metric | str
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.measure)
        known = isinstance(self.weight, int | float | np.number) and not isinstance(self.weight, bool)
        if not (known and np.isfinite(self.weight) and self.weight > 0):
            raise SettingError(f"field '{self.column}': a weight is a positive number")

    @property
    def measure(self) -> Metric:
        """The metric itself; ``metric`` may have come as a word."""
        return metric_named(self.metric)

    @property
    def columns(self) -> list[str]:
        return [name.strip() for name in self.column.split(",")]

    def prepare(self, columns: dict[str, Any], table: str) -> Records:
        """This field's columns in its metric's form."""
        absent = [name for name in self.columns if name not in columns]
        if absent:
            raise InputError(f"the {table} table has no column '{absent[0]}', which a field of the weighted sum names")
        return self.measure.prepare({name: columns[name] for name in self.columns}, table)


@dataclass(frozen=True)
class WeightedSum:
    """Sum of several fields' distances, each times its weight: a person's name, birth date and street together."""

    fields: tuple[Field, ...]
    name: str = "weighted-sum"
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.fields:
            raise SettingError("a weighted sum of no fields; give at least one")

    def prepare(self, records: Any, table: str) -> tuple[Records, ...]:
        columns = identifiers.columns_of(records, table)
        return tuple(field.prepare(columns, table) for field in self.fields)

    def blocks(self, left: Records, right: Records) -> Blocks:
        parts = zip(self.fields, left, right, strict=True)
        return _WeightedBlocks([(field.weight, field.measure.blocks(here, there)) for field, here, there in parts])

    def backends(self, queries: Records, candidates: Records, k: int) -> Sequence[Backend]:
        return [by_blocks(self, queries, candidates)]


@dataclass(frozen=True)
class _WeightedBlocks:
    parts: list[tuple[float, Blocks]]

    def block(self, tile: Integers) -> Floats:
        with np.errstate(over="ignore"):  # an infinite sum is refused after the search
            total: Floats = sum(weight * blocks.block(tile) for weight, blocks in self.parts)  # type: ignore[assignment]
        return total
