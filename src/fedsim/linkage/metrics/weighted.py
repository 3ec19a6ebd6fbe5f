"""A distance over several columns of different kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage import identifiers
from fedsim.linkage.metric import Backend, Metric, by_blocks
from fedsim.linkage.search.blocks import Blocks
from fedsim.linkage.search.distinct import Records
from fedsim.types import Floats, Integers


@dataclass(frozen=True)
class Field:
    """One column of a weighted sum, its metric and its weight."""

    column: str
    metric: Metric
    weight: float = 1.0


@dataclass(frozen=True)
class WeightedSum:
    """Sum of several fields' distances, each times its weight: a person's name, birth date and street together."""

    fields: tuple[Field, ...]
    name: str = "weighted-sum"
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.fields:
            raise SettingError("a weighted sum of no fields; give at least one")
        for field in self.fields:
            if not (np.isfinite(field.weight) and field.weight > 0):
                raise SettingError(f"weight {field.weight} of field '{field.column}'; a weight is a positive number")

    def prepare(self, records: Any, table: str) -> tuple[Records, ...]:
        columns = identifiers.columns_of(records, table)
        absent = [field.column for field in self.fields if field.column not in columns]
        if absent:
            raise InputError(f"the {table} table has no column '{absent[0]}'; it has {', '.join(map(repr, columns))}")
        return tuple(field.metric.prepare(columns[field.column], table) for field in self.fields)

    def blocks(self, left: Records, right: Records) -> Blocks:
        parts = zip(self.fields, left, right, strict=True)
        return _WeightedBlocks([(field.weight, field.metric.blocks(here, there)) for field, here, there in parts])

    def backends(self, queries: Records, candidates: Records, k: int) -> Sequence[Backend]:
        return [by_blocks(self, queries, candidates)]


@dataclass(frozen=True)
class _WeightedBlocks:
    parts: list[tuple[float, Blocks]]

    def block(self, tile: Integers) -> Floats:
        total: Floats = sum(weight * blocks.block(tile) for weight, blocks in self.parts)  # type: ignore[assignment]
        return total
