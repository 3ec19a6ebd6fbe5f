"""One identifier column of an encoder: its cells as numbers, text, days or keys, and the names its errors use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError
from fedsim.types import Floats

if TYPE_CHECKING:
    import polars as pl


class ColumnValues(Protocol):
    """A list, an array, or a column of any data frame."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, eq=False)
class IdentifierColumn:
    """The values of one column, and the names its errors use; the values never show in its ``repr``.

    >>> IdentifierColumn([1.5, 2], "age", "primary")
    IdentifierColumn(name='age', table='primary')
    """

    values: ColumnValues = field(repr=False)
    name: str = "value"
    table: str = "table"

    def __len__(self) -> int:
        return len(self.values)

    def refuse(self, faulty: NDArray[np.bool_], problem: str, code: str) -> None:
        """Raise an error about the first row marked ``faulty``, if there is one, and say how many there are."""
        if faulty.any():
            row, count = int(faulty.argmax()) + 1, int(faulty.sum())
            more = f" ({count:,} such rows)" if count > 1 else ""
            message = f"{self.table}: column {self.name!r}, row {row} {problem}{more}"
            raise InputError(message, code=code, table=self.table, column=self.name, row=row, count=count)

    def numbers(self) -> Floats:
        """Return the values as floats."""
        return self._read("number").to_numpy()

    def texts(self) -> list[str]:
        """Return the values as strings."""
        return self._read("text").to_list()

    def days(self) -> Floats:
        """Return dates, without their times, as days since 1970-01-01."""
        return self._read("date").dt.date().to_physical().to_numpy().astype(np.float64)

    def labels(self) -> list[str]:
        """Return values that are only compared for equality as text: 1990, 1990.0 and "1990" are one label."""
        return self._read("key").to_list()

    def _read(self, wanted: str) -> pl.Series:
        from fedsim.cells import CellType, read_cells  # noqa: PLC0415 - polars is heavy, and config files only name encodings

        return read_cells(self.values, CellType(wanted), name=self.name, parse=False).require(self.table)
