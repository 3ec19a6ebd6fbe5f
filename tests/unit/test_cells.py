"""Every reader of identifiers, features and labels reads cells by the same rules, and no fault shows a value."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from fedsim.cells import CellType, FaultKind, parse_iso_datetime, read_cells, rewrite_cells, strip_blanks
from fedsim.errors import InputError
from fedsim.linkage import identifiers
from fedsim.linkage.encoding import IdentifierColumn

NUMBER, TEXT, DATE, CATEGORY, KEY = CellType.NUMBER, CellType.TEXT, CellType.DATE, CellType.CATEGORY, CellType.KEY
CANARY = "Zaphod"
MISSING = [None, float("nan"), np.float64("nan"), pd.NA, pd.NaT]
ZONED = pl.Series([datetime(1970, 1, 2), datetime(1969, 12, 31)]).dt.replace_time_zone("Asia/Singapore")
DAYS = [
    [date(1970, 1, 2), date(1969, 12, 31)],
    ["1970-01-02", "1969-12-31"],
    [datetime(1970, 1, 2, 23, 59, tzinfo=UTC), date(1969, 12, 31)],
    np.array(["1970-01-02T23:59", "1969-12-31T12:00"], dtype="datetime64[m]"),
    pl.Series([date(1970, 1, 2), date(1969, 12, 31)]),
    pd.Series(pd.to_datetime(["1970-01-02", "1969-12-31"])),
    ["1970-01-02T23:59+08:00", "1969-12-31 12:00:00"],
    ZONED,
    ZONED.to_arrow(),
    pa.chunked_array([ZONED.to_arrow()]),
    pd.Series(ZONED.to_list()),
]


def faults(column: Any, wanted: CellType, **options: bool) -> list[tuple[str, list[int]]]:
    return [(fault.kind.value, fault.rows.tolist()) for fault in read_cells(column, wanted, **options).faults]


@pytest.mark.parametrize(
    "column",
    [
        [1, 2.5],
        (Decimal(1), Fraction(5, 2)),
        np.array([1, 2.5], dtype=np.float16),
        np.array([1, 2.5], dtype=object),
        pl.Series([1.0, 2.5]),
        pl.Series(["1", "2.5"]).cast(pl.Decimal(10, 2)),
        pd.Series([1, 2.5]),
        pa.chunked_array([[1.0], [2.5]]),
    ],
)
def test_numbers_of_any_library_are_read_alike(column):
    assert read_cells(column, NUMBER, parse=False).require("t").to_list() == [1.0, 2.5]
    assert IdentifierColumn(column).numbers().tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    "column",
    [["a", "b"], np.array(["a", "b"]), pl.Series(["a", "b"]), pd.Series(["a", "b"]), pd.Categorical(["a", "b"])],
)
def test_texts_of_any_library_are_read_alike(column):
    texts = IdentifierColumn(column).texts()
    assert texts == ["a", "b"]
    assert {type(text) for text in texts} == {str}


@pytest.mark.parametrize("column", DAYS)
def test_dates_of_any_library_are_read_alike_by_the_clock_of_their_own_zone(column):
    assert IdentifierColumn(column).days().tolist() == [1.0, -1.0]
    assert identifiers.days({"born": column}, "primary").tolist() == [[1.0], [-1.0]]
    assert read_cells(column, DATE).require("t").dt.date().to_list() == [date(1970, 1, 2), date(1969, 12, 31)]


@pytest.mark.parametrize("column", DAYS[:1] + DAYS[3:6] + DAYS[7:])
def test_dates_make_one_key_whatever_their_type(column):
    assert IdentifierColumn(column).labels() == ["1970-01-02", "1969-12-31"]


@pytest.mark.parametrize(
    "column", [[1990], [1990.0], ["1990"], np.array([1990], np.int16), np.array([1990], np.float32)]
)
def test_equal_keys_are_equal_whatever_their_type(column):
    assert IdentifierColumn(column).labels() == ["1990"]


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("wanted", CellType)
def test_a_missing_cell_is_missing_for_every_type(wanted, missing):
    assert faults([missing, missing], wanted) == [("missing-cell", [0, 1])]
    assert faults(np.array([missing], dtype=object), wanted) == [("missing-cell", [0])]


@pytest.mark.parametrize(
    ("column", "wanted", "row"),
    [
        (pl.Series([1, None]), NUMBER, 1),
        (pd.Series([1, None], dtype="Int64"), NUMBER, 1),
        (np.array(["2000-01-01", "NaT"], dtype="datetime64[D]"), DATE, 1),
        (pl.Series(["a", "b", None]), TEXT, 2),
        (np.ma.array([1.0, 2.0], mask=[False, True]), NUMBER, 1),
        (np.ma.array(["a", "b"], mask=[False, True]), TEXT, 1),
        (np.ma.array(np.array(["2000-01-01"] * 2, "datetime64[ns]"), mask=[False, True]), DATE, 1),
        (["a", "  "], TEXT, 1),
        (["1", " "], NUMBER, 1),
        (["1", "nan"], NUMBER, 1),
    ],
)
def test_missing_cells_of_typed_and_masked_columns_and_blanks_are_found(column, wanted, row):
    assert faults(column, wanted) == [("missing-cell", [row])]


BAD_CELLS = [
    (NUMBER, CANARY, "not-a-number"),
    (NUMBER, True, "not-a-number"),
    (NUMBER, np.bool_(True), "not-a-number"),
    (NUMBER, date(1984, 7, 31), "not-a-number"),
    (NUMBER, 10**400, "not-finite"),
    (NUMBER, Decimal("sNaN"), "not-finite"),
    (NUMBER, float("-inf"), "not-finite"),
    (NUMBER, -1e308, "number-too-large"),
    (TEXT, 987654321, "not-text"),
    (TEXT, b"Zaphod", "not-text"),
    (TEXT, "Zaphod\ud800", "not-unicode"),
    (DATE, "31.12.1987", "not-a-date"),
    (DATE, 987654321, "not-a-date"),
    (KEY, 1.5, "not-a-key"),
    (KEY, True, "not-a-key"),
    (KEY, b"Zaphod", "not-a-key"),
    (KEY, 10**1001, "not-a-key"),
]


@pytest.mark.parametrize(("wanted", "cell", "kind"), BAD_CELLS)
def test_a_bad_cell_is_named_by_row_and_never_shown(wanted, cell, kind):
    good = {NUMBER: 1, TEXT: "a", DATE: date(2000, 1, 1), KEY: 1}[wanted]
    with pytest.raises(InputError) as caught:
        read_cells([good, cell], wanted, name="age", parse=False).require("flats.csv")
    assert (caught.value.code, caught.value.column, caught.value.row) == (kind, "age", 2)
    assert repr(cell)[:9] not in str(caught.value)


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (CANARY, "not-a-number"),
        ("41,99", "decimal-comma"),
        ("-inf", "not-finite"),
        ("1e20", "number-too-large"),
        ("0x10", "not-a-number"),
    ],
)
def test_text_that_is_no_number_is_named_by_row_only(cell, kind):
    with pytest.raises(InputError) as caught:
        read_cells(pl.Series("lat", ["1.0", " 2.0", cell]), NUMBER).require("flats.csv")
    assert (caught.value.code, caught.value.column, caught.value.row) == (kind, "lat", 3)
    assert cell not in str(caught.value)


def test_all_faults_are_listed_in_the_order_of_their_rows():
    column = pl.Series("area", ["x", "1", "", "1,5", "y", "inf"])
    assert faults(column, NUMBER) == [
        ("not-a-number", [0, 4]),
        ("missing-cell", [2]),
        ("decimal-comma", [3]),
        ("not-finite", [5]),
    ]
    assert read_cells(column, NUMBER).values.to_list() == [None, 1.0, None, None, None, None]


@pytest.mark.parametrize("column", [["2013", " 0999 "], pl.Series([2013, 999]), pl.Series([2013.0, 999.0])])
def test_a_year_alone_is_a_date_in_its_middle(column):
    days = read_cells(column, DATE).values.dt.date().to_list()
    assert days == [date(2013, 7, 2), date(999, 7, 2)]


@pytest.mark.parametrize(
    ("column", "wanted", "parse"),
    [
        (pl.Series(["1984-07-31"]).str.to_date(), NUMBER, True),
        (pl.Series([True]), NUMBER, True),
        (pl.Series(["2"]), NUMBER, False),
        *[(pl.Series([cell]), TEXT, True) for cell in (1.5, 7, True, b"a", date(1984, 7, 31))],
        (pl.Series([19840731]), DATE, True),
        (pl.Series([[1]]), CATEGORY, True),
        ([1, "a"], CATEGORY, True),
    ],
)
def test_a_column_of_another_type_is_refused_as_a_whole(column, wanted, parse):
    cells = read_cells(column, wanted, parse=parse)
    assert [fault.kind for fault in cells.faults] == [FaultKind.WRONG_TYPE]
    assert cells.values.null_count() == len(column)


@pytest.mark.parametrize("cell", ["1984-07-31", " 1984-07-31 ", "1984-07-31T23:59", "1984-07-31 23:59:59.5+08:00"])
def test_a_date_is_written_year_month_day(cell):
    assert read_cells([cell], DATE).require("people.csv").dt.date().to_list() == [date(1984, 7, 31)]


@pytest.mark.parametrize(
    "cell",
    [
        *("31.07.1984", "80-12-02", "1984-7-31", "1984-02-30", "0000-01-01", "19840731", "1984-07-31 x"),
        *("１９８４-07-31", "1987-W01-1", "1984-07-31 25:61", ""),
    ],
)
def test_a_date_written_otherwise_is_refused(cell):
    assert faults(["1984-07-31", cell], DATE, parse=False) == [("not-a-date", [1])]


def test_whole_numbers_beyond_the_floats_are_a_fault_where_they_must_be_exact():
    for column in ([1, 2**53], np.array([1, 2**53]), pl.Series([1, 2**53], dtype=pl.UInt64)):
        assert faults(column, NUMBER, exact=True) == [("inexact-number", [1])]
        assert faults(column, NUMBER) == []


def test_whole_numbers_are_categories_without_decimals():
    assert read_cells(pl.Series([7.0, None, 1.5]), CATEGORY).values.to_list() == ["7", None, "1.5"]
    assert read_cells([" a ", ""], CATEGORY).values.to_list() == ["a", None]


def test_a_column_has_one_dimension():
    with pytest.raises(InputError) as caught:
        IdentifierColumn(np.zeros((2, 2))).numbers()
    assert caught.value.code == "column-shape"


@pytest.mark.parametrize(
    ("written", "cell", "read"),
    [
        ("decimal-comma", "512.345,00 €", 512345.0),
        ("decimal-comma", "1,5", 1.5),
        ("decimal-comma", "EUR -1.234", -1234.0),
        ("decimal-comma", "1\u202f234,5", 1234.5),
        ("decimal-comma", "1,5E+03", 1500.0),
        ("decimal-point", "$512,345", 512345.0),
        ("decimal-point", "-S$ 1,234.50", -1234.5),
        ("decimal-point", "CHF 1'234.50", 1234.5),
        ("decimal-point", "12,34,567", 1234567.0),
        ("decimal-point", "7", 7.0),
    ],
)
def test_numbers_are_read_as_they_are_written(written, cell, read):
    cells = rewrite_cells(pl.Series("price", [f" {cell} ", "NA", None]), written)
    assert read_cells(cells, NUMBER).values.to_list() == [read, None, None]
    assert cells[1:].to_list() == ["NA", None]


@pytest.mark.parametrize(
    ("written", "cell"), [("decimal-comma", "1.5,2"), ("decimal-point", "1,5"), ("decimal-point", "a1")]
)
def test_cells_that_are_written_otherwise_stay_as_they_are(written, cell):
    assert rewrite_cells(pl.Series([cell]), written).to_list() == [cell]


@pytest.mark.parametrize(
    ("written", "cell", "read"),
    [
        ("day-month-year", "31/12/2020", "2020-12-31"),
        ("day-month-year", "1.2.2020 9:05", "2020-02-01 09:05"),
        ("month-day-year", "12/31/2020", "2020-12-31"),
        ("year-month-day", "2020/2/1", "2020-02-01"),
        ("month-day-year", "31/12/2020", "31/12/2020"),
        ("day-month-year", "2020-12-31", "2020-12-31"),
    ],
)
def test_dates_are_read_as_they_are_written(written, cell, read):
    assert rewrite_cells(pl.Series([cell]), written).to_list() == [read]


def test_no_value_shows_in_a_repr():
    assert CANARY not in repr(IdentifierColumn([CANARY], "name"))
    assert CANARY not in repr(read_cells([CANARY], TEXT))


DIGITS = st.from_regex(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,7})?)?)?", fullmatch=True
)
ZONES = st.sampled_from(["", "", "", "Z", "+08:00", "-0330", " ", "\n", "x"])
WRITTEN = st.one_of(
    st.dates().map(date.isoformat),
    st.datetimes().map(str),
    st.datetimes().map(datetime.isoformat),
    st.builds(lambda text, zone: text + zone, DIGITS, ZONES),
    st.from_regex(r"[0-9]{4}", fullmatch=True),
    st.sampled_from(
        ["", "\u0662\u0660\u0661\u0663", "0000-01-01", "+2013-01-01", "2013-1-1", "2016-12-31T23:59:60", "T"]
    ),
    st.text(max_size=12),
    st.none(),
)


def read_one_by_one(cell: str | None) -> datetime | None:
    if cell is not None and len(cell) == 4 and cell.isdecimal() and int(cell):
        return datetime(int(cell), 7, 2)
    return None if cell is None else parse_iso_datetime(cell)


@given(st.lists(WRITTEN, max_size=30))
def test_dates_of_a_column_are_those_of_its_cells_one_by_one(cells: list[str | None]) -> None:
    column = pl.Series("day", cells, pl.String)
    texts, read = strip_blanks(column).to_list(), read_cells(column, DATE)
    expected = [read_one_by_one(text) for text in texts]
    assert read.values.to_list() == expected
    faulty = [row for fault in read.faults for row in fault.rows if fault.kind is FaultKind.NOT_A_DATE]
    assert faulty == [row for row, text in enumerate(texts) if text is not None and expected[row] is None]
