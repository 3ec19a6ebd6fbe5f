"""The bits of a fixed table under a fixed key never change.

Filters of two organisations are compared across releases. If this test fails, the change breaks every encoded table in
the world: undo it, or raise ``VERSION`` in the schema and write the new bits here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.errors import SettingError
from fedsim.linkage.encoding import Key, Schema

GOLDEN = json.loads(Path(__file__).with_name("encoded_people.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["what"])
def test_the_bits_of_a_fixed_table_never_change(case):
    encoded = Schema.from_dict(case["schema"]).encode(GOLDEN["table"], Key(bytes.fromhex(GOLDEN["key"])))
    assert [row.tobytes().hex() for row in encoded.bits] == case["filters"]
    assert encoded.fingerprint == case["fingerprint"]


@pytest.mark.parametrize("schema", GOLDEN["removed"])
def test_an_encoding_that_is_gone_is_refused_by_name(schema):
    with pytest.raises(SettingError) as caught:
        Schema.from_dict(schema)
    assert caught.value.code == "removed-setting"
