"""What the parties agree on: kept in text, bound to the key, applied to tables."""

from __future__ import annotations

import json
from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding import (
    DateFilter,
    Key,
    NumericFilter,
    Schema,
    SchemaField,
    StringFilter,
)

KEY = Key(bytes(range(32)))
PEOPLE = {"name": ["Ada Lovelace", "Alan Turing"], "born": ["1815-12-10", "1912-06-23"], "height": [1.6, 1.78]}
NAME = SchemaField("name", StringFilter())
BORN = SchemaField("born", DateFilter(date(1800, 1, 1), date(2030, 12, 31), threshold=365))
HEIGHT = SchemaField("height", NumericFilter(0, 3, 0.2))
FULL = Schema(
    [SchemaField("name", StringFilter(q=3), salt="born"), BORN, HEIGHT],
)


@pytest.mark.parametrize("schema", [Schema([NAME]), FULL, Schema([NAME, BORN])])
def test_a_schema_survives_json(schema):
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_what_is_left_out_takes_its_default():
    described = {"version": 1, "fields": [{"column": "name", "encoding": {"kind": "string"}}]}
    assert Schema.from_dict(described) == Schema([NAME])


def test_equal_schemas_have_equal_fingerprints_whoever_wrote_them():
    whole, floats = (
        Schema([SchemaField("age", NumericFilter(0, 120, 5))]),
        Schema((SchemaField("age", NumericFilter(0.0, 120.0, 5.0)),)),
    )
    assert whole.fingerprint(KEY) == floats.fingerprint(KEY)
    assert len(whole.fingerprint(KEY)) == 64


def test_any_change_of_schema_or_key_changes_the_fingerprint():
    schemas = [Schema([NAME]), Schema([NAME, BORN]), Schema([BORN, NAME])]
    schemas += [
        Schema([SchemaField("name", StringFilter(q=3))]),
        Schema([SchemaField("name", StringFilter(), salt="born")]),
    ]
    prints = {schema.fingerprint(key) for schema in schemas for key in (KEY, Key(bytes(32)))}
    assert len(prints) == 10


def test_an_encoded_table_has_the_bits_and_fingerprint_it_states():
    table = FULL.encode(PEOPLE, KEY, np.random.default_rng(0))
    assert table.n_bits == FULL.n_bits == 3072
    assert table.bits.shape == (2, 384)
    assert table.fingerprint == FULL.fingerprint(KEY)


def test_frames_of_any_library_encode_alike():
    schema, frame = Schema([NAME, BORN, HEIGHT]), pl.DataFrame(PEOPLE).with_columns(pl.col("born").str.to_date())
    expected = schema.encode(PEOPLE, KEY).bits
    assert (schema.encode(frame.to_dict(), KEY).bits == expected).all()
    for table in (frame, frame.to_arrow(), pd.DataFrame(PEOPLE), dict(pd.DataFrame(PEOPLE))):
        assert (schema.encode(table, KEY).bits == expected).all()


@pytest.mark.parametrize("records", [["Ann Secret", "Bob"], [("Ann Secret",)], "Ann Secret", np.array(["Ann Secret"])])
def test_what_has_no_column_names_is_refused_without_showing_it(records):
    with pytest.raises(InputError) as caught:
        Schema([NAME]).encode(records, KEY)
    assert caught.value.code == "unknown-table-type"
    assert "Ann" not in str(caught.value)


def test_a_column_that_is_a_single_value_is_refused():
    with pytest.raises(InputError) as caught:
        Schema([NAME]).encode({"name": "Ann Secret"}, KEY)
    assert caught.value.code == "bad-column"
    assert "Ann" not in str(caught.value)


def test_a_key_of_the_wrong_type_is_refused_without_showing_it():
    with pytest.raises(SettingError) as caught:
        FULL.encode(PEOPLE, "canary")
    assert caught.value.code == "bad-key"
    assert "canary" not in str(caught.value)


BAD_PARTS = [
    lambda: Schema(["n"]),
    lambda: Schema("n"),
    lambda: Schema(5),
    lambda: Schema([SchemaField]),
    lambda: SchemaField("n", "string"),
]


@pytest.mark.parametrize("make", BAD_PARTS)
def test_elements_of_a_wrong_type_are_refused(make):
    with pytest.raises(SettingError) as caught:
        make()
    assert caught.value.code in ("wrong-type", "bad-encoding")


def test_numpy_scalars_are_settings_like_any_other():
    numpy = Schema(
        [
            SchemaField("name", StringFilter(np.int64(2), hashes=np.int32(20), padded=np.bool_(True))),
            SchemaField("height", NumericFilter(np.float32(0), np.int8(3), np.float32(0.25))),
        ],
    )
    plain = Schema([NAME, SchemaField("height", NumericFilter(0, 3, 0.25))])
    assert Schema.from_dict(json.loads(json.dumps(numpy.to_dict()))) == plain
    assert numpy.fingerprint(KEY) == plain.fingerprint(KEY)
    assert type(numpy.fields[1].encoding.threshold) is float


def test_an_empty_table_encodes_to_an_empty_table():
    assert Schema([NAME, BORN]).encode({"name": [], "born": []}, KEY).bits.shape == (0, 256)


def test_two_fields_of_one_column_get_pivots_of_their_own():
    bits = Schema([HEIGHT, HEIGHT]).encode(PEOPLE, KEY).bits
    assert (bits[:, :128] != bits[:, 128:]).any()


def test_one_key_under_two_schemas_gives_unrelated_filters():
    alone = Schema([HEIGHT]).encode(PEOPLE, KEY).bits
    beside = Schema([HEIGHT, BORN]).encode(PEOPLE, KEY).bits[:, :128]
    assert (alone != beside).any()


def test_columns_are_those_of_fields_and_salts():
    assert FULL.columns == ("name", "born", "height")


BAD_TABLES = [
    {"nam": ["a"]},
    {"name": ["a", None], "born": ["2000-01-01", None]},
    {"name": ["a"], "born": ["2000-01-01"] * 2},
    {"name": ["a"], "born": [3.5]},
]


@pytest.mark.parametrize("table", BAD_TABLES)
def test_a_table_that_does_not_fit_is_refused(table):
    with pytest.raises(InputError) as caught:
        Schema([NAME, BORN]).encode(table, KEY, table="secondary")
    assert "secondary" in str(caught.value)


def test_a_salt_of_another_length_is_refused():
    with pytest.raises(InputError) as caught:
        Schema([SchemaField("name", StringFilter(), salt="born")]).encode({"name": ["a"], "born": [1, 2]}, KEY)
    assert caught.value.code == "ragged-table"


def described(**changes):
    return {**Schema([NAME, HEIGHT]).to_dict(), **changes}


NUMERIC = {"kind": "numeric", "low": 0, "high": 1, "threshold": 0.1}
BAD_SCHEMAS = [
    ([], "wrong-type"),
    ({"version": 1}, "missing-setting"),
    (described(version=2), "schema-version"),
    (described(feilds=[]), "unknown-setting"),
    (described(fields=[]), "bad-field-count"),
    (described(fields={}), "wrong-type"),
    (described(fields=["name"]), "wrong-type"),
    (described(fields=[{"column": "name"}]), "missing-setting"),
    (described(fields=[{"column": 5, "encoding": NUMERIC}]), "bad-column-name"),
    (described(fields=[{"column": "a", "encoding": NUMERIC, "salt": "b"}]), "not-salted"),
    (described(fields=[{"column": "a", "encoding": {"kind": "numerik"}}]), "unknown-kind"),
    (described(fields=[{"column": "a", "encoding": {"kind": ["numeric"]}}]), "unknown-kind"),
    (described(fields=[{"column": "a", "encoding": {"kind": "numeric", "low": 0}}]), "missing-setting"),
    (described(fields=[{"column": "a", "encoding": {**NUMERIC, "treshold": 1}}]), "unknown-setting"),
    (described(fields=[{"column": "a", "encoding": {**NUMERIC, "bits": "512"}}]), None),
    (described(fields=[{"column": "a", "encoding": {**NUMERIC, "kind": "date"}}]), "bad-date"),
    (described(combine={"kind": "union"}), "removed-setting"),
    (described(hardening=[{"kind": "balance"}]), "removed-setting"),
    (described(fields=[{"column": "a", "encoding": {"kind": "words"}}]), "removed-setting"),
]


@pytest.mark.parametrize(("broken", "code"), BAD_SCHEMAS)
def test_an_invalid_schema_is_refused(broken, code):
    with pytest.raises(SettingError) as caught:
        Schema.from_dict(broken)
    assert code is None or caught.value.code == code


def test_a_schema_larger_than_memory_is_refused():
    with pytest.raises(SettingError) as caught:
        Schema([SchemaField("a", NumericFilter(0, 1, 0.1, bits=1 << 26))] * 2)
    assert caught.value.code == "filter-too-large"
