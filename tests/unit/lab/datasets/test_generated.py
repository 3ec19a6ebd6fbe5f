"""What the generated datasets say a partner is worth is what strong learners find."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from error_fixtures import raises
from fedsim.data.synthetic import (
    CitySettings,
    GroundTruth,
    KnownCity,
    PartnerObservations,
    best_estimate,
    explained_variance,
    generate_city,
)
from fedsim.errors import SettingError
from fedsim.linkage import link
from fedsim_lab.datasets.generated import generate_firms

FLATS = 12_000


def error(features: np.ndarray, labels: np.ndarray) -> float:
    """Root mean square error of boosted trees on the last third."""
    learnt = 2 * len(labels) // 3
    trees = HistGradientBoostingRegressor(max_iter=120, max_leaf_nodes=8, learning_rate=0.1, min_samples_leaf=40)
    trees.fit(features[:learnt], labels[:learnt])
    return float(np.sqrt(np.mean((trees.predict(features[learnt:]) - labels[learnt:]) ** 2)))


def beyond_own(town: KnownCity) -> np.ndarray:
    """The price without what area, storey and age tell, so that trees need not learn a straight line by steps."""
    return (town.flats["price"] - town.hidden["own"]).to_numpy()


def linked_means(town: KnownCity, within: float) -> np.ndarray:
    """Rent and score of the rentals near a flat, averaged."""
    links = link(town.flats.select("lat", "lon"), town.rentals.select("lat", "lon"), metric="great-circle", k=8)
    near = (links.distance < within)[:, :, np.newaxis]
    shown = town.rentals.select("rent", "score").to_numpy()[links.partner]
    return (shown * near).sum(axis=1) / np.maximum(near.sum(axis=1), 1)


@pytest.mark.parametrize(
    "knobs",
    [
        CitySettings(),
        CitySettings(leak=0.0, value=1.0),
        CitySettings(leak=0.7, value=0.4),
        CitySettings(noise=150.0),
        CitySettings(school_value=0.0),
    ],
    ids=str,
)
def test_trees_that_see_the_hidden_parts_reach_the_stated_errors(knobs: CitySettings) -> None:
    town = generate_city(np.random.default_rng(11), knobs, flats=FLATS)
    for known in (("place",), ("place", "rentals"), ("place", "rentals", "schools")):
        found = error(town.hidden.select(known).to_numpy(), beyond_own(town))
        assert found == pytest.approx(town.truth.error(*known), rel=0.03)


@pytest.mark.parametrize("knobs", [CitySettings(), CitySettings(leak=0.0, value=0.5)], ids=str)
def test_trees_that_see_linked_records_find_the_partners_worth(knobs: CitySettings) -> None:
    town = generate_city(np.random.default_rng(12), knobs, flats=FLATS)
    place = town.flats.select("lat", "lon").to_numpy()
    alone = error(place, beyond_own(town))
    linked = error(np.hstack([place, linked_means(town, within=180.0)]), beyond_own(town))
    assert alone == pytest.approx(town.truth.error("place"), rel=0.03)
    assert alone - linked == pytest.approx(town.truth.contribution("rentals"), rel=0.06)


def test_a_partner_without_value_is_worth_nothing() -> None:
    town = generate_city(np.random.default_rng(13), CitySettings(value=0.0, school_value=0.0), flats=FLATS)
    place = town.flats.select("lat", "lon").to_numpy()
    linked = np.hstack([place, linked_means(town, within=180.0)])
    assert town.truth.contribution("rentals", "schools") == 0.0
    assert error(place, beyond_own(town)) - error(linked, beyond_own(town)) == pytest.approx(0.0, abs=0.5)


def test_without_a_leak_the_place_tells_nothing() -> None:
    town = generate_city(np.random.default_rng(14), CitySettings(leak=0.0), flats=FLATS)
    place = town.flats.select("lat", "lon").to_numpy()
    assert town.truth.error("place") == town.truth.error()
    assert error(place, beyond_own(town)) >= 0.98 * np.std(beyond_own(town)[-FLATS // 3 :])


def test_the_partners_features_look_the_same_whatever_they_are_worth() -> None:
    towns = [generate_city(np.random.default_rng(15), CitySettings(value=value), flats=4_000) for value in (0.0, 1.0)]
    spreads = [town.rentals.select("rent", "score").std().row(0) for town in towns]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.05)


def test_neither_place_nor_own_features_tell_what_the_partners_show() -> None:
    town = generate_city(np.random.default_rng(16), flats=4_000)
    shown = town.hidden.select("rentals", "schools").to_numpy()
    others = town.flats.select("lat", "lon", "area", "storey", "age").hstack(town.hidden.select("place")).to_numpy()
    assert np.abs(np.corrcoef(shown.T, others.T)[:2, 2:]).max() < 0.06


def test_exact_places_give_the_textbooks_share() -> None:
    town = generate_city(np.random.default_rng(17), CitySettings(value=1.0, leak=0.0), flats=FLATS)
    blur = 1.0 / (0.6**-2 + 1.0)
    assert town.truth.explained["rentals"] / (60.0**2 * 0.75) == pytest.approx(4.0 / (4.0 + blur), abs=0.005)


def test_worse_places_never_make_a_partner_worth_more() -> None:
    worth = [
        generate_city(np.random.default_rng(18), CitySettings(noise=noise), flats=2_000).truth.contribution("rentals")
        for noise in (0.0, 100.0, 200.0, 400.0)
    ]
    assert worth == sorted(worth, reverse=True)
    assert worth[-1] < 0.25 * worth[0]


def test_partners_of_the_neighbourhood_tell_more_and_strangers_no_less() -> None:
    rng = np.random.default_rng(19)
    centres, signal = rng.uniform(0.0, 4.0, (400, 2)), rng.normal(size=400)
    home = np.repeat(np.arange(400), 3)
    place = centres[home] + rng.normal(0.0, 0.02, (1_200, 2))
    sights = PartnerObservations(home, place, signal[home] + rng.normal(0.0, 1.0, 1_200), 1.0)
    explained = [explained_variance(signal, best_estimate(centres, sights, k)) for k in (1, 3, 6)]
    assert explained[0] < 0.9 * explained[1]
    assert explained[2] == pytest.approx(explained[1], abs=0.02)


def test_one_seed_makes_one_city_and_another_another() -> None:
    first, same, other = (generate_city(np.random.default_rng(seed), flats=50) for seed in (1, 1, 2))
    assert first.rentals.equals(same.rentals)
    assert not first.flats.equals(other.flats)


@pytest.mark.parametrize("value", [0.3, 0.9])
def test_trees_that_see_the_matching_firm_find_the_registers_worth(value: float) -> None:
    registers = generate_firms(np.random.default_rng(20), ours=6_000, theirs=9_000, value=value)
    labels = (registers.ours["credit"] - registers.hidden["own"]).to_numpy()
    shown = registers.theirs.select("margin", "delay").to_numpy()[registers.match]
    shown[registers.match < 0] = np.nan
    assert error(shown, labels) == pytest.approx(registers.truth.error("register"), rel=0.03)


def test_a_match_that_is_not_linked_is_worth_nothing() -> None:
    registers = generate_firms(np.random.default_rng(21), ours=1_000, theirs=2_000)
    names = [table.select(pl.col("name").str.to_lowercase()) for table in (registers.ours, registers.theirs)]
    links = link(*names, metric="levenshtein-normalised", k=10)
    found, everything = registers.truth_of(links.partner), registers.truth_of(registers.match[:, np.newaxis])
    assert 0.7 < found.explained["register"] / registers.truth.explained["register"] < 0.95
    assert everything == registers.truth
    assert registers.truth_of(np.full((1_000, 1), -2)).contribution("register") == 0.0


def test_a_register_without_value_is_worth_nothing() -> None:
    registers = generate_firms(np.random.default_rng(22), value=0.0)
    seen = registers.theirs["margin"].to_numpy()[registers.match]
    known = registers.match >= 0
    assert registers.truth.contribution("register") == 0.0
    assert abs(np.corrcoef(seen[known], registers.ours["credit"].to_numpy()[known])[0, 1]) < 0.06


@pytest.mark.parametrize("wrong", [{"noise": -1.0}, {"value": 1.1}, {"leak": float("nan")}, {"school_value": -0.1}])
def test_knobs_beyond_their_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError) as caught:
        CitySettings(**wrong)
    assert caught.value.name == next(iter(wrong))


def test_a_city_of_two_flats_is_refused() -> None:
    assert len(generate_city(np.random.default_rng(0), flats=3).rentals) == 12
    with raises(SettingError, "out-of-range", name="flats"):
        generate_city(np.random.default_rng(0), flats=2)


def test_an_unknown_part_is_refused() -> None:
    with raises(SettingError, "unknown-part", value="pubs"):
        GroundTruth(4.0, {"place": 1.0}).error("pubs")
    with raises(SettingError, "out-of-range", name="value"):
        generate_firms(np.random.default_rng(0), value=2.0)
