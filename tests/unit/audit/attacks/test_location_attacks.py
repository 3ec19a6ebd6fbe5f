"""The primary locates its partner's records: by the link graph, by multilateration, through filters."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.config.stored_audit import Adversary
from fedsim.data.synthetic import city
from fedsim.errors import InputError, SettingError
from fedsim.linkage import link
from fedsim.privacy.geodesy import mean_place, to_metres
from fedsim.privacy.mechanisms import PlanarLaplace
from fedsim_audit.attacks.location_attacks import (
    RANKED_CENTROID,
    TrueLocations,
    consistency_attack,
    fit_similarity_line,
    link_graph_attack,
    multilateration_attack,
)
from fedsim_audit.attacks.similarity_attacks import LinksByPartner, PrimaryView

TOWN = city(np.random.default_rng(3), flats=1_200, rentals=300)
FLATS = TOWN.flats.select("lat", "lon").to_numpy()
RENTALS = TOWN.rentals.select("lat", "lon").to_numpy()
TRUTH = TrueLocations(RENTALS)


def linked(sigma=0.0, rentals=RENTALS) -> PrimaryView:
    return PrimaryView.of(link(FLATS, rentals, metric="great-circle", k=20, sigma=sigma, seed=1, threads=1))


def median(finding) -> float:
    return finding.figures["median error in metres"]


def chance() -> np.random.Generator:
    return np.random.default_rng(0)


def test_the_top_k_alone_give_places_away():
    found = link_graph_attack(linked(), FLATS, TRUTH, rng=chance())
    assert median(found) < found.figures["median error of blind guessing in metres"] / 5
    assert found.adversary is Adversary.PRIMARY


def test_noise_on_similarities_does_nothing_against_the_link_graph():
    silent, loud = (link_graph_attack(linked(sigma), FLATS, TRUTH, rng=chance()) for sigma in (0.0, 100.0))
    assert silent == loud


def test_the_order_of_a_list_gives_more_away():
    by_rank = link_graph_attack(linked(), FLATS, TRUTH, rng=chance(), way=RANKED_CENTROID)
    assert median(by_rank) < median(link_graph_attack(linked(), FLATS, TRUTH, rng=chance()))


def test_who_is_not_listed_gives_more_away():
    consistent = consistency_attack(linked(), FLATS, TRUTH, rng=chance(), rounds=60)
    assert median(consistent) < 0.85 * median(link_graph_attack(linked(), FLATS, TRUTH, rng=chance()))


def test_without_noise_multilateration_finds_the_very_place():
    found = multilateration_attack(linked(), FLATS, TRUTH, rng=chance())
    assert median(found) < 1.0
    assert found.score.value > 0.7


def test_noise_averages_out_over_the_links_of_a_partner():
    errors = [median(multilateration_attack(linked(sigma), FLATS, TRUTH, rng=chance())) for sigma in (0.01, 0.1, 0.4)]
    assert errors == sorted(errors)
    assert errors[-1] < median(link_graph_attack(linked(), FLATS, TRUTH, rng=chance()))


def test_noise_that_repeats_for_equal_places_is_not_taken_for_more_than_it_is():
    view = linked(sigma=0.4)
    _, place = np.unique(FLATS, axis=0, return_inverse=True)
    noise = 0.4 * chance().normal(size=(place.max() + 1, view.partner.shape[1]))[place.ravel()]
    repeated = PrimaryView(view.partner, linked().similarity + noise, view.scale, 0.4)
    assert len(repeated.distinct_records(FLATS)) == place.max() + 1
    assert len(view.distinct_records(FLATS)) == len(FLATS)
    found = multilateration_attack(repeated, FLATS, TRUTH, rng=chance())
    assert median(multilateration_attack(view, FLATS, TRUTH, rng=chance())) < median(found)
    assert median(found) < median(link_graph_attack(view, FLATS, TRUTH, rng=chance()))


def test_a_secret_scale_is_found_out():
    known = linked(sigma=0.05)
    secret = PrimaryView(known.partner, known.similarity, None, known.sigma)
    line = fit_similarity_line(LinksByPartner.of(secret), to_metres(FLATS, mean_place(FLATS)), secret.sigma)
    assert 1 / line.slope == pytest.approx(known.scale.deviation, rel=0.02)
    found = multilateration_attack(secret, FLATS, TRUTH, rng=chance())
    assert median(found) < 1.2 * median(multilateration_attack(known, FLATS, TRUTH, rng=chance())) + 1.0
    assert "not their scale" in found.knew


def test_blurred_places_stay_hidden_however_many_links_there_are():
    mechanism = PlanarLaplace(epsilon=0.005)
    found = multilateration_attack(linked(rentals=mechanism.apply(RENTALS, chance())), FLATS, TRUTH, rng=chance())
    assert median(found) > 0.8 * mechanism.radius(0.5)


def test_suppressed_partners_are_no_targets():
    view = PrimaryView(np.array([[0, -1], [-1, 2]]), np.zeros((2, 2)))
    named = LinksByPartner.of(view)
    assert named.row.tolist() == [0, 2]
    assert named.record.tolist() == [0, 1]


def test_views_that_do_not_fit_are_refused():
    one = PrimaryView(np.zeros((1, 1), np.int64), np.zeros((1, 1)))
    with pytest.raises(InputError) as shapes:
        PrimaryView(np.zeros((3, 2), np.int64), np.zeros((3, 1)))
    with pytest.raises(InputError) as empty:
        LinksByPartner.of(PrimaryView(np.full((2, 2), -1), np.zeros((2, 2))))
    with pytest.raises(SettingError) as scale:
        one.known_scale()
    with pytest.raises(InputError):
        link_graph_attack(one, np.array([[91.0, 0.0]]), TRUTH, rng=chance())
    assert [caught.value.code for caught in (shapes, empty, scale)] == ["shape-mismatch", "no-links", "scale-unknown"]


def test_no_place_shows_in_a_repr():
    secret = np.array([[12.3456789, 45.6789123]])
    assert "12.34" not in repr(TrueLocations(secret)) + repr(PrimaryView(np.zeros((1, 1), np.int64), secret[:, :1]))
