"""The coordinator reads numbers and names off filters without any key."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsim.config.stored_audit import Adversary
from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding import BitFlip, IdentifierColumn, Key, PlacePosition, Schema, SchemaField
from fedsim.linkage.encoding.column_encodings import NumericFilter, StringFilter
from fedsim.linkage.metrics import Position
from fedsim.privacy.mechanisms import PlanarLaplace
from fedsim_audit.attacks.filter_attacks import (
    NameList,
    filter_similarity,
    frequency_attack,
    graph_attack,
    map_attack,
    name_similarity,
    order_attack,
)
from fedsim_lab.datasets.generated import random_firm_name

KEY = b"k" * 32
CODE = StringFilter(bits=512, hashes=12)
NAMES = sorted({random_firm_name(np.random.default_rng(seed)) for seed in range(140)})[:100]
COMMON = 1.0 / np.arange(1, len(NAMES) + 1)


def chance(seed=0) -> np.random.Generator:
    return np.random.default_rng(seed)


def places(n=1_500):
    """Two columns of numbers, denser in the middle."""
    return np.clip(chance(4).normal(5.0, 2.0, (n, 2)), 0.0, 10.0)


def filters_of(numbers):
    code = NumericFilter(0.0, 10.0, 0.8, bits=256)
    fields = [code.encode(IdentifierColumn(numbers[:, axis]), bytes([axis]) * 32) for axis in range(2)]
    return np.packbits(np.unpackbits(np.hstack(fields), axis=1)[:, chance(7).permutation(512)], axis=1)


def flipped(bits, probability):
    return BitFlip(math.log((1 - probability) / probability)).apply(bits, chance(8))


def encoded(names):
    return CODE.encode(IdentifierColumn(names), KEY)


def records(n=2_000):
    """Rows of the list, the commoner names more often, and the public's own count of them."""
    weight = COMMON / COMMON.sum()
    drawn = chance(1).choice(len(NAMES), n, p=weight)
    public = np.bincount(chance(2).choice(len(NAMES), 20 * n, p=weight), minlength=len(NAMES))
    return drawn, NameList(NAMES, public.astype(np.float64), CODE.grams)


def test_shuffled_numeric_filters_give_the_order_away():
    numbers = places()
    found = order_attack(filters_of(numbers), numbers, np.arange(10), rng=chance())
    assert found.score.low > 0.95
    assert found.adversary is Adversary.COORDINATOR
    for column in ("column 1", "column 2"):
        blind = found.figures[f"{column}: median error of blind guessing"]
        assert found.figures[f"{column}: median error"] < blind / 4


def test_random_flips_are_reckoned_out():
    numbers = places()
    noisy = flipped(filters_of(numbers), 0.03)
    assert order_attack(noisy, numbers, np.arange(10), rng=chance(), flip_probability=0.03).score.low > 0.85


def test_filters_without_numbers_in_them_have_no_order():
    bits = chance(1).integers(0, 256, (500, 32), np.uint8)
    found = order_attack(bits, places(500), np.arange(10), rng=chance())
    assert found.score.value < 0.2


def test_blurring_places_first_hides_them_from_the_coordinator_too():
    town = np.array([1.3, 103.8]) + chance(2).normal(0.0, 0.05, (1_200, 2))
    blurred = np.clip(PlanarLaplace(1e-3).apply(town, chance()), town.min(axis=0) - 1, town.max(axis=0) + 1)
    low, high = blurred.min(axis=0) - 1e-6, blurred.max(axis=0) + 1e-6
    codes = [NumericFilter(low[axis], high[axis], 0.02, bits=256) for axis in range(2)]
    bits = np.hstack([codes[axis].encode(IdentifierColumn(blurred[:, axis]), bytes([axis]) * 32) for axis in range(2)])
    against_blurred, against_true = (
        order_attack(bits, truth, np.arange(10), rng=chance()).score.value for truth in (blurred, town)
    )
    assert against_true < against_blurred


def test_frequent_names_are_read_off_and_teach_the_rest():
    drawn, public = records()
    found = frequency_attack(encoded([NAMES[row] for row in drawn]), public, drawn)
    assert found.score.low > 0.9
    assert found.blind < 0.3


def test_a_few_flips_do_not_hide_which_filters_are_copies():
    drawn, public = records(1_000)
    noisy = flipped(encoded([NAMES[row] for row in drawn]), 0.02)
    assert frequency_attack(noisy, public, drawn, flip_probability=0.02).score.low > 0.6
    assert frequency_attack(noisy[:300], public, drawn[:300]).score.value < 0.3


def test_a_salt_for_every_record_stops_it():
    drawn, public = records(600)
    names, salts = IdentifierColumn([NAMES[row] for row in drawn]), IdentifierColumn([str(row) for row in range(600)])
    found = frequency_attack(CODE.encode_salted(names, salts, KEY), public, drawn)
    assert found.score.value < 0.1


def test_similar_filters_are_matched_with_similar_names():
    order = chance().permutation(len(NAMES))
    plain = name_similarity([NAMES[row] for row in order], CODE.grams)
    found = graph_attack(filter_similarity(encoded(NAMES)), plain, np.argsort(order))
    assert found.score.low > 0.9
    assert found.blind == 0.01


def test_strangers_make_matching_harder_and_seeds_easier():
    mine, theirs = NAMES[:80], NAMES[20:]
    truth = np.array([row - 20 if row >= 20 else -1 for row in range(80)])
    left, right = filter_similarity(encoded(mine)), name_similarity(theirs, CODE.grams)
    blind, helped = (graph_attack(left, right, truth, seeds=seeds) for seeds in (None, np.arange(20, 40)))
    assert blind.targets == 60
    assert helped.targets == 40
    assert blind.score.value < 0.95
    assert helped.score.value >= blind.score.value


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (
            lambda: order_attack(np.zeros((2, 4_096), np.uint8), np.zeros((2, 1)), np.arange(1), rng=chance()),
            "too-many-bits",
        ),
        (
            lambda: order_attack(np.zeros((2, 4), np.uint8), np.zeros((3, 1)), np.arange(1), rng=chance()),
            "shape-mismatch",
        ),
        (
            lambda: order_attack(
                np.zeros((9, 4), np.uint8), np.zeros((9, 1)), np.arange(1), rng=chance(), flip_probability=0.5
            ),
            "flip-probability-out-of-range",
        ),
        (
            lambda: frequency_attack(np.zeros((2, 4), np.uint8), NameList(["a"], np.ones(1), set), np.zeros(2)),
            "shape-mismatch",
        ),
        (lambda: graph_attack(np.eye(3), np.eye(3), np.arange(3)), "too-few-records"),
        (lambda: graph_attack(np.zeros((2_001, 2_001)), np.eye(20), np.zeros(2_001, int)), "too-many-records"),
        (lambda: graph_attack(np.eye(20), np.eye(20), np.arange(19)), "shape-mismatch"),
    ],
)
def test_invalid_inputs_are_refused(attack, code):
    with pytest.raises((InputError, SettingError)) as caught:
        attack()
    assert caught.value.code == code


def encoded_positions(places, rng):
    schema = Schema([SchemaField("lat", PlacePosition(), longitude="lon")])
    encoded = schema.encode({"lat": places[:, 0], "lon": places[:, 1]}, Key(bytes(32)))
    return Position().prepare(encoded, "secondary")


def test_ten_known_records_place_the_map_of_a_city():
    rng = np.random.default_rng(0)
    places = rng.uniform([1.2, 103.6], [1.5, 104.0], (500, 2))
    finding = map_attack(encoded_positions(places, rng), places, np.arange(10), rng=rng)
    assert finding.score.value > 0.99
    assert (
        finding.figures["column 1: median error"] < 0.01 * finding.figures["column 1: median error of blind guessing"]
    )


def test_blurred_places_are_placed_where_they_were_moved_to():
    rng = np.random.default_rng(0)
    places = rng.uniform([1.2, 103.6], [1.5, 104.0], (500, 2))
    moved = PlanarLaplace(0.0005).displace(places, rng.random((500, 2)))  # 4 km on average
    finding = map_attack(encoded_positions(moved, rng), places, np.arange(10), rng=rng)
    assert finding.score.value < 0.98
    assert finding.figures["column 1: median error"] > 0.01
