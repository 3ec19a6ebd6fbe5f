"""Every mechanism keeps its guarantee, and the accountant adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedsim.errors import SettingError
from fedsim.privacy.differential_privacy import (
    Accountant,
    gaussian_epsilon,
    link_sensitivity,
    paper_sensitivity,
)
from fedsim.privacy.mechanisms import (
    AveragedFeatures,
    ClipAndNoise,
    ExchangedFeatures,
    MinimumDegree,
    NoisyFeatures,
    PlanarLaplace,
    add_dummy_links,
    group_neighbours,
)


def generator(seed=0) -> np.random.Generator:
    return np.random.default_rng(seed)


EVERY = [
    PlanarLaplace(0.01),
    ClipAndNoise(1.0, 0.5),
    ClipAndNoise(1.0, 0.0),
    AveragedFeatures(5),
    ExchangedFeatures(5),
    NoisyFeatures(2.0),
    MinimumDegree(1, 2),
]


@pytest.mark.parametrize("mechanism", EVERY, ids=lambda part: type(part).__name__)
def test_a_mechanism_states_its_guarantee_in_a_sentence(mechanism):
    assert mechanism.guarantee.endswith(".")


def test_rows_without_noise_have_no_account():
    with pytest.raises(SettingError) as caught:
        ClipAndNoise(1.0, 0.0).after(steps=1)
    assert caught.value.code == "no-noise"


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
    loss = generator().normal(mu**2 / 2, mu, (400_000, steps)).sum(axis=1)
    measured = np.maximum(0.0, 1.0 - np.exp(epsilon - loss)).mean()
    assert Accountant().after(sigma=1.0, sensitivity=mu, steps=steps).delta(epsilon=epsilon) == pytest.approx(
        measured, rel=0.02
    )


def test_nothing_spent_costs_nothing():
    assert Accountant().epsilon(delta=1e-5) == Accountant().delta(epsilon=0.1) == 0.0


def test_dummies_are_as_many_as_promised_and_never_double():
    lists = np.argsort(generator(3).random((500, 60)), axis=1)[:, :20]
    mixed = add_dummy_links(lists, 0.3, 60, generator())
    assert (mixed != lists).mean() == pytest.approx(0.3, abs=0.03)
    assert all(len(set(row)) == 20 for row in mixed.tolist())


def test_dummies_fit_even_where_every_candidate_is_listed():
    lists = np.argsort(generator(3).random((30, 8)), axis=1)
    mixed = add_dummy_links(lists, 1.0, 8, generator())
    assert (np.sort(mixed, axis=1) == np.arange(8)).all()


def test_suppressed_partners_get_no_dummy():
    lists = np.array([[0, -1], [-1, 1]])
    assert (add_dummy_links(lists, 1.0, 9, generator()) == -1).tolist() == (lists == -1).tolist()


@given(st.integers(1, 30), st.integers(0, 10**6))
def test_every_partner_left_has_the_degree_or_is_gone(degree, seed):
    lists = np.argsort(generator(seed).random((40, 25)), axis=1)[:, :8]
    kept = MinimumDegree(degree, 5).apply(lists)
    counts = np.bincount(kept[kept >= 0], minlength=25)
    assert ((counts == 0) | (counts >= degree)).all()
    assert kept.shape == (40, 5)


def test_spare_partners_take_the_places_of_the_suppressed():
    lists = np.array([[0, 2], [1, 2], [2, 3]])
    assert MinimumDegree(2, 1).apply(lists).tolist() == [[2], [2], [2]]
    assert MinimumDegree(4, 1).apply(lists).tolist() == [[-1]] * 3


def test_the_papers_sensitivity_is_far_from_the_derived_one():
    derived = link_sensitivity(links=141_050, changed_bits=1, spread=21178.86)
    assert derived == pytest.approx(math.sqrt(141_050) / 21178.86)
    assert paper_sensitivity(records=141_050, mean=-46237.78, spread=21178.86) > 1e7 * derived


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ClipAndNoise(0.0, 1.0),
        lambda: ClipAndNoise(1.0, -1.0),
        lambda: add_dummy_links(np.arange(3)[None, :], 1.5, 9, generator()),
        lambda: add_dummy_links(np.arange(3)[None, :], 0.5, 2, generator()),
        lambda: MinimumDegree(0, 1),
        lambda: MinimumDegree(1, 4).apply(np.arange(3)[None, :]),
        lambda: Accountant().after(sigma=0.0, sensitivity=1.0),
    ],
)
def test_settings_without_meaning_are_refused(wrong):
    with pytest.raises(SettingError):
        wrong()


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
    assert 0.55 < higher <= mechanism.budget.max_attack_auc


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


def test_groups_of_neighbours_have_the_promised_size():
    places = generator().normal(size=(503, 2))
    group = group_neighbours(places, 5)
    sizes = np.bincount(group)
    assert (sizes.min() >= 5, sizes.max() < 10, len(group)) == (True, True, 503)
    spread = np.mean([np.ptp(places[group == one], axis=0).sum() for one in range(len(sizes))])
    assert spread < 0.5 * np.mean([np.ptp(places[generator().permutation(503)[:5]], axis=0).sum() for _ in range(9)])


def test_averages_hold_the_mean_and_the_most_common_category_of_a_group():
    mechanism, group = AveragedFeatures(2), np.array([0, 0, 1, 1, 1])
    numbers, codes = np.array([[1.0], [3.0], [4.0], [5.0], [6.0]]), np.array([[2], [1], [0], [2], [2]])
    assert mechanism.average(numbers, group).ravel().tolist() == [2.0, 2.0, 5.0, 5.0, 5.0]
    assert mechanism.most_common(codes, (3,), group).ravel().tolist() == [1, 1, 2, 2, 2]


def test_an_exchange_stays_within_groups_and_any_record_may_get_any_features():
    group, rng = np.repeat([1, 0], [5, 6]), generator()
    drawn = np.array([ExchangedFeatures(5).sources(group, rng.random(11)) for _ in range(2000)])
    assert (np.sort(drawn, axis=1) == np.arange(11)).all()
    assert (group[drawn] == group).all()
    own = (drawn == np.arange(11)).mean(axis=0)
    assert np.allclose(own, 1 / np.bincount(group)[group], atol=0.04)


@pytest.mark.parametrize("mechanism", [AveragedFeatures, ExchangedFeatures])
def test_groups_of_one_are_refused(mechanism):
    with pytest.raises(SettingError):
        mechanism(1)
