"""Whatever a table may hold: read alike, or refused by row and without the value."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedsim.errors import InputError
from fedsim.linkage.encoding.columns import IdentifierColumn

NUMBERS = [
    [1, 2.5],
    (Decimal(1), Decimal("2.5")),
    np.array([1, 2.5], dtype=np.float32),
    np.array([1, 2.5], dtype=object),
    pl.Series([1.0, 2.5]),
    pd.Series([1, 2.5]),
]
DAYS = [
    [date(1970, 1, 2), date(1969, 12, 31)],
    ["1970-01-02", "1969-12-31"],
    [datetime(1970, 1, 2, 23, 59, tzinfo=UTC), date(1969, 12, 31)],
    np.array(["1970-01-02T23:59", "1969-12-31T12:00"], dtype="datetime64[m]"),
    pl.Series([date(1970, 1, 2), date(1969, 12, 31)]),
    pd.Series(pd.to_datetime(["1970-01-02", "1969-12-31"])),
]
MISSING = [None, float("nan"), np.float64("nan"), pd.NA, pd.NaT]


@pytest.mark.parametrize("values", NUMBERS)
def test_numbers_of_any_frame_are_read_alike(values):
    assert IdentifierColumn(values).numbers().tolist() == [1.0, 2.5]


@pytest.mark.parametrize("values", [["a", "b"], np.array(["a", "b"]), pl.Series(["a", "b"]), pd.Series(["a", "b"])])
def test_texts_of_any_frame_are_read_alike(values):
    texts = IdentifierColumn(values).texts()
    assert texts == ["a", "b"]
    assert {type(text) for text in texts} == {str}


@pytest.mark.parametrize("values", DAYS)
def test_dates_of_any_frame_are_read_alike(values):
    assert IdentifierColumn(values).days().tolist() == [1.0, -1.0]


@pytest.mark.parametrize(
    "values", [[1990], [1990.0], ["1990"], np.array([1990], np.int16), np.array([1990], np.float32)]
)
def test_equal_labels_are_equal_whatever_their_type(values):
    assert IdentifierColumn(values).labels() == ["1990"]


@pytest.mark.parametrize("values", [*DAYS])
def test_dates_make_one_label_whatever_their_type(values):
    assert IdentifierColumn(values).labels() == ["1970-01-02", "1969-12-31"]


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize(
    "reading", [IdentifierColumn.numbers, IdentifierColumn.texts, IdentifierColumn.days, IdentifierColumn.labels]
)
def test_a_missing_value_is_named_by_its_row(reading, missing):
    with pytest.raises(InputError, match="table 'primary', column 'age', row 1: the value is missing"):
        reading(IdentifierColumn([missing, missing], "age", "primary"))


def test_missing_values_of_typed_columns_are_found():
    with pytest.raises(InputError, match="row 2"):
        IdentifierColumn(pl.Series([1, None])).numbers()
    with pytest.raises(InputError, match="row 2"):
        IdentifierColumn(np.array(["2000-01-01", "NaT"], dtype="datetime64[D]")).days()
    with pytest.raises(InputError, match="row 3"):
        IdentifierColumn(pl.Series(["a", "b", None])).texts()


FAULTS = [
    (IdentifierColumn.numbers, "canary"),
    (IdentifierColumn.numbers, True),
    (IdentifierColumn.texts, 987654321),
    (IdentifierColumn.texts, b"canary"),
    (IdentifierColumn.days, "31.12.1987"),
    (IdentifierColumn.days, "1987-02-31"),
    (IdentifierColumn.days, "1987-W01-1"),
    (IdentifierColumn.days, "80-12-02"),
    (IdentifierColumn.days, "1987-02-03 x"),
    (IdentifierColumn.numbers, 10**400),
    (IdentifierColumn.numbers, Decimal("sNaN")),
    (IdentifierColumn.days, 987654321),
    (IdentifierColumn.labels, 1.5),
    (IdentifierColumn.labels, True),
    (IdentifierColumn.labels, b"canary"),
]


@pytest.mark.parametrize(("reading", "value"), FAULTS)
def test_a_value_of_the_wrong_type_is_named_by_row_and_never_shown(reading, value):
    with pytest.raises(InputError, match="column 'age', row 1") as caught:
        reading(IdentifierColumn([value], "age"))
    assert str(value) not in str(caught.value)


ZONED = pl.Series([datetime(1970, 1, 2), datetime(1969, 12, 31)]).dt.replace_time_zone("Asia/Singapore")


@pytest.mark.parametrize(
    "values", [ZONED, ZONED.to_arrow(), pd.Series(ZONED.to_list())], ids=["polars", "arrow", "pandas"]
)
def test_a_moment_has_the_date_of_its_own_zone(values):
    assert IdentifierColumn(values).days().tolist() == [1.0, -1.0]
    assert IdentifierColumn(values).labels() == ["1970-01-02", "1969-12-31"]


@pytest.mark.parametrize("values", [[1.0, 2.0], ["a", "b"], np.array(["2000-01-01"] * 2, "datetime64[D]")])
@pytest.mark.parametrize(
    "reading", [IdentifierColumn.numbers, IdentifierColumn.texts, IdentifierColumn.days, IdentifierColumn.labels]
)
def test_a_masked_cell_is_missing(reading, values):
    with pytest.raises(InputError, match="row 2: the value is missing"):
        reading(IdentifierColumn(np.ma.array(values, mask=[False, True])))


def test_written_moments_count_by_their_day():
    assert IdentifierColumn(["1970-01-02T23:59+08:00", "1969-12-31 12:00:00"]).days().tolist() == [1.0, -1.0]


def test_a_label_of_thousands_of_digits_is_refused():
    with pytest.raises(InputError, match="row 1: the value is neither text"):
        IdentifierColumn([10**5000]).labels()


def test_a_column_has_one_dimension():
    with pytest.raises(InputError, match="2 dimensions"):
        IdentifierColumn(np.zeros((2, 2))).numbers()


def test_a_column_never_shows_its_values():
    assert "canary" not in repr(IdentifierColumn(["canary"], "name"))
