"""What every encoding must keep; add yours to the list and it is held to all of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import ClassVar

import numpy as np
import pytest

from fedsim.errors import SettingError
from fedsim.linkage.encoding import (
    DateFilter,
    DatePosition,
    IdentifierColumn,
    Key,
    NumberPosition,
    NumericFilter,
    PlacePosition,
    Schema,
    SchemaField,
    StringFilter,
)
from fedsim.linkage.encoding.schema import element_from_dict, element_to_dict
from fedsim.registry import ENCODINGS

SUBKEYS = bytes(32), b"\1" * 32
ENCODED = [
    (NumericFilter(0, 10, 1, bits=72), [0, 5, 5, 10]),
    (DateFilter(date(2000, 1, 1), date(2001, 1, 1), 30), ["2000-01-01", "2000-05-05", "2000-05-05", "2001-01-01"]),
    (StringFilter(bits=136), ["ada", "alan", "alan", "grace"]),
    (NumberPosition(0.5), [0, 5, 5, 10]),
    (DatePosition(), ["2000-01-01", "2000-05-05", "2000-05-05", "2001-01-01"]),
]


@pytest.mark.parametrize(("encoding", "values"), ENCODED)
def test_an_encoding_gives_one_whole_filter_per_value(encoding, values):
    filters = encoding.encode(IdentifierColumn(values), SUBKEYS[0])
    assert filters.shape == (4, encoding.bits // 8)
    assert filters.dtype == np.uint8
    assert encoding.encode(IdentifierColumn([]), SUBKEYS[0]).shape == (0, encoding.bits // 8)


@pytest.mark.parametrize(("encoding", "values"), ENCODED)
def test_an_encoding_depends_on_value_and_key_alone(encoding, values):
    filters, other = (encoding.encode(IdentifierColumn(values), subkey) for subkey in SUBKEYS)
    assert (filters[1] == filters[2]).all()
    assert (filters[0] != filters[1]).any()
    assert (filters == encoding.encode(IdentifierColumn(list(values)), SUBKEYS[0])).all()
    assert (filters != other).any()


@pytest.mark.parametrize(
    ("kinds", "parts"),
    [
        (ENCODINGS, [*(encoding for encoding, _ in ENCODED), PlacePosition()]),
    ],
)
def test_every_part_is_known_to_the_schema_and_survives_its_description(kinds, parts):
    assert {type(part) for part in parts} == {kinds[kind] for kind in kinds}
    assert [element_from_dict(kinds, element_to_dict(part), "part") for part in parts] == parts


@pytest.mark.parametrize("elements", [(NumericFilter(0, 9, 1), NumericFilter(0.0, 9.0, 1.0))])
def test_an_integer_and_the_equal_float_are_one_setting(elements):
    described = [element_to_dict(element) for element in elements]
    assert repr(described[0]) == repr(described[1])


@dataclass(frozen=True)
class SoundFilter:
    """An encoding of another package: the first letter of a text."""

    KIND: ClassVar[str] = "sound"

    bits: int = 256

    def encode(self, column, subkey):
        return StringFilter(q=1, hashes=1, bits=self.bits).encode(
            IdentifierColumn([text[:1] for text in column.texts()], column.name, column.table), subkey
        )


def test_an_encoding_registered_from_outside_is_part_of_schemas():
    schema = Schema([SchemaField("name", SoundFilter(bits=128))])
    with ENCODINGS.temporarily("sound", SoundFilter, summary="The first letter of a text."):
        assert Schema.from_dict(schema.to_dict()) == schema
    table = schema.encode({"name": ["ada", "alan", "grace"]}, Key(bytes(32)))
    assert table.n_bits == 128
    assert (table.bits[0] == table.bits[1]).all()
    assert (table.bits[0] != table.bits[2]).any()
    with pytest.raises(SettingError) as caught:
        Schema.from_dict(schema.to_dict())
    assert caught.value.code == "unknown-kind"
