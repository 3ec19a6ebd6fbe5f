"""Two ranks per field have the distances of the filters for which they stand."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.errors import InputError, SettingError
from fedsim.linkage import link
from fedsim.linkage.encoding import Key, NumericFilter, Schema, SchemaField, StringFilter
from fedsim_lab.rank_filters import schema_ranks
from reference_distances import hamming_of_ranks

KEY = Key(bytes(range(32)))
PEOPLE = {"weight": [61.0, 75.5], "height": [1.6, 1.78]}
SCHEMA = Schema([SchemaField("weight", NumericFilter(0, 200, 20)), SchemaField("height", NumericFilter(0, 3, 0.2))])


def test_ranks_give_the_distances_of_the_filters():
    ranks = schema_ranks(SCHEMA, PEOPLE, KEY)
    bits = np.unpackbits(SCHEMA.encode(PEOPLE, KEY).bits, axis=1)
    assert (ranks.shape, ranks.dtype) == ((2, 4), np.int64)
    assert hamming_of_ranks(*ranks.reshape(2, 2, 2)).sum() == (bits[0] != bits[1]).sum()


def test_ranks_link_as_they_are():
    bits = np.unpackbits(SCHEMA.encode(PEOPLE, KEY).bits, axis=1)
    ranks = schema_ranks(SCHEMA, PEOPLE, KEY)
    assert link(ranks[:1], ranks[1:], metric="rank-hamming", k=1).distance.item() == (bits[0] != bits[1]).sum()


def test_ranks_of_columns_that_differ_in_length_are_refused():
    with pytest.raises(InputError) as caught:
        schema_ranks(SCHEMA, {**PEOPLE, "height": [1.6]}, KEY)
    assert caught.value.code == "ragged-table"


def test_texts_have_no_ranks():
    with pytest.raises(SettingError) as caught:
        schema_ranks(Schema([SchemaField("name", StringFilter())]), {"name": ["Ada"]}, KEY)
    assert caught.value.code == "no-ranks"
