"""Identifiers as a linkage compares them: equal exactly where their filters are."""

from __future__ import annotations

from datetime import date

import numpy as np
import polars as pl
import pytest

from fedsim.linkage.encoding import DateFilter, Field, Key, NumericFilter, Schema, StringFilter
from fedsim.party.as_compared import as_compared
from fedsim.party.own_table import encode_table

TEXT, LITERAL = StringFilter(), StringFilter(normalised=False)
NUMBER, DATE = NumericFilter(-5, 5, 1.0), DateFilter(date(2000, 1, 1), date(2020, 1, 1), 30)
WAYS = [
    ([Field("x", TEXT)], {"x": ["Straße 1", "STRASSE  1 ", "Strasse 2"]}),
    ([Field("x", LITERAL)], {"x": ["Ada", "ADA", "Ada "]}),
    ([Field("x", TEXT), Field("x", LITERAL)], {"x": ["Ada", "ADA", "Ada"]}),
    ([Field("x", NUMBER)], {"x": ["1", "1.0", "-0"]}),
    ([Field("x", NUMBER)], {"x": [0.0, -0.0, 1.0]}),
    ([Field("x", DATE)], {"x": ["2001-12-31", " 2001-12-31", "2001-11-30"]}),
    ([Field("x", TEXT, salt="y")], {"x": ["ada", "Ada", "ada"], "y": ["S", "s", "t"]}),
    ([Field("x", TEXT, salt="y")], {"x": ["ada", "Ada", "ada"], "y": [1990, 1990, 1991]}),
]


@pytest.mark.parametrize(("fields", "cells"), WAYS)
def test_records_are_equal_exactly_where_their_filters_are(fields: list[Field], cells: dict[str, list[object]]) -> None:
    schema, frame = Schema(fields), pl.DataFrame(cells)
    bits = encode_table(schema, frame, Key(bytes(32)), "ours").bits
    rows = as_compared(schema, frame, "ours").rows()
    assert [[left == right for right in rows] for left in rows] == np.all(bits[:, None] == bits[None], axis=2).tolist()


def test_both_parties_see_the_same_wherever_they_keep_a_year() -> None:
    schema = Schema([Field("x", TEXT, salt="year")])
    ours, theirs = (pl.DataFrame({"x": ["ada"], "year": [year]}) for year in ("1990", 1990))
    assert as_compared(schema, ours, "ours").equals(as_compared(schema, theirs, "theirs"))
