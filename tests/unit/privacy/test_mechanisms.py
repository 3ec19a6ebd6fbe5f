"""Every mechanism does what its sentence says, and the accountant adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from fedsim.errors import SettingError
from fedsim.linkage.encoding.record_filters import BitFlip
from fedsim.privacy.bounds import expected_disclosed, success_bound
from fedsim.privacy.differential_privacy import (
    Accountant,
    classic_gaussian_sigma,
    gaussian_epsilon,
    gaussian_sigma,
    link_sensitivity,
    paper_sensitivity,
    sigma_for_steps,
)
from fedsim.privacy.mechanisms import (
    ClipAndNoise,
    DummyLinks,
    FlippedBits,
    MinimumDegree,
    NoisyFeatures,
    NoisySimilarities,
    PlanarLaplace,
    first_allowed_partners,
)

EVERY = [
    (NoisySimilarities(0.4, 100.0), np.zeros((5, 3))),
    (PlanarLaplace(0.01), np.zeros((5, 2))),
    (FlippedBits(1.0, 8), np.zeros((5, 4), np.uint8)),
    (ClipAndNoise(1.0, 0.5), np.ones((5, 4))),
    (NoisyFeatures(2.0), np.arange(20.0).reshape(5, 4)),
    (DummyLinks(0.5, 40), np.arange(15).reshape(5, 3)),
    (MinimumDegree(1, 2), np.arange(15).reshape(5, 3)),
]


def chance(seed=0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("mechanism", "values"), EVERY, ids=lambda part: type(part).__name__)
def test_a_mechanism_has_one_sentence_keeps_its_input_and_repeats_by_seed(mechanism, values):
    before = values.copy()
    first, second = (mechanism.apply(values, chance()) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(values, before)
    assert mechanism.guarantee.endswith(".")
    assert first.dtype == values.dtype
    assert len(first) == 5


def test_noise_on_similarities_is_normal_with_the_promised_deviation():
    noise = NoisySimilarities(0.4, 100.0).apply(np.zeros((400, 50)), chance())
    assert kstest(noise.ravel() / 0.4, "norm").pvalue > 0.01


def test_noise_for_a_bound_keeps_it():
    mechanism = NoisySimilarities.for_bound(1e-3, 8_000.0)
    assert success_bound(mechanism.sigma, 8_000.0) == pytest.approx(1e-3)
    assert "0.001" in mechanism.guarantee


def test_flips_are_those_of_the_encoders_and_fresh_for_every_record():
    bits = chance(1).integers(0, 256, (300, 16), np.uint8)
    flipped = FlippedBits(2.0, 8).apply(bits, chance())
    np.testing.assert_array_equal(flipped, BitFlip(2.0).apply(bits, b"", chance()))
    each = np.unpackbits(bits ^ flipped, axis=1).mean(axis=0)
    assert 0 < each.min() < each.max() < 0.25


def test_the_epsilon_of_a_record_is_that_of_all_its_bits():
    mechanism = FlippedBits.for_record(epsilon=4.0, changed_bits=20)
    keep, flip = 1 - mechanism.flip_probability, mechanism.flip_probability
    assert 20 * math.log(keep / flip) == pytest.approx(4.0)
    assert mechanism.record_epsilon == 4.0


@given(st.floats(0.01, 10), st.floats(0.1, 10))
def test_no_two_rows_are_further_apart_than_the_sensitivity(clip, size):
    rows = ClipAndNoise(clip, 0.0).apply(size * chance().normal(size=(20, 3)), chance())
    assert np.linalg.norm(rows[:, None] - rows[None, :], axis=2).max() <= 2 * clip * (1 + 1e-12)


def test_clipping_turns_no_row_and_leaves_short_and_empty_ones():
    rows = np.array([[30.0, 40.0], [0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_allclose(ClipAndNoise(1.0, 0.0).apply(rows, chance()), [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])


def test_rows_without_noise_have_no_account():
    assert "promises nothing" in ClipAndNoise(1.0, 0.0).guarantee
    with pytest.raises(SettingError, match="without bound"):
        ClipAndNoise(1.0, 0.0).after(steps=1)


def test_one_row_and_many_steps_or_many_rows_and_one_step_cost_alike():
    mechanism = ClipAndNoise(clip=0.5, noise=4.0)
    assert mechanism.after(steps=9).mu == pytest.approx(mechanism.after(steps=1, rows=9).mu)
    assert mechanism.after(steps=1).mu == pytest.approx(0.5)


@given(st.floats(0.05, 5), st.integers(1, 50), st.floats(1e-8, 1e-2))
def test_many_steps_are_one_step_with_less_noise(mu, steps, delta):
    together = Accountant().after(sigma=1.0, sensitivity=mu, steps=steps).epsilon(delta=delta)
    one_by_one = Accountant()
    for _ in range(steps):
        one_by_one = one_by_one.after(sigma=1.0, sensitivity=mu)
    assert one_by_one.epsilon(delta=delta) == pytest.approx(together, rel=1e-6, abs=1e-9)
    assert together == pytest.approx(gaussian_epsilon(sigma=1 / math.sqrt(steps), delta=delta, sensitivity=mu))


def test_composition_is_what_the_privacy_loss_says():
    """Monte Carlo: delta of 10 steps, from the sum of 10 Gaussian privacy losses."""
    mu, steps, epsilon = 0.3, 10, 1.0
    loss = chance().normal(mu**2 / 2, mu, (400_000, steps)).sum(axis=1)
    measured = np.maximum(0.0, 1.0 - np.exp(epsilon - loss)).mean()
    assert Accountant().after(sigma=1.0, sensitivity=mu, steps=steps).delta(epsilon=epsilon) == pytest.approx(
        measured, rel=0.02
    )


def test_nothing_spent_costs_nothing():
    assert Accountant().epsilon(delta=1e-5) == Accountant().delta(epsilon=0.1) == 0.0
    assert sigma_for_steps(epsilon=1.0, delta=1e-5, sensitivity=1.0, steps=4) == pytest.approx(
        2 * gaussian_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0)
    )


def test_dummies_are_as_many_as_promised_and_never_double():
    lists = np.argsort(chance(3).random((500, 60)), axis=1)[:, :20]
    mixed = DummyLinks(0.3, 60).apply(lists, chance())
    assert (mixed != lists).mean() == pytest.approx(0.3, abs=0.03)
    assert all(len(set(row)) == 20 for row in mixed.tolist())


def test_dummies_fit_even_where_every_candidate_is_listed():
    lists = np.argsort(chance(3).random((30, 8)), axis=1)
    mixed = DummyLinks(1.0, 8).apply(lists, chance())
    assert (np.sort(mixed, axis=1) == np.arange(8)).all()


def test_suppressed_partners_get_no_dummy():
    lists = np.array([[0, -1], [-1, 1]])
    assert (DummyLinks(1.0, 9).apply(lists, chance()) == -1).tolist() == (lists == -1).tolist()


@given(st.integers(1, 30), st.integers(0, 10**6))
def test_every_partner_left_has_the_degree_or_is_gone(degree, seed):
    lists = np.argsort(chance(seed).random((40, 25)), axis=1)[:, :8]
    kept = MinimumDegree(degree, 5).apply(lists, chance())
    counts = np.bincount(kept[kept >= 0], minlength=25)
    assert ((counts == 0) | (counts >= degree)).all()
    assert kept.shape == (40, 5)


def test_spare_partners_take_the_places_of_the_suppressed():
    lists = np.array([[0, 2], [1, 2], [2, 3]])
    assert MinimumDegree(2, 1).apply(lists, chance()).tolist() == [[2], [2], [2]]
    assert first_allowed_partners(lists, np.array([False] * 4), 1).tolist() == [[-1]] * 3


def test_the_papers_sensitivity_is_far_from_the_derived_one():
    derived = link_sensitivity(links=141_050, changed_bits=1, spread=21178.86)
    assert derived == pytest.approx(math.sqrt(141_050) / 21178.86)
    assert paper_sensitivity(records=141_050, mean=-46237.78, spread=21178.86) > 1e7 * derived


@given(st.floats(0.01, 0.99), st.floats(1e-8, 1e-2))
def test_the_appendix_asks_for_more_noise_than_needed(epsilon, delta):
    assert classic_gaussian_sigma(epsilon=epsilon, delta=delta, sensitivity=1.0) >= gaussian_sigma(
        epsilon=epsilon, delta=delta, sensitivity=1.0
    )


def test_more_links_lower_the_greedy_bound_and_the_paper_expects_less_than_one_filter():
    assert success_bound(0.4, 100.0, queries=3) == pytest.approx(success_bound(0.4, 100.0) ** 3)
    assert expected_disclosed(19_479, success_bound(4.0, 21178.86)) == pytest.approx(0.378, abs=5e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: NoisySimilarities(-1.0, 10.0),
        lambda: NoisySimilarities(1.0, 0.0),
        lambda: FlippedBits(0.0, 3),
        lambda: FlippedBits(1.0, 0),
        lambda: ClipAndNoise(0.0, 1.0),
        lambda: ClipAndNoise(1.0, -1.0),
        lambda: DummyLinks(1.5, 3),
        lambda: DummyLinks(0.5, 2).apply(np.arange(3)[None, :], chance()),
        lambda: MinimumDegree(0, 1),
        lambda: MinimumDegree(1, 4).apply(np.arange(3)[None, :], chance()),
        lambda: Accountant().after(sigma=0.0, sensitivity=1.0),
        lambda: classic_gaussian_sigma(epsilon=1.0, delta=0.1, sensitivity=1.0),
        lambda: success_bound(1.0, 1.0, queries=0),
        lambda: expected_disclosed(5, 2.0),
    ],
)
def test_settings_without_meaning_are_refused(wrong):
    with pytest.raises(SettingError):
        wrong()


def test_noise_on_features_has_the_promised_share_of_each_columns_deviation():
    values = chance(1).normal(size=(20_000, 2)) * [1.0, 50.0] + [0.0, 1000.0]
    noise = NoisyFeatures(3.0).apply(values, chance()) - values
    assert (noise.std(axis=0) / values.std(axis=0)).tolist() == pytest.approx([3.0, 3.0], rel=0.02)


def test_a_number_far_out_counts_as_three_deviations_away():
    values = np.zeros((10_001, 1))
    values[0] = 1e6
    kept = NoisyFeatures(1.0).add_noise(values, np.zeros_like(values))
    assert kept[0, 0] == pytest.approx(values.mean() + 3 * values.std())


def test_nobody_tells_two_numbers_apart_better_than_the_promised_auc():
    mechanism = NoisyFeatures(4.0)
    values = np.repeat([[-1e9], [1e9]], 5_000, axis=0)  # as far apart as clipping lets them be is two deviations here
    noisy = mechanism.apply(values, chance())[:, 0]
    higher = (noisy[5_000:, None] > noisy[None, :5_000:50]).mean()
    assert 0.55 < higher <= mechanism.spent.max_attack_auc


def test_a_category_stays_as_often_as_is_said_and_is_any_other_else():
    mechanism, codes = NoisyFeatures(3.0), np.zeros((50_000, 1), np.int64)
    found = mechanism.replaced(codes, (5,), chance().random((50_000, 1, 2)))
    share = np.bincount(found[:, 0], minlength=5) / len(found)
    assert share[0] == pytest.approx(mechanism.kept + (1 - mechanism.kept) / 5, abs=0.01)
    assert share[1:].tolist() == pytest.approx([(1 - mechanism.kept) / 5] * 4, abs=0.01)


@pytest.mark.parametrize("values", [2, 10, 100])
def test_a_category_is_as_private_as_its_number_of_values_says(values):
    mechanism = NoisyFeatures(4.0)
    stays = mechanism.kept + (1 - mechanism.kept) / values
    other = (1 - mechanism.kept) / values
    assert mechanism.category_epsilon(values) == pytest.approx(np.log(stays / other))
    assert f"{mechanism.category_epsilon(values):.3g}" in mechanism.guarantee


def test_noise_too_small_to_replace_a_category_promises_nothing_about_it():
    assert NoisyFeatures(1e-9).category_epsilon(2) == np.inf
