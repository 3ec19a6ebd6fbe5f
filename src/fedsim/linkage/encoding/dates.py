"""FEDERAL filters of dates: a date is the number of days since 1970."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import ClassVar

from fedsim.errors import SettingError
from fedsim.linkage.encoding.checks import settle
from fedsim.linkage.encoding.columns import Column
from fedsim.linkage.encoding.numbers import NumericFilter
from fedsim.types import Bits, Integers


@dataclass(frozen=True)
class DateFilter:
    """Filters of dates from ``low`` to ``high``; the ``threshold`` counts days.

    Near means near in time: a swapped day and month, or a mistyped decade, is as far as the calendar says.
    """

    KIND: ClassVar[str] = "date"

    low: date
    high: date
    threshold: float
    bits: int = 1024

    def __post_init__(self) -> None:
        settle(self)
        for name, day in (("low", self.low), ("high", self.high)):
            if type(day) is not date:
                raise SettingError(f"{name}={day!r} is no date; write datetime.date(2001, 12, 31)")
        if self.low >= self.high:
            raise SettingError(f"low={self.low} is not before high={self.high}; choose an earlier low")
        self._numeric()

    def ranks(self, column: Column, subkey: bytes) -> Integers:
        """For every date the run of sorted pivots that are ones (see :meth:`NumericFilter.ranks`)."""
        return self._numeric().ranks(self._days(column), subkey)

    def encode(self, column: Column, subkey: bytes) -> Bits:
        """One packed filter per date."""
        return self._numeric().encode(self._days(column), subkey)

    def _numeric(self) -> NumericFilter:
        low, high = Column([self.low, self.high]).days()
        return NumericFilter(float(low), float(high), self.threshold, self.bits)

    def _days(self, column: Column) -> Column:
        days, numeric = column.days(), self._numeric()
        column.refuse(
            (days < numeric.low) | (days > numeric.high),
            f"the date lies outside the agreed range {self.low} to {self.high}; "
            "agree on a wider one or leave the record out",
        )
        return Column(days, column.name, column.table)
