"""Theorem 2 of the paper, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedsim.errors import SettingError
from fedsim.privacy.bounds import lowest_bound, sigma_for_bound, success_bound

sigmas = st.floats(1e-3, 1e2)
spreads = st.floats(1.0, 1e6)
HOUSE = 21178.86


def test_the_papers_figures():
    assert success_bound(4.0, HOUSE) == pytest.approx(1.9417e-05, rel=1e-4)
    assert success_bound(0.4, HOUSE) == pytest.approx(5.0720e-05, rel=1e-4)
    assert [round(sigma_for_bound(tau, HOUSE), 4) for tau in (1e-2, 1e-3, 1e-4)] == [0.0019, 0.0188, 0.1918]


@given(sigmas, spreads)
def test_more_noise_never_helps_the_attacker(sigma, spread):
    assert success_bound(2 * sigma, spread) <= success_bound(sigma, spread)


@given(st.floats(0.1, 5.0), st.floats(10.0, 1e5))
def test_noise_and_bound_undo_each_other(sigma, spread):
    assert sigma_for_bound(success_bound(sigma, spread), spread) == pytest.approx(sigma, rel=1e-6)


def test_more_links_lower_the_greedy_bound():
    assert success_bound(0.4, 100.0, queries=3) == pytest.approx(success_bound(0.4, 100.0) ** 3)
    with pytest.raises(SettingError):
        success_bound(1.0, 1.0, queries=0)


def test_certainty_needs_no_noise_and_no_noise_promises_nothing():
    assert sigma_for_bound(1.0, HOUSE) == 0.0
    assert success_bound(0.0, HOUSE) == 1.0


def test_an_unreachable_tau_is_refused_with_the_lowest_bound():
    with pytest.raises(SettingError) as caught:
        sigma_for_bound(1e-5, HOUSE)
    assert (caught.value.code, caught.value.limit) == ("tau-too-small", lowest_bound(HOUSE))


@pytest.mark.parametrize(("tau", "spread"), [(0.0, 1.0), (1.1, 1.0), (0.5, 0.0), (0.5, -1.0), (float("nan"), 1.0)])
def test_values_without_meaning_are_refused(tau, spread):
    with pytest.raises(SettingError):
        sigma_for_bound(tau, spread)
