"""Numbers, standardised by the training rows and kept within bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from fedsim.types import Floats

FURTHEST = 10.0  # deviations from the mean that any value may be away, however narrow the training rows were
ROUNDING = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class NumberColumn:
    """A number as deviations from the training mean; missing ones count as the mean.

    No value is further out than ten deviations or the furthest training row, and a column that was constant in the
    training rows (``deviation`` 0) is zero for ever: a new value in it cannot throw the prediction. ``missing`` adds a
    second column, one where the number is missing; only training rows with gaps can teach it. ``many`` says that the
    training rows hold more than two values, so that an embedding of the number can pay.
    """

    column: str
    mean: float = field(repr=False)
    deviation: float = field(repr=False)
    furthest: float = field(repr=False)
    missing: bool
    many: bool

    @property
    def spread(self) -> tuple[bool, ...]:
        """For every column: does it take many values?"""
        return (self.many, False) if self.missing else (self.many,)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column, f"{self.column} is missing") if self.missing else (self.column,)

    def apply(self, cells: pl.Series) -> Floats:
        """One row per record, one column per name."""
        values = cells.to_numpy()
        gaps = np.isnan(values)
        with np.errstate(over="ignore"):
            scores = (values - self.mean) / self.deviation if self.deviation else np.zeros(len(values))
        scores = np.where(gaps, 0.0, np.clip(scores, -self.furthest, self.furthest))
        return np.column_stack([scores, gaps]) if self.missing else scores[:, np.newaxis]


def fit_number(cells: pl.Series) -> NumberColumn:
    """The column's preparation from its training rows.

    >>> area = fit_number(pl.Series("area", [40.0, 60.0, None]))
    >>> area.mean, area.deviation, area.names
    (50.0, 10.0, ('area', 'area is missing'))
    """
    values = cells.drop_nulls().to_numpy()
    unit = _unit(values)
    scaled = values / unit  # squares of large numbers overflow
    mean, deviation = (float(scaled.mean()), float(scaled.std())) if len(values) else (0.0, 0.0)
    varies = deviation > ROUNDING
    return NumberColumn(
        column=cells.name,
        mean=mean * unit,
        deviation=deviation * unit if varies else 0.0,
        furthest=max(FURTHEST, float(np.abs(scaled - mean).max()) / deviation) if varies else FURTHEST,
        missing=0 < len(values) < len(cells),
        many=varies and bool(((values != values.min()) & (values != values.max())).any()),
    )


def _unit(values: Floats) -> float:
    """A power of two that brings the largest value between one and two: dividing by it loses nothing."""
    largest = float(np.abs(values).max()) if len(values) else 0.0
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0
