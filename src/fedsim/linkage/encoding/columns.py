"""One identifier column as numbers, text, days or labels; errors name the row and hide the value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import date
from numbers import Integral
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.cells import is_missing, is_number, to_date
from fedsim.errors import InputError
from fedsim.types import Floats

_EPOCH = date(1970, 1, 1).toordinal()
# A label is a code or a year; Python refuses to write numbers of thousands of digits.
_MAX_LABEL_NUMBER = 10**1000
_MISSING_FAULT = "the value is missing; fill it in or leave the record out"


class ColumnValues(Protocol):
    """A list, an array, or a column of any data frame."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, eq=False)
class IdentifierColumn:
    """The values of one column, and the names its errors speak of; the values never show in its ``repr``.

    >>> IdentifierColumn([1.5, 2], "age", "primary")
    IdentifierColumn(name='age', table='primary')
    """

    values: ColumnValues = dataclass_field(repr=False)
    name: str = "value"
    table: str = "table"

    def __len__(self) -> int:
        return len(self.values)

    def fault(self, row: int, problem: str) -> InputError:
        """The error about row index ``row``, which readers count from 1."""
        return InputError(f"table {self.table!r}, column {self.name!r}, row {row + 1}: {problem}")

    def refuse(self, faulty: NDArray[np.bool_], problem: str) -> None:
        """Raise the error about the first row marked ``faulty``, if one is, and say how many there are."""
        if faulty.any():
            more = f" ({faulty.sum():,} such rows)" if faulty.sum() > 1 else ""
            raise self.fault(int(faulty.argmax()), f"{problem}{more}")

    def numbers(self) -> Floats:
        """The values as floats."""
        array = self._array()
        if array.dtype.kind in "iuf":
            numbers = array.astype(np.float64)
        else:
            numbers = np.fromiter((self._number(*item) for item in enumerate(array)), np.float64, len(array))
        self.refuse(np.isnan(numbers), _MISSING_FAULT)
        return numbers

    def texts(self) -> list[str]:
        """The values as strings; numbers are refused, for two parties rarely print them alike."""
        return [self._text(*item) for item in enumerate(self._array())]

    def days(self) -> Floats:
        """Dates, times of day cut off, as days since 1970-01-01; text must be written 2001-12-31."""
        array = self._array()
        if array.dtype.kind == "M":
            self.refuse(np.isnat(array), _MISSING_FAULT)
            return array.astype("datetime64[D]").astype(np.float64)
        return np.fromiter((self._day(*item) for item in enumerate(array)), np.float64, len(array))

    def labels(self) -> list[str]:
        """Values that are only ever compared for equality, as text: 1990, 1990.0 and "1990" are one label."""
        array = self._array()
        if array.dtype.kind == "M":
            self.refuse(np.isnat(array), _MISSING_FAULT)
            return [str(day) for day in array.astype("datetime64[D]")]
        return [self._label(*item) for item in enumerate(array)]

    def _array(self) -> NDArray[Any]:
        values = _to_local_time(self.values)
        if hasattr(values, "__array__"):
            array = np.asarray(values)
        else:
            array = np.fromiter(values, dtype=object, count=len(values))
        if array.ndim != 1:
            raise InputError(f"table {self.table!r}, column {self.name!r} has {array.ndim} dimensions; give one")
        if isinstance(values, np.ma.MaskedArray):
            self.refuse(np.ma.getmaskarray(values), _MISSING_FAULT)
        return array

    def _number(self, row: int, value: object) -> float:
        if is_missing(value):
            raise self.fault(row, _MISSING_FAULT)
        if not is_number(value):
            raise self.fault(row, "the value is no number; convert the column to numbers")
        try:
            return float(value)  # type: ignore[arg-type]
        except (OverflowError, ValueError):
            raise self.fault(row, "the number is too large for a computer's floats; correct it") from None

    def _text(self, row: int, value: object) -> str:
        if is_missing(value):
            raise self.fault(row, _MISSING_FAULT)
        if not isinstance(value, str):
            raise self.fault(row, "the value is no text; convert the column to text, alike at every party")
        return str(value)

    def _day(self, row: int, value: object) -> int:
        if is_missing(value):
            raise self.fault(row, _MISSING_FAULT)
        day = to_date(value)
        if day is None:
            raise self.fault(row, "the value is no date; convert the column to dates or to text like 2001-12-31")
        return day.toordinal() - _EPOCH

    def _label(self, row: int, value: object) -> str:
        if is_missing(value):
            raise self.fault(row, _MISSING_FAULT)
        if isinstance(value, date):
            return date(value.year, value.month, value.day).isoformat()
        if isinstance(value, str):
            return str(value)
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if whole or (isinstance(value, float | np.floating) and float(value).is_integer()):
            number = int(value)  # type: ignore[call-overload]
            if abs(number) <= _MAX_LABEL_NUMBER:
                return str(number)
        raise self.fault(row, "the value is neither text, whole number nor date; convert the column to one of them")


def _to_local_time(values: Any) -> Any:
    """Moments of a time zone as its clocks show them; NumPy would move them to Greenwich, and some to another day."""
    kind = getattr(values, "dtype", getattr(values, "type", None))
    if not (getattr(kind, "time_zone", None) or getattr(kind, "tz", None)):
        return values
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)
