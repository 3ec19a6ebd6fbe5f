"""Dates are numbers of days."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import numpy as np
import pytest

from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding import DateFilter, IdentifierColumn, NumericFilter

SUBKEY = bytes(32)
LIVES = DateFilter(date(1900, 1, 1), date(2030, 12, 31), threshold=365)


def test_a_date_filter_is_the_numeric_filter_of_its_days():
    days = NumericFilter(-25567, 22279, 365)
    dates, numbers = IdentifierColumn([date(1970, 1, 1), date(1970, 1, 31)]), IdentifierColumn([0, 30])
    assert (LIVES.encode(dates, SUBKEY) == days.encode(numbers, SUBKEY)).all()


def test_distance_grows_with_the_days_between():
    born = date(1984, 2, 29)
    later = [born + timedelta(days=days) for days in (0, 30, 200, 500)]
    filters = np.unpackbits(LIVES.encode(IdentifierColumn(later), SUBKEY), axis=1)
    distances = (filters != filters[0]).sum(axis=1)
    assert distances[0] == 0
    assert (np.diff(distances) > 0).all()


def test_a_date_outside_the_range_is_named_by_row_and_never_shown():
    with pytest.raises(InputError) as caught:
        LIVES.encode(IdentifierColumn(["1999-12-31", "1899-12-30"], "born"), SUBKEY)
    assert (caught.value.code, caught.value.column, caught.value.row) == ("outside-range", "born", 2)
    assert "1899" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [{"low": "1900-01-01"}, {"low": datetime(1900, 1, 1)}, {"high": date(1900, 1, 1)}, {"threshold": 0}],
)
def test_a_setting_outside_its_range_is_refused(change):
    with pytest.raises(SettingError) as caught:
        DateFilter(**{"low": date(1900, 1, 1), "high": date(2030, 12, 31), "threshold": 365, **change})
    assert caught.value.name == next(iter(change))
