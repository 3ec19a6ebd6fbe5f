"""Dates: days elapsed as a number, the season, the weekday and the time of day as points on a circle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from fedsim.data.feature_numbers import NumberColumn, fit_number
from fedsim.types import Floats

DAY = 86_400e6  # microseconds
YEAR, WEEK = 365.2425, 7.0
THURSDAY = 4.0  # 1970-01-01, counted from Sunday


@dataclass(frozen=True)
class DateColumn:
    """A moment as standardised days and cosine and sine of its place in the year, the week and, if told, the day."""

    column: str
    days: NumberColumn
    clock: bool

    @property
    def names(self) -> tuple[str, ...]:
        rounds = ("year", "week", "day") if self.clock else ("year", "week")
        return (*self.days.names, *(f"{self.column} {part} {wave}" for part in rounds for wave in ("cos", "sin")))

    @property
    def spread(self) -> tuple[bool, ...]:
        """Every circle takes many values."""
        return (*self.days.spread, *(True for _ in self.names[len(self.days.names) :]))

    def apply(self, cells: pl.Series) -> Floats:
        """One row per record, one column per name; a missing date has no place on any circle."""
        days = days_of(cells)
        moments = days.to_numpy()
        rounds = [moments / YEAR, (moments + THURSDAY) / WEEK] + ([moments] if self.clock else [])
        waves = [wave(2.0 * np.pi * turns) for turns in rounds for wave in (np.cos, np.sin)]
        return np.column_stack([self.days.apply(days), np.nan_to_num(np.column_stack(waves))])


def fit_date(cells: pl.Series) -> DateColumn:
    """The column's preparation from its training rows.

    >>> from datetime import datetime
    >>> fit_date(pl.Series("sold", [datetime(2020, 1, 1), datetime(2020, 7, 1)])).names
    ('sold', 'sold year cos', 'sold year sin', 'sold week cos', 'sold week sin')
    """
    days = days_of(cells)
    clock = bool(((days % 1.0) != 0.0).any())
    return DateColumn(cells.name, fit_number(days), clock)


def days_of(cells: pl.Series) -> pl.Series:
    """Days since 1970, with fractions."""
    return cells.cast(pl.Int64).cast(pl.Float64) / DAY
