"""Noise that belongs to a pair: normal, independent, and the same whenever the pair comes again."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.special import ndtri
from scipy.stats import kstest

from fedsim.errors import SettingError
from fedsim.privacy.keyed_prng import PAIRS_AT_ONCE, normal_from_words, pair_noise, secret_permutation

SECRET = bytes(range(32))


def filters(n: int, width: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, width), dtype=np.uint8)


def partners(n: int, m: int, k: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, m, (n, k))


@pytest.fixture(scope="module")
def million() -> np.ndarray:
    """Every left record with every right one."""
    every = np.broadcast_to(np.arange(1000), (1000, 1000))
    return pair_noise(SECRET, filters(1000), filters(1000, seed=2), every, purpose="test")


def slow_key(label: str, size: int) -> bytes:
    return hashlib.blake2b(label.encode(), key=SECRET, digest_size=size, person=b"fedsim subkey 1").digest()


def slow_noise(left: bytes, right: bytes, purpose: str) -> float:
    """One pair, from the description alone."""
    naming, drawing = slow_key(f"pair noise, names: {purpose}", 32), slow_key(f"pair noise, draws: {purpose}", 16)
    names = [hashlib.blake2b(row, key=naming, digest_size=8).digest() for row in (left, right)]
    block = Cipher(algorithms.AES(drawing), modes.ECB()).encryptor().update(b"".join(names))  # noqa: S305
    bits = int.from_bytes(block[:8], "little") >> 11
    place, side = divmod(bits, 2)
    tail = float(ndtri((place + 0.5) / 2**53))
    return tail if side else -tail


def test_it_equals_the_slow_oracle_bit_for_bit():
    left, right, partner = filters(40, 9), filters(30, 9, seed=3), partners(40, 30, 7)
    drawn = pair_noise(SECRET, left, right, partner, purpose="list 1")
    expected = [
        [slow_noise(left[row].tobytes(), right[there].tobytes(), "list 1") for there in partner[row]]
        for row in range(40)
    ]
    assert drawn.tolist() == expected


def test_a_million_draws_are_normal(million):
    assert kstest(million.ravel(), "norm").pvalue > 0.01
    assert abs(million.mean()) < 4e-3
    assert abs(million.std() - 1) < 3e-3


def test_neighbouring_pairs_are_independent(million):
    for one, other in [
        (million[:, :-1], million[:, 1:]),  # the same left record
        (million[:-1], million[1:]),  # the same right record
        (million, million.T),  # the two sides swapped
    ]:
        off = one is not million or ~np.eye(1000, dtype=bool)
        assert abs(np.corrcoef(one[off].ravel(), other[off].ravel())[0, 1]) < 4e-3
        assert abs(np.corrcoef(abs(one[off]).ravel(), abs(other[off]).ravel())[0, 1]) < 4e-3


def test_filters_one_bit_apart_have_unrelated_noise():
    left, right = filters(5000), filters(50, seed=2)
    near = left.copy()
    near[:, 0] ^= 1
    every = np.broadcast_to(np.arange(50), (5000, 50))
    drawn, other = (pair_noise(SECRET, side, right, every, purpose="test") for side in (left, near))
    assert abs(np.corrcoef(drawn.ravel(), other.ravel())[0, 1]) < 0.01


def test_a_pair_keeps_its_noise_whatever_stands_beside_it():
    rng, left, right = np.random.default_rng(5), filters(200), filters(90, seed=2)
    every = np.broadcast_to(np.arange(90), (200, 90))
    drawn = pair_noise(SECRET, left, right, every, purpose="test")
    here, there = rng.permutation(200)[:60], rng.permutation(90)[:40]
    again = pair_noise(SECRET, left[here], right[there], np.broadcast_to(np.arange(40), (60, 40)), purpose="test")
    np.testing.assert_array_equal(again, drawn[np.ix_(here, there)])


def test_tiles_leave_no_seam():
    left, right, partner = filters(3000), filters(80, seed=2), partners(3000, 80, 50)
    assert partner.size > 2 * PAIRS_AT_ONCE
    drawn = pair_noise(SECRET, left, right, partner, purpose="test")
    one_by_one = [
        pair_noise(SECRET, left[row : row + 1], right, partner[row : row + 1], purpose="test") for row in ROWS
    ]
    np.testing.assert_array_equal(drawn[ROWS], np.vstack(one_by_one))


ROWS = [0, 1309, 1310, 1311, 2619, 2620, 2621, 2999]  # 1310 records of 50 partners fill a tile


def test_equal_identifiers_share_their_noise():
    left, right = filters(3), filters(2, seed=2)
    twice = pair_noise(SECRET, left[[0, 1, 0]], right[[0, 0, 1]], np.array([[0, 1, 2]] * 3), purpose="test")
    assert (twice[0] == twice[2]).all()
    assert (twice[:, 0] == twice[:, 1]).all()
    assert len(np.unique(twice)) == 4


@pytest.mark.parametrize(("secret", "purpose"), [(bytes(32), "test"), (SECRET, "other")])
def test_another_secret_or_purpose_is_another_noise(million, secret, purpose):
    every = np.broadcast_to(np.arange(1000), (1000, 1000))
    other = pair_noise(secret, filters(1000), filters(1000, seed=2), every, purpose=purpose)
    assert abs(np.corrcoef(million.ravel(), other.ravel())[0, 1]) < 4e-3


def test_no_word_is_infinite_and_both_tails_are_alike():
    words = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    edges = np.array([0, 2047, 2048, 4095, 4096, 2**63, 2**64 - 4096, 2**64 - 2048, 2**64 - 1], np.uint64)
    drawn, mirrored = (
        normal_from_words(np.hstack([words, edges])),
        normal_from_words(np.hstack([words, edges]) ^ np.uint64(2048)),
    )
    assert (drawn == -mirrored).all()
    assert abs(drawn).max() == -ndtri(2.0**-54) < 8.3
    assert abs(drawn).min() > 0


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_no_pairs_need_no_noise(shape):
    drawn = pair_noise(SECRET, filters(shape[0]), filters(4), np.zeros(shape, np.int64), purpose="test")
    assert drawn.shape == shape


@pytest.mark.parametrize("secret", [b"", b"canary" * 5, bytes(65), "canary" * 6])
def test_a_secret_of_another_size_is_refused_and_not_shown(secret):
    with pytest.raises(SettingError) as refusal:
        pair_noise(secret, filters(1), filters(1), np.zeros((1, 1), np.int64), purpose="test")
    assert refusal.value.code == "bad-secret"
    assert "canary" not in str(refusal.value)


def test_a_secret_order_is_a_permutation_that_looks_random():
    order = secret_permutation(SECRET, "rows", 10_000)
    assert (np.sort(order) == np.arange(10_000)).all()
    assert (order == secret_permutation(SECRET, "rows", 10_000)).all()
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.04
    assert abs(np.corrcoef(order, secret_permutation(SECRET, "other rows", 10_000))[0, 1]) < 0.04
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.04
