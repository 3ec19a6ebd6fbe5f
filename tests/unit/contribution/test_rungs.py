"""Partners that cannot help: what they keep of the real ones, and what they lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsim.contribution.rungs import LinkedSecondary, Rung, SplitArrays
from fedsim.data.synthetic import generate_city
from fedsim.training import SecondaryData
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.datasets.generated import city_dataset

FLATS = 200


@pytest.fixture(scope="module")
def city() -> SplitArrays:
    dataset = city_dataset(generate_city(np.random.default_rng(0), flats=FLATS))
    return DatasetCases(dataset, secondaries=("rentals", "schools")).one("random", 0)


def given_to(partner: str, city: SplitArrays) -> list[SecondaryData]:
    return Rung("fedsim", "FedSim", "fedsim", partner=partner).secondary_data(city)


def real_links(linked: LinkedSecondary) -> tuple[np.ndarray, np.ndarray]:
    return linked.partner[linked.list_of], linked.similarity[linked.list_of]


def whose_links(linked: LinkedSecondary, given: SecondaryData) -> np.ndarray:
    """The record whose partners and similarities, both together, each record was given."""
    owner = {(a.tobytes(), b.tobytes()): record for record, (a, b) in enumerate(zip(*real_links(linked), strict=True))}
    partner, similarity = given.partner.astype(np.int32), given.similarity.astype(np.float32)
    return np.array([owner[a.tobytes(), b.tobytes()] for a, b in zip(partner, similarity, strict=True)])


def test_shuffled_links_are_those_of_another_record_the_same_one_for_all_secondaries(city: SplitArrays) -> None:
    given = given_to("shuffled", city)
    rentals, schools = (whose_links(*both) for both in zip(city.secondaries, given, strict=True))
    np.testing.assert_array_equal(np.sort(rentals), np.arange(FLATS))
    np.testing.assert_array_equal(rentals, schools)
    assert (rentals == np.arange(FLATS)).mean() < 0.05


def test_shuffled_links_leave_the_partners_features_as_they_are(city: SplitArrays) -> None:
    for linked, given in zip(city.secondaries, given_to("shuffled", city), strict=True):
        np.testing.assert_array_equal(given.features.numbers, linked.features.numbers)


def test_a_placebo_keeps_every_link_and_whole_rows_but_gives_them_to_others(city: SplitArrays) -> None:
    for linked, given in zip(city.secondaries, given_to("placebo", city), strict=True):
        for kept, real in zip((given.partner, given.similarity), real_links(linked), strict=True):
            np.testing.assert_array_equal(kept, real)
        rows, others = linked.features.numbers, given.features.numbers
        assert (rows == others).all(axis=1).mean() < 0.05
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, others.tolist()))


def test_places_in_bins_lose_their_periodic_embedding_and_nothing_else(city: SplitArrays) -> None:
    usual, binned = (Rung(inputs, inputs, "solo", inputs=inputs) for inputs in ("identifiers", "binned"))
    features, same = usual.primary_data(city).features, binned.primary_data(city).features
    assert features.periodic
    assert same.periodic == ()
    np.testing.assert_array_equal(same.numbers, features.numbers)
    assert same.many_valued == features.many_valued
    assert usual.result_key(city)["settings"] != binned.result_key(city)["settings"]


def test_without_places_bins_are_not_trained_again(city: SplitArrays) -> None:
    plain = replace(city, own=replace(city.own, periodic=()), primary=replace(city.primary, periodic=()))
    usual, binned = (
        Rung("solo", "Solo", "solo", inputs=inputs).result_key(plain) for inputs in ("identifiers", "binned")
    )
    assert usual == binned
