"""Every mechanism keeps its guarantee."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from fedsim.privacy.mechanisms import (
    NoisyFeatures,
    PlanarLaplace,
)


def generator(seed=0) -> np.random.Generator:
    return np.random.default_rng(seed)


EVERY = [
    PlanarLaplace(0.01),
    NoisyFeatures(2.0),
]


@pytest.mark.parametrize("mechanism", EVERY, ids=lambda part: type(part).__name__)
def test_a_mechanism_states_its_guarantee_in_a_sentence(mechanism):
    assert mechanism.guarantee.endswith(".")


def test_noise_on_features_has_the_promised_share_of_each_columns_deviation():
    values = generator(1).normal(size=(20_000, 2)) * [1.0, 50.0] + [0.0, 1000.0]
    noise = NoisyFeatures(3.0).add_noise(values, generator().normal(size=values.shape)) - values
    assert (noise.std(axis=0) / values.std(axis=0)).tolist() == pytest.approx([3.0, 3.0], rel=0.02)


def test_a_number_far_out_counts_as_three_deviations_away():
    values = np.zeros((10_001, 1))
    values[0] = 1e6
    kept = NoisyFeatures(1.0).add_noise(values, np.zeros_like(values))
    assert kept[0, 0] == pytest.approx(values.mean() + 3 * values.std())


def test_nobody_tells_two_numbers_apart_better_than_the_promised_auc():
    mechanism = NoisyFeatures(4.0)
    values = np.repeat([[-1e9], [1e9]], 5_000, axis=0)  # as far apart as clipping lets them be is two deviations here
    noisy = mechanism.add_noise(values, generator().normal(size=values.shape))[:, 0]
    higher = (noisy[5_000:, None] > noisy[None, :5_000:50]).mean()
    mu = 2.0 * 3.0 / 4.0  # sensitivity: values are clipped at three deviations
    assert f"({mu:.3g}-GDP)" in mechanism.guarantee
    assert 0.55 < higher <= float(ndtr(mu / math.sqrt(2.0)))


def test_a_category_stays_as_often_as_is_said_and_is_any_other_else():
    mechanism, codes = NoisyFeatures(3.0), np.zeros((50_000, 1), np.int64)
    found = mechanism.randomise_categories(codes, (5,), generator().random((50_000, 1, 2)))
    share = np.bincount(found[:, 0], minlength=5) / len(found)
    assert share[0] == pytest.approx(mechanism.keep_probability + (1 - mechanism.keep_probability) / 5, abs=0.01)
    assert share[1:].tolist() == pytest.approx([(1 - mechanism.keep_probability) / 5] * 4, abs=0.01)


@pytest.mark.parametrize("values", [2, 10, 100])
def test_a_category_is_as_private_as_its_number_of_values_says(values):
    mechanism = NoisyFeatures(4.0)
    stays = mechanism.keep_probability + (1 - mechanism.keep_probability) / values
    other = (1 - mechanism.keep_probability) / values
    assert mechanism.category_epsilon(values) == pytest.approx(np.log(stays / other))
    assert f"{mechanism.category_epsilon(values):.3g}" in mechanism.guarantee


def test_noise_too_small_to_replace_a_category_promises_nothing_about_it():
    assert NoisyFeatures(1e-9).category_epsilon(2) == np.inf
