"""Positions: exact distances at any resolution, in a coordinate system that only the key reveals."""

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import InputError, SettingError
from fedsim.linkage import topk
from fedsim.linkage.encoding import (
    DatePosition,
    IdentifierColumn,
    Key,
    NumberPosition,
    PlacePosition,
    Schema,
    SchemaField,
    StringFilter,
)
from fedsim.linkage.encoding.column_encodings import MAX_POSITION
from fedsim.privacy.geodesy import great_circle_metres
from fedsim.types import POSITION_DTYPE

PLACE = Schema([SchemaField("lat", PlacePosition(), longitude="lon")])
KEYS = Key(bytes(32)), Key(b"\1" * 32)


def places(n, seed=0, south=-90.0, west=-180.0, height=180.0, width=360.0):
    rng = np.random.default_rng(seed)
    return {"lat": south + height * rng.random(n), "lon": west + width * rng.random(n)}


def positions(encoded):
    return encoded.bits.view(POSITION_DTYPE).astype(float)


@pytest.mark.parametrize("metres", [0.1, 1.0, 1000.0])
def test_places_keep_their_distances_anywhere_on_earth(metres):
    schema, table = Schema([SchemaField("lat", PlacePosition(metres), longitude="lon")]), places(200)
    found = positions(schema.encode(table, KEYS[0]))
    ground = great_circle_metres(
        *(np.column_stack([table["lat"], table["lon"]])[part] for part in (slice(99), slice(99, 198)))
    )
    chord = 2 * 6_371_008.8 * np.sin(ground / 2 / 6_371_008.8)
    assert np.abs(np.linalg.norm(found[:99] - found[99:198], axis=1) - chord / metres).max() < 2


def test_dense_places_find_the_same_neighbours_as_the_plain_ones():
    ours, theirs = (places(n, n, 1.2, 103.6, 0.4, 0.4) for n in (400, 5000))
    encoded, _ = topk(*(PLACE.encode(table, KEYS[0]) for table in (ours, theirs)), metric="position", k=20)
    plain, _ = topk(*(np.column_stack(list(table.values())) for table in (ours, theirs)), metric="great-circle", k=20)
    assert np.mean([len(set(a) & set(b)) for a, b in zip(encoded, plain, strict=True)]) > 19.8


def test_a_trip_of_two_places_is_compared_by_both():
    trip = Schema([SchemaField(f"{end}_lat", PlacePosition(), longitude=f"{end}_lon") for end in ("from", "to")])
    table = {"from_lat": [0.0, 0.0], "from_lon": [0.0, 0.003], "to_lat": [0.0, 0.004], "to_lon": [0.0, 0.0]}
    here, there = positions(trip.encode(table, KEYS[0]))
    assert np.linalg.norm(here - there) == pytest.approx(0.005 * 111_195, abs=2)


def test_the_key_decides_the_coordinate_system():
    table = places(50)
    one, other = (positions(PLACE.encode(table, key)) for key in KEYS)
    assert np.abs(np.corrcoef(one.T, other.T)[:3, 3:]).max() < 0.999
    assert np.abs(one - other).max() > 1000
    numbers = [NumberPosition(1.0).encode(IdentifierColumn([0.0]), bytes([seed]) * 32) for seed in range(40)]
    assert len({number.tobytes() for number in numbers}) == 40


def test_numbers_and_dates_keep_their_differences():
    for encoding, values in (
        (NumberPosition(0.5), [3.0, 4.0, -7.5]),
        (DatePosition(), ["1984-07-31", "1984-08-02", "1984-07-10"]),
    ):
        here = encoding.encode(IdentifierColumn(values), bytes(32)).view(POSITION_DTYPE)[:, 0].astype(int)
        assert np.abs(here - here[0]).tolist() == [0, 2, 21]


def test_a_schema_of_positions_names_its_metric_and_survives_its_dictionary():
    schema = Schema(
        [*PLACE.fields, SchemaField("built", NumberPosition(10.0)), SchemaField("sold", DatePosition(30.0))]
    )
    assert schema.metric == "position"
    assert schema.columns == ("lat", "lon", "built", "sold")
    assert Schema.from_dict(schema.to_dict()) == schema


def test_values_outside_the_range_are_named_by_row():
    with raises(InputError, "outside-range") as caught:
        PLACE.encode({"lat": [1.0, 95.0], "lon": [0.0, 0.0]}, KEYS[0])
    assert (caught.value.row, caught.value.column) == (2, "lat")
    with raises(InputError, "outside-range"):
        NumberPosition(1.0).encode(IdentifierColumn([2.0 * MAX_POSITION]), bytes(32))


def test_a_schema_refuses_what_positions_cannot_do():
    place = PLACE.fields[0]
    with raises(SettingError, "mixed-schema"):
        Schema([place, SchemaField("name", StringFilter())])
    with raises(SettingError, "bad-longitude"):
        SchemaField("lat", PlacePosition())
    with raises(SettingError, "bad-longitude"):
        SchemaField("lat", NumberPosition(1.0), longitude="lon")
    with raises(SettingError, "missing-longitude"):
        PlacePosition().encode(IdentifierColumn([1.0]), bytes(32))
