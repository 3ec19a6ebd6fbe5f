"""Identifiers as they are compared: in the clear, or as the filters with which the paper hid them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from fedsim.data.datasets import Dataset, NumberFilters, Secondary, TextFilters
from fedsim.errors import SettingError
from fedsim.linkage.encoding import Field, Key, NumericFilter, Schema, StringFilter

HAMMING = "hamming"
KEY = Key(bytes(range(32)))  # which key it is changes nothing that is measured


def sides(dataset: Dataset, secondary: Secondary) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Identifiers of both parties, under the primary's names."""
    how = secondary.link
    named = dict(zip(how.secondary, how.primary, strict=True))
    ours = dataset.primary.frame.select(how.primary)
    theirs = secondary.table.frame.select(how.secondary).rename(named)
    if how.casefold:
        lower = pl.all().cast(pl.String).str.to_lowercase()
        return ours.select(lower), theirs.select(lower)
    return ours, theirs


def compared(ours: pl.DataFrame, theirs: pl.DataFrame, secondary: Secondary, metric: str) -> tuple[Any, Any, str]:
    """Both sides and the metric's word; for ``hamming`` as the paper's filters, numbers in their rank form."""
    if metric != HAMMING:
        return ours, theirs, metric or secondary.link.metric
    filters = secondary.link.filters
    if isinstance(filters, NumberFilters):
        schema = Schema([Field(name, _number(ours, theirs, name, filters)) for name in ours.columns])
        return schema.ranks(ours, KEY), schema.ranks(theirs, KEY), "rank-hamming"
    if isinstance(filters, TextFilters):
        schema = Schema([Field(name, _text(ours[name], theirs[name], filters)) for name in ours.columns])
        rng = np.random.default_rng(0)  # draws nothing: no bit is flipped
        return schema.encode(ours, KEY, rng), schema.encode(theirs, KEY, rng), HAMMING
    raise SettingError(f"{secondary.name} has no filters in the paper; compare its identifiers in the clear")


def _number(ours: pl.DataFrame, theirs: pl.DataFrame, name: str, filters: NumberFilters) -> NumericFilter:
    both = np.concatenate([ours[name].to_numpy(), theirs[name].to_numpy()])
    low, high = float(both.min()), float(both.max())
    return NumericFilter.sized(low, high, filters.threshold, epsilon=filters.epsilon, delta=filters.delta)


def _text(ours: pl.Series, theirs: pl.Series, filters: TextFilters) -> StringFilter:
    letters = pl.concat([ours, theirs]).str.len_chars().mean()
    return StringFilter.sized(
        edit_distance=filters.edits,
        hashes=filters.hashes,
        collision=filters.collisions,
        delta=filters.delta,
        mean_grams=max(1.0, float(str(letters)) - filters.q + 1),
        q=filters.q,
    )
