"""Positions are a map without names, which a few known records place."""

import numpy as np

from fedsim.linkage.encoding import Key, PlacePosition, Schema, SchemaField
from fedsim.linkage.metrics import Position
from fedsim.privacy.mechanisms import PlanarLaplace
from fedsim_audit.attacks import map_attack


def found(places, rng):
    schema = Schema([SchemaField("lat", PlacePosition(), longitude="lon")])
    encoded = schema.encode({"lat": places[:, 0], "lon": places[:, 1]}, Key(bytes(32)))
    return Position().prepare(encoded, "secondary")


def test_ten_known_records_place_the_map_of_a_city():
    rng = np.random.default_rng(0)
    places = rng.uniform([1.2, 103.6], [1.5, 104.0], (500, 2))
    finding = map_attack(found(places, rng), places, np.arange(10), rng=rng)
    assert finding.score.value > 0.99
    assert (
        finding.figures["column 1: median error"] < 0.01 * finding.figures["column 1: median error of blind guessing"]
    )


def test_blurred_places_are_placed_where_they_were_moved_to():
    rng = np.random.default_rng(0)
    places = rng.uniform([1.2, 103.6], [1.5, 104.0], (500, 2))
    moved = PlanarLaplace(0.0005).displace(places, rng.random((500, 2)))  # 4 km on average
    finding = map_attack(found(moved, rng), places, np.arange(10), rng=rng)
    assert finding.score.value < 0.98
    assert finding.figures["column 1: median error"] > 0.01
