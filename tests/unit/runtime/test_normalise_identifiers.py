"""Identifiers as a linkage compares them: equal exactly where their filters are."""

from __future__ import annotations

from datetime import date

import numpy as np
import polars as pl
import pytest

from fedsim.linkage.encoding import DateFilter, Key, NumericFilter, Schema, SchemaField, StringFilter
from fedsim.runtime.party_data import encode_table, normalise_identifiers

TEXT, LITERAL = StringFilter(), StringFilter(normalised=False)
NUMBER, DATE = NumericFilter(-5, 5, 1.0), DateFilter(date(2000, 1, 1), date(2020, 1, 1), 30)
WAYS = [
    ([SchemaField("x", TEXT)], {"x": ["Straße 1", "STRASSE  1 ", "Strasse 2"]}),
    ([SchemaField("x", LITERAL)], {"x": ["Ada", "ADA", "Ada "]}),
    ([SchemaField("x", TEXT), SchemaField("x", LITERAL)], {"x": ["Ada", "ADA", "Ada"]}),
    ([SchemaField("x", NUMBER)], {"x": ["1", "1.0", "-0"]}),
    ([SchemaField("x", NUMBER)], {"x": [0.0, -0.0, 1.0]}),
    ([SchemaField("x", DATE)], {"x": ["2001-12-31", " 2001-12-31", "2001-11-30"]}),
    ([SchemaField("x", TEXT, salt="y")], {"x": ["ada", "Ada", "ada"], "y": ["S", "s", "t"]}),
    ([SchemaField("x", TEXT, salt="y")], {"x": ["ada", "Ada", "ada"], "y": [1990, 1990, 1991]}),
]


@pytest.mark.parametrize(("fields", "cells"), WAYS)
def test_records_are_equal_exactly_where_their_filters_are(
    fields: list[SchemaField], cells: dict[str, list[object]]
) -> None:
    schema, frame = Schema(fields), pl.DataFrame(cells)
    bits = encode_table(schema, frame, Key(bytes(32)), "ours").bits
    rows = normalise_identifiers(schema, frame, "ours").rows()
    assert [[left == right for right in rows] for left in rows] == np.all(bits[:, None] == bits[None], axis=2).tolist()


def test_both_parties_see_the_same_wherever_they_keep_a_year() -> None:
    schema = Schema([SchemaField("x", TEXT, salt="year")])
    ours, theirs = (pl.DataFrame({"x": ["ada"], "year": [year]}) for year in ("1990", 1990))
    assert normalise_identifiers(schema, ours, "ours").equals(normalise_identifiers(schema, theirs, "theirs"))
