"""All readers of identifiers and features agree on what a cell is."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedsim.cells import parse_iso_datetime
from fedsim.data import columns
from fedsim.errors import InputError
from fedsim.linkage import identifiers
from fedsim.linkage.encoding import IdentifierColumn

DAY = date(1984, 7, 31)
MOMENTS = [
    "1984-07-31",
    "1984-07-31T09:30",
    "1984-07-31 09:30:15",
    "1984-07-31 09:30:00.5+08:00",
    "1984-07-31T09:30:00Z",
]


def objects(cell: object) -> np.ndarray:
    return np.array([cell], dtype=object)


@pytest.mark.parametrize("cell", MOMENTS)
def test_every_reader_reads_the_same_day(cell):
    cells = pl.Series("born", [cell])
    assert identifiers.days(objects(cell), "primary").item() == DAY.toordinal()
    assert IdentifierColumn([cell]).days().item() == (DAY - date(1970, 1, 1)).days
    assert columns.parse_required_dates(cells, table="t").item() == DAY
    assert columns.parse_dates(cells, party="primary").item().date() == DAY == parse_iso_datetime(cell).date()


@pytest.mark.parametrize("cell", ["31.07.1984", "1984-7-31", "1984-02-30", "1984-07-31 x", "1984-07-31 25:61"])
def test_what_is_no_date_is_none_to_every_reader(cell):
    cells = pl.Series("born", [cell])
    for read in (
        lambda: identifiers.days(objects(cell), "primary"),
        lambda: IdentifierColumn([cell]).days(),
        lambda: columns.parse_required_dates(cells, table="t"),
        lambda: columns.parse_dates(cells, party="primary"),
    ):
        with pytest.raises(InputError, match="date"):
            read()


@pytest.mark.parametrize("cell", [None, float("nan"), pd.NA, pd.NaT])
def test_what_is_missing_is_missing_to_every_reader(cell):
    for read in (
        lambda: identifiers.numbers(objects(cell), "primary"),
        lambda: identifiers.strings(objects(cell), "primary"),
        lambda: IdentifierColumn([cell]).numbers(),
        lambda: IdentifierColumn([cell]).texts(),
        lambda: IdentifierColumn([cell]).days(),
    ):
        with pytest.raises(InputError, match="missing"):
            read()


@pytest.mark.parametrize("cell", [2, 2.0, Decimal(2), Fraction(4, 2), np.int16(2), np.float32(2)])
def test_numbers_of_every_kind_are_numbers(cell):
    assert identifiers.numbers(objects(cell), "primary").item() == IdentifierColumn([cell]).numbers().item() == 2.0


@pytest.mark.parametrize("cell", [True, np.bool_(True), "2", date(1984, 7, 31)])
def test_nothing_else_is_a_number(cell):
    for read in (lambda: identifiers.numbers(objects(cell), "primary"), lambda: IdentifierColumn([cell]).numbers()):
        with pytest.raises(InputError, match="number"):
            read()
