"""Categories: a column each while they are few, numbers for an embedding table where they are many.

Categories seen in fewer than ``seldom`` training rows share the bucket ``other``, so that the bucket has been trained
when a category nobody has seen arrives. The stored categories are the party's own; they stay out of every ``repr``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from fedsim.data.columns import DECIMAL_COMMA
from fedsim.errors import InputError
from fedsim.types import Floats, Integers


@dataclass(frozen=True)
class Levels:
    """The categories the training rows taught, in order; ``missing`` says whether gaps were among them."""

    known: tuple[str, ...] = field(repr=False)
    missing: bool
    other: bool

    def codes(self, cells: pl.Series) -> Integers:
        """0 for whatever was not taught, 1, 2, ... for the known ones, the last for missing where that was taught."""
        order = pl.Series(range(1, len(self.known) + 1), dtype=pl.Int64)
        codes = cells.replace_strict(pl.Series(self.known, dtype=pl.String), order, default=0, return_dtype=pl.Int64)
        gap = len(self.known) + 1 if self.missing else 0
        return np.asarray(codes.set(cells.is_null(), gap).to_numpy(), dtype=np.int64)


@dataclass(frozen=True)
class OneHotColumn:
    """One column of zeros and ones per known category, and for ``missing`` and ``other`` where they were taught.

    Where ``other`` was not taught, a category first seen at prediction is zero everywhere.
    """

    column: str
    levels: Levels

    @property
    def names(self) -> tuple[str, ...]:
        known = [f"{self.column}={level}" for level in self.levels.known]
        gap = [f"{self.column} is missing"] if self.levels.missing else []
        rest = [f"{self.column} is other"] if self.levels.other else []
        return (*known, *gap, *rest)

    @property
    def spread(self) -> tuple[bool, ...]:
        """No column takes more than two values."""
        return (False,) * len(self.names)

    def apply(self, cells: pl.Series) -> Floats:
        """One row per record, one column per name."""
        codes = self.levels.codes(cells)
        width = len(self.levels.known) + self.levels.missing
        order = np.arange(1, width + 1)
        rest = [codes == 0] if self.levels.other else []
        return np.column_stack([codes[:, np.newaxis] == order, *rest]).astype(np.float64)


@dataclass(frozen=True)
class CodedColumn:
    """A number per category for an embedding table of ``cardinality`` rows; row 0 is ``other``."""

    column: str
    levels: Levels

    @property
    def cardinality(self) -> int:
        return 1 + len(self.levels.known) + self.levels.missing

    def apply(self, cells: pl.Series) -> Integers:
        """One code per record."""
        return self.levels.codes(cells)


def fit_category(cells: pl.Series, *, party: str, seldom: int, most_one_hot: int) -> OneHotColumn | CodedColumn:
    """The column's preparation from its training rows.

    >>> fit_category(pl.Series("town", ["a", "b", "a", "b"]), party="primary", seldom=2, most_one_hot=16).names
    ('town=a', 'town=b')
    """
    filled = cells.drop_nulls()
    counts = filled.value_counts(name="rows")
    _refuse_free_text(counts, cells.name, party=party, most_one_hot=most_one_hot)
    known = counts.filter(pl.col("rows") >= seldom)[cells.name].sort().to_list()
    levels = Levels(tuple(known), missing=cells.null_count() >= seldom, other=len(known) < len(counts))
    return OneHotColumn(cells.name, levels) if len(known) <= most_one_hot else CodedColumn(cells.name, levels)


def _refuse_free_text(counts: pl.DataFrame, column: str, *, party: str, most_one_hot: int) -> None:
    """A text that stands in one row alone teaches nothing about another row."""
    rows = counts["rows"]
    alone, total = int((rows == 1).sum()), int(rows.sum())
    if len(rows) > most_one_hot and 2 * alone > total:
        commas = counts[column].str.contains(DECIMAL_COMMA).all()
        way_out = "leave the column out, or declare it a number or a date if it is one"
        raise InputError(
            f"{party} table, column '{column}': in {alone:,} of {total:,} training rows it holds a text that no other "
            f"row has, so it is no category; {'write decimals with a point, not a comma' if commas else way_out}"
        )
