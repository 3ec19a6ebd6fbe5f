"""A record that lacks one of several fields is compared by the others."""

import numpy as np
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.errors import InputError
from fedsim.linkage import topk
from fedsim.linkage.encoding import Key, NumberPosition, NumericFilter, Schema, SchemaField, StringFilter

KEY = Key(bytes(32))
PEOPLE = Schema([SchemaField("name", StringFilter()), SchemaField("age", NumericFilter(0, 120, 5))])
TABLE = {"name": ["ada", None, "alan", None], "age": [36.0, 41.0, None, 50.0]}


@pytest.mark.parametrize("records", [TABLE, pl.DataFrame(TABLE), pl.DataFrame(TABLE).to_pandas()])
def test_the_filter_of_a_missing_field_is_empty_and_the_others_are_as_ever(records):
    bits = PEOPLE.encode(records, KEY).bits
    names, ages = bits[:, :128], bits[:, 128:]
    assert names.any(axis=1).tolist() == [True, False, True, False]
    assert ages.any(axis=1).tolist() == [True, True, False, True]
    whole = PEOPLE.encode({"name": ["ada", "bob", "alan", "cy"], "age": [36.0, 41.0, 1.0, 50.0]}, KEY).bits
    assert (names[[0, 2]] == whole[[0, 2], :128]).all()
    assert (ages[[0, 1, 3]] == whole[[0, 1, 3], 128:]).all()


def test_a_record_finds_its_twin_by_what_both_have():
    ours = PEOPLE.encode({"name": ["ada", None], "age": [36.0, 41.0]}, KEY)
    theirs = PEOPLE.encode({"name": ["bob", "ada", "grace"], "age": [80.0, None, 41.5]}, KEY)
    assert topk(ours, theirs, metric="dice", k=1)[0].tolist() == [[1], [2]]


def test_a_record_without_any_field_is_refused_by_its_row():
    with raises(InputError, "no-identifiers", row=2):
        PEOPLE.encode({"name": ["ada", None], "age": [36.0, None]}, KEY)


def test_a_fault_beside_gaps_is_named_by_its_row_in_the_table():
    with raises(InputError, "outside-range", row=3):
        PEOPLE.encode({"name": ["ada", "bob", "alan"], "age": [None, 41.0, 999.0]}, KEY)


@pytest.mark.parametrize("encoding", [NumberPosition(1.0), NumericFilter(0, 120, 5)])
def test_a_single_field_and_positions_need_every_value(encoding):
    with raises(InputError, "missing-cell"):
        Schema([SchemaField("age", encoding)]).encode({"age": np.array([1.0, np.nan])}, KEY)
