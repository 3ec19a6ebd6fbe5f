"""Flipped bits that are really random: the tests that broken randomised response elsewhere would have failed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsim.errors import SettingError
from fedsim.linkage.encoding import BitFlip

N_BITS = 1024


def records(n_rows=200, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n_rows, N_BITS // 8), dtype=np.uint8)


def flips(n_rows=2000, epsilon=2.0, seed=1):
    bits = records(n_rows)
    return np.unpackbits(bits ^ BitFlip(epsilon).apply(bits, np.random.default_rng(seed)), axis=1)


def test_no_position_is_flipped_always_or_never():
    # A generator seeded anew for every record gives 343 constant and 681 untouched positions out of 1,024.
    rate = flips(n_rows=200).mean(axis=0)
    assert rate.min() > 0
    assert rate.max() < 1


def test_flips_of_a_position_scatter_like_fair_coins():
    rows, probability = 2000, BitFlip(2.0).flip_probability
    counts = flips(rows).sum(axis=0)
    scatter = ((counts - rows * probability) ** 2).sum() / (rows * probability * (1 - probability))
    assert scatter == pytest.approx(N_BITS, abs=5 * math.sqrt(2 * N_BITS))  # chi-squared


def test_flips_of_two_records_have_nothing_in_common():
    drawn, probability = flips(400), BitFlip(2.0).flip_probability
    shared = (drawn[:200] & drawn[200:]).mean()
    assert shared == pytest.approx(probability**2, rel=0.05)
    assert len(np.unique(drawn, axis=0)) == 400


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_flip_rate_is_the_one_stated(epsilon):
    drawn, probability = flips(500, epsilon), 1 / (1 + math.exp(epsilon))
    assert drawn.mean() == pytest.approx(probability, abs=5 * math.sqrt(probability / drawn.size))


def test_an_observers_odds_move_by_epsilon():
    rng, epsilon = np.random.default_rng(2), 1.5
    seen = {
        truth: np.unpackbits(BitFlip(epsilon).apply(np.full((500, 128), 255 * truth, np.uint8), rng)).mean()
        for truth in (0, 1)
    }
    assert math.log(seen[1] / seen[0]) == pytest.approx(epsilon, abs=0.02)
    assert math.log((1 - seen[0]) / (1 - seen[1])) == pytest.approx(epsilon, abs=0.02)


def test_the_same_record_is_encoded_differently_each_time():
    rng, bits = np.random.default_rng(3), np.tile(records(1), (2, 1))
    first, again = BitFlip(2.0).apply(bits, rng), BitFlip(2.0).apply(bits, rng)
    assert (first[0] != first[1]).any()
    assert (first != again).any()


def test_bit_flips_without_chance_are_refused():
    with pytest.raises(SettingError) as caught:
        BitFlip(2.0).apply(records(), None)
    assert caught.value.code == "no-generator"


@pytest.mark.parametrize("epsilon", [0, -1, 36, float("nan"), "2", True])
def test_an_epsilon_without_meaning_is_refused(epsilon):
    with pytest.raises(SettingError) as caught:
        BitFlip(epsilon)
    assert caught.value.name == "epsilon"


def test_record_epsilon_is_the_sum_over_changed_bits():
    flip = BitFlip(0.2).flip_probability
    assert BitFlip(0.2).record_epsilon(changed_bits=40) == pytest.approx(40 * math.log((1 - flip) / flip))
    assert "e^8" in BitFlip(0.2).guarantee(40)
