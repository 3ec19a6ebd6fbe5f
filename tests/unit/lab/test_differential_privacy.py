"""The Gaussian mechanism is exact, and the paper's figures come out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from fedsim.errors import SettingError
from fedsim.privacy.mechanisms import gaussian_delta, gaussian_epsilon
from fedsim_lab.differential_privacy import largest_delta, least_epsilon, link_sensitivity, paper_sensitivity

sigmas = st.floats(0.1, 20)
deltas = st.floats(1e-10, 0.1)
sensitivities = st.floats(1e-3, 1e3)


@given(sigmas, deltas, sensitivities)
def test_delta_and_epsilon_are_inverse_functions(ratio, delta, sensitivity):
    sigma = ratio * sensitivity
    epsilon = gaussian_epsilon(sigma=sigma, delta=delta, sensitivity=sensitivity)
    reached = gaussian_delta(epsilon=epsilon, sigma=sigma, sensitivity=sensitivity)
    assert reached == pytest.approx(delta, rel=1e-4) if epsilon > 0 else reached <= delta


@given(sigmas, deltas, sensitivities)
def test_more_noise_never_weakens_privacy(ratio, delta, sensitivity):
    sigma = ratio * sensitivity
    epsilon = gaussian_epsilon(sigma=sigma, delta=delta, sensitivity=sensitivity)
    assert gaussian_epsilon(sigma=2 * sigma, delta=delta, sensitivity=sensitivity) <= epsilon


@given(sigmas, st.floats(1e-10, 1e-3), sensitivities)
def test_theorem_1_is_necessary(ratio, delta, sensitivity):
    sigma = ratio * sensitivity
    epsilon = gaussian_epsilon(sigma=sigma, delta=delta, sensitivity=sensitivity)
    assert epsilon == 0 or least_epsilon(sigma=sigma, sensitivity=sensitivity, delta=delta) <= epsilon


@given(st.floats(0.01, 30), st.floats(0.01, 0.99))
def test_theorem_1_holds_below_its_largest_delta_and_fails_above(epsilon, share):
    limit, sigma = largest_delta(epsilon), (2 * epsilon) ** -0.5
    assert gaussian_epsilon(sigma=sigma, delta=share * limit, sensitivity=1.0) >= epsilon * (1 - 1e-6)
    above = limit + share * (0.5 - limit)
    assert gaussian_epsilon(sigma=sigma, delta=above, sensitivity=1.0) < epsilon


def test_theorem_1_is_refused_for_a_delta_that_it_does_not_cover():
    assert largest_delta(1.0) == pytest.approx(0.2862, abs=1e-4)  # the paper's condition would allow 0.4801
    with pytest.raises(SettingError) as caught:
        least_epsilon(sigma=2**-0.5, sensitivity=1.0, delta=0.3)
    assert caught.value.code == "delta-out-of-range"
    assert caught.value.limit == pytest.approx(0.2862, abs=1e-4)


def test_enough_noise_needs_no_epsilon():
    assert gaussian_epsilon(sigma=1e6, delta=0.01, sensitivity=1.0) == 0.0


@pytest.mark.parametrize("setting", [{"sigma": 0.0}, {"delta": 0.0}, {"delta": 1.0}, {"sensitivity": -1.0}])
def test_impossible_settings_are_refused(setting):
    with pytest.raises(SettingError):
        gaussian_epsilon(**{"sigma": 1.0, "delta": 1e-5, "sensitivity": 1.0, **setting})


def test_the_papers_sensitivity_is_far_from_the_derived_one():
    derived = link_sensitivity(links=141_050, changed_bits=1, spread=21178.86)
    assert derived == pytest.approx(math.sqrt(141_050) / 21178.86)
    assert paper_sensitivity(records=141_050, mean=-46237.78, spread=21178.86) > 1e7 * derived
