"""One filter per record from the filters of its fields."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.errors import SettingError
from fedsim.linkage.encoding import Concatenate, Sample, Union

SUBKEY = bytes(32)


def filters(*sizes, n_rows=20):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (n_rows, size // 8), dtype=np.uint8) for size in sizes]


def hamming(bits):
    ones = np.unpackbits(bits, axis=1)
    return (ones[:, None] != ones).sum(axis=2)


def test_concatenated_distances_add_up():
    fields = filters(64, 128)
    assert (hamming(Concatenate().combine(fields, SUBKEY)) == hamming(fields[0]) + hamming(fields[1])).all()


def test_a_union_has_the_ones_of_all_fields():
    left, right = filters(64, 64)
    assert (Union().combine([left, right], SUBKEY) == left | right).all()


def test_a_union_of_unequal_sizes_is_refused():
    with pytest.raises(SettingError) as caught:
        Union().size([128, 64])
    assert caught.value.code == "unequal-sizes"


def test_sampled_distances_follow_the_weights():
    fields = filters(1024, 512)
    sampled = hamming(Sample(bits=3000, weights=(9, 1)).combine(fields, SUBKEY))
    expected = 2700 * hamming(fields[0]) / 1024 + 300 * hamming(fields[1]) / 512
    assert np.abs(sampled - expected).max() < 80


@pytest.mark.parametrize("weights", [(), (1, 1, 1), (0.001, 5, 1), (1, 2, 3)])
def test_shares_use_every_bit(weights):
    shares = Sample(bits=1024, weights=weights).shares(3)
    assert sum(shares) == 1024
    assert all(share >= 0 for share in shares)


def test_a_sample_takes_a_bit_twice_only_when_it_must():
    field = np.packbits(np.eye(64, dtype=np.uint8), axis=1)
    taken = np.unpackbits(Sample(bits=64).combine([field], SUBKEY), axis=1).sum(axis=1)
    twice = np.unpackbits(Sample(bits=96).combine([field], SUBKEY), axis=1).sum(axis=1)
    assert taken.tolist() == [1] * 64
    assert set(twice) == {1, 2}


def test_weights_must_match_the_fields():
    with pytest.raises(SettingError) as caught:
        Sample(weights=(1, 2)).size([8, 8, 8])
    assert caught.value.code == "bad-weights"


@pytest.mark.parametrize("weights", [5, (0, 1), ("a", 1), (float("nan"),)])
def test_weights_are_positive_numbers(weights):
    with pytest.raises(SettingError, match="weight"):
        Sample(weights=weights)
