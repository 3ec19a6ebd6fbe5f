"""Embeddings that a secondary sends under sealed labels."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.errors import SettingError
from fedsim.splitnn.embedding import MAX_CATEGORIES, embed, passed_columns
from fedsim.splitnn.layers import Features
from fedsim.splitnn.party_model import RandomSource

KINDS = ("features", "random", "autoencoder")


@pytest.fixture
def features():
    rng = np.random.default_rng(0)
    numbers = rng.lognormal(size=(300, 3)).astype(np.float32)
    codes = np.stack([rng.integers(0, 4, 300), rng.integers(0, 60, 300)], axis=1)
    return Features(numbers, codes, (4, 60))


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_has_mean_zero_and_deviation_one(features, kind):
    rows = embed(features, kind, 16, RandomSource(1, "rentals"))
    assert rows.shape[1] == (3 + 4 + MAX_CATEGORIES if kind == "features" else 16)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(rows.std(axis=0), 1, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_rows_again(features, kind):
    first, again = (embed(features, kind, 8, RandomSource(1, "rentals")) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("kind", ["random", "autoencoder"])
def test_another_secret_gives_other_rows(features, kind):
    first, other = (embed(features, kind, 8, RandomSource(seed, "rentals")) for seed in (1, 2))
    assert not np.allclose(first, other)


def test_equal_numbers_share_their_rank_and_units_do_not_matter():
    numbers = np.array([[1.0], [2.0], [2.0], [50.0]])
    rows = passed_columns(Features(numbers))[:, 0]
    assert rows[1] == rows[2]
    np.testing.assert_allclose(rows, passed_columns(Features(numbers**3))[:, 0])


def test_a_constant_column_stays_zero():
    assert passed_columns(Features(np.full((5, 1), 7.0))).tolist() == [[0.0]] * 5


@pytest.mark.parametrize("kind", ["random", "autoencoder"])
def test_a_linear_reader_finds_the_columns_in_an_embedding(features, kind):
    """An embedding that lost the features would be worth nothing."""
    wanted, rows = passed_columns(features)[:, :3], embed(features, kind, 64, RandomSource(1, "rentals"))
    inputs = np.column_stack([rows, np.ones(len(rows))])
    left = wanted - inputs @ np.linalg.lstsq(inputs, wanted, rcond=None)[0]
    assert 1 - left.var(axis=0).mean() > 0.6


def test_an_unknown_embedding_is_refused(features):
    with pytest.raises(SettingError) as caught:
        embed(features, "colour", 8, RandomSource(1, "rentals"))
    assert caught.value.code == "unknown-name"
