"""Blurred places: planar Laplace, and the plane it is laid on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from scipy.stats import kstest

from fedsim.errors import InputError, SettingError
from fedsim.privacy.geodesy import great_circle_metres, to_degrees, to_metres
from fedsim.privacy.mechanisms import PlanarLaplace

latitudes, longitudes = st.floats(-85, 85), st.floats(-179, 179)
offsets = st.tuples(st.floats(-2e5, 2e5), st.floats(-2e5, 2e5))
HERE = np.array([39.9, 116.4])


@given(latitudes, longitudes, offsets)
def test_plane_and_places_undo_each_other(latitude, longitude, offset):
    origin, metres = np.array([latitude, longitude]), np.array([offset])
    np.testing.assert_allclose(to_metres(to_degrees(metres, origin), origin), metres, atol=1e-4)


@given(latitudes, longitudes, offsets)
def test_the_plane_keeps_distances_from_its_origin(latitude, longitude, offset):
    origin = np.array([latitude, longitude])
    away = great_circle_metres(to_degrees(np.array([offset]), origin), origin[None, :])
    np.testing.assert_allclose(away, np.hypot(*offset), atol=1e-4)


@given(st.floats(1e-5, 1.0), st.floats(0.0, 0.999999))
@example(1.0, 2.8e-9)
def test_radius_is_the_inverse_of_the_radius_distribution(epsilon, share):
    radius = PlanarLaplace(epsilon).radius(share)
    assert 1 - (1 + epsilon * radius) * np.exp(-epsilon * radius) == pytest.approx(share, abs=1e-9)


def test_steps_have_the_promised_distribution():
    places, mechanism = np.tile(HERE, (20_000, 1)), PlanarLaplace(0.01)
    steps = to_metres(mechanism.apply(places, np.random.default_rng(0)), HERE)
    radius, direction = np.hypot(*steps.T), np.arctan2(*steps.T)
    assert kstest(radius, lambda r: 1 - (1 + 0.01 * r) * np.exp(-0.01 * r)).pvalue > 0.01
    assert kstest(direction, "uniform", args=(-np.pi, 2 * np.pi)).pvalue > 0.01
    assert radius.mean() == pytest.approx(2 / mechanism.epsilon, rel=0.02)


def test_the_guarantee_holds_between_two_places():
    """Histograms of blurred places around two points 100 m apart differ by at most e^(epsilon * 100)."""
    epsilon, n, near = 0.01, 400_000, np.array([0.0, 100.0])
    counts = []
    for seed, place in enumerate([HERE, to_degrees(near[None, :], HERE)[0]]):
        drawn = PlanarLaplace(epsilon).apply(np.tile(place, (n, 1)), np.random.default_rng(seed))
        east, north = to_metres(drawn, HERE).T
        counts.append(np.histogram2d(east, north, bins=6, range=[[-300, 300], [-300, 300]])[0])
    assert min(count.min() for count in counts) > 500
    odds = np.abs(np.log(counts[0] / counts[1]))
    assert odds.max() < epsilon * 100 + 0.1
    assert odds.max() > 0.6 * epsilon * 100


def test_every_record_has_its_own_step_and_a_seed_repeats_it():
    places, mechanism = np.tile(HERE, (50, 1)), PlanarLaplace(0.01)
    moved = mechanism.apply(places, np.random.default_rng(1))
    assert len(np.unique(moved, axis=0)) == 50
    np.testing.assert_array_equal(moved, mechanism.apply(places, np.random.default_rng(1)))


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, {"epsilon": float("nan")}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(SettingError):
        PlanarLaplace(**settings)


def test_places_off_the_earth_are_refused_without_showing_them():
    with pytest.raises(InputError) as caught:
        PlanarLaplace(0.01).apply(np.array([[123.456, 0.0]]), np.random.default_rng(0))
    assert caught.value.code == "bad-places"
    assert "123" not in str(caught.value)
