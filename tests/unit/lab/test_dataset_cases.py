"""Secondaries that are linked one to one among themselves, as the paper extends FedSim to several parties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.contribution.rungs import LinkedSecondary, Rung
from fedsim.errors import SettingError
from fedsim_lab.dataset_cases import DatasetCases, LinkageOverrides, _text_filter, identifier_tables
from fedsim_lab.datasets.dataset import TITLE_FILTERS, Dataset
from fedsim_lab.job_training import train_study_rung
from fedsim_lab.study_runner import load_sample

RUNG = Rung("fedsim", "FedSim", "fedsim", preset="paper", epochs=2, k=3)


@pytest.fixture(scope="module")
def cases() -> DatasetCases:
    return DatasetCases(load_sample("city", Path(), 120), secondaries=["rentals", "schools"], one_to_one=True)


def test_every_row_of_the_first_secondary_gets_the_nearest_row_of_the_others(cases: DatasetCases) -> None:
    rentals, schools = (identifier_tables(cases.dataset, one)[1].to_numpy() for one in cases.taking_part)
    square = ((rentals[:50, None, :] - schools[None, :, :]) * [np.cos(np.radians(rentals[0, 0])), 1]) ** 2
    match = cases._matches["schools"]
    near = np.sqrt(square.sum(axis=2))
    taken = near[np.arange(50), match[:50]]
    np.testing.assert_allclose(taken, near.min(axis=1), rtol=0.05)  # degrees are not quite a plane


def test_all_secondaries_have_the_lists_of_the_first(cases: DatasetCases) -> None:
    rentals, schools = cases.one("fixed", 0).secondaries
    np.testing.assert_array_equal(schools.partner, rentals.partner)
    np.testing.assert_array_equal(schools.similarity, rentals.similarity)
    assert len(schools.features) == len(rentals.features)


def test_equal_matches_have_equal_features(cases: DatasetCases) -> None:
    schools, match = cases.one("fixed", 0).secondaries[1], cases._matches["schools"]
    first = np.unique(match, return_index=True)[1]
    place = np.searchsorted(match[first], match)
    np.testing.assert_array_equal(schools.features.numbers, schools.features.numbers[first][place])


def test_one_list_serves_all_parties_in_training(cases: DatasetCases) -> None:
    arrays = cases.one("fixed", 0)
    together = train_study_rung(RUNG, arrays)
    apart = DatasetCases(cases.dataset, secondaries=["rentals", "schools"]).one("fixed", 0)
    separate = train_study_rung(RUNG, apart)
    assert np.isfinite([together.test["rmse"], separate.test["rmse"]]).all()
    assert arrays.digest != apart.digest
    assert not np.allclose(together.predictions, separate.predictions)


def test_three_pieces_of_a_secondary_are_aligned_parties() -> None:
    arrays = DatasetCases(load_sample("firms", Path(), 60)).one("random", 0)
    rung = Rung("fedsim", "FedSim", "fedsim", pieces="13")
    first, third = rung.secondary_data(arrays)
    whole = arrays.secondaries[0].features.numbers
    np.testing.assert_array_equal(first.features.numbers, whole[:, :1])
    np.testing.assert_array_equal(third.features.numbers, whole[:, 2:])
    assert third.aligned_with == first.name


def similarity_of_every_record(linked: LinkedSecondary) -> np.ndarray:
    return linked.similarity[linked.list_of]


def test_noise_moves_similarities_and_leaves_the_partners() -> None:
    firms = load_sample("firms", Path(), 200)
    plain, noisy = (
        DatasetCases(firms, LinkageOverrides(sigma=sigma)).one("random", 0).secondaries[0] for sigma in (0.0, 0.5)
    )
    np.testing.assert_array_equal(plain.partner[plain.list_of], noisy.partner[noisy.list_of])
    moved = similarity_of_every_record(plain) - similarity_of_every_record(noisy)
    assert np.std(moved) == pytest.approx(0.5, rel=0.05)


@pytest.fixture(scope="module")
def twice() -> Dataset:
    """Firms, each of which is in the primary's table twice."""
    firms = load_sample("firms", Path(), 100)
    return replace(firms, primary=replace(firms.primary, frame=pl.concat([firms.primary.frame] * 2)))


def test_noise_is_drawn_per_record_as_in_the_paper_or_per_identifier(twice: Dataset) -> None:
    arrays = DatasetCases(twice, LinkageOverrides(sigma=0.5)).one("random", 0)
    by_record, by_identifier = (
        Rung("fedsim", "FedSim", "fedsim", partner=partner).secondary_data(arrays)[0].similarity
        for partner in ("real", "same-noise")
    )
    assert np.std(by_record[:100] - by_record[100:]) == pytest.approx(0.5 * np.sqrt(2), rel=0.05)
    np.testing.assert_array_equal(by_identifier[:100], by_identifier[100:])


def test_without_noise_both_are_one_training(twice: Dataset) -> None:
    arrays = DatasetCases(twice).one("random", 0)
    keys = [Rung("x", "X", "fedsim", partner=partner).result_key(arrays) for partner in ("real", "same-noise")]
    assert keys[0] == keys[1]


def test_other_noise_on_the_same_links_is_what_linking_again_would_give(twice: Dataset) -> None:
    plain = DatasetCases(twice, LinkageOverrides(metric="hamming"))
    quick, slow = plain.with_tau(0.1), DatasetCases(twice, LinkageOverrides(metric="hamming", tau=0.1))
    assert quick.links is plain.links
    assert quick.one("fixed", 1).digest == slow.one("fixed", 1).digest != plain.one("fixed", 1).digest


def test_text_filters_are_sized_for_the_grams_they_encode() -> None:
    titles = pl.Series(["abcdefghij", "klmnopqrst"])  # ten letters, padded by three on both sides: 13 grams of four
    encoding = _text_filter(titles, titles, TITLE_FILTERS)
    assert len(encoding.grams(titles[0])) == 13
    assert encoding.bits == 872  # 2 x 1 edit x 10 hashes x 13 grams / (3 x .1) = 866.7, in whole bytes


def test_hamming_needs_the_papers_filters() -> None:
    with pytest.raises(SettingError, match="has no filters in the paper"):
        DatasetCases(load_sample("city", Path(), 60), LinkageOverrides(metric="hamming")).one("random", 0)


def test_training_seeds_share_one_fixed_split() -> None:
    cases = DatasetCases(load_sample("firms", Path(), 60))
    first, second = cases.each(["fixed"], [0, 1])
    np.testing.assert_array_equal(first.split.test, second.split.test)
    np.testing.assert_array_equal(first.split.test, cases.one("random", 0).split.test)
    assert (first.about["seed"], second.about["seed"]) == (0, 1)


def test_a_group_split_keeps_equal_identifiers_together(twice: Dataset) -> None:
    arrays = DatasetCases(twice).one("group", 0)
    np.testing.assert_array_equal(arrays.groups[:100], arrays.groups[100:])
    assert not set(arrays.groups[arrays.split.train]) & set(arrays.groups[arrays.split.test])


def test_the_scale_belongs_to_the_training_records() -> None:
    arrays = DatasetCases(load_sample("firms", Path(), 200)).one("random", 0)
    trained = similarity_of_every_record(arrays.secondaries[0])[arrays.split.train]
    assert [trained.mean(), trained.std()] == pytest.approx([0, 1], abs=1e-5)


def test_names_that_are_compared_in_lower_case_are_one_group_in_any_case(twice: Dataset) -> None:
    names = twice.primary.frame[:100]
    loud = names.with_columns(pl.col("name").str.to_uppercase())
    both = replace(twice, primary=replace(twice.primary, frame=pl.concat([names, loud])))
    groups = DatasetCases(both).groups
    np.testing.assert_array_equal(groups[:100], groups[100:])


def test_a_placebo_partner_keeps_its_links_and_loses_its_order(twice: Dataset) -> None:
    arrays = DatasetCases(twice).one("random", 0)
    placebo, real = (
        Rung("fedsim", "FedSim", "fedsim", partner=partner, k=3).secondary_data(arrays)[0]
        for partner in ("placebo", "real")
    )
    np.testing.assert_array_equal(placebo.partner, real.partner)
    assert not np.array_equal(placebo.features.numbers, real.features.numbers)
    np.testing.assert_array_equal(np.sort(placebo.features.numbers, axis=0), np.sort(real.features.numbers, axis=0))


def test_as_many_partners_as_were_linked_are_the_same_training_as_all_of_them(twice: Dataset) -> None:
    arrays = DatasetCases(twice, LinkageOverrides(k=4)).one("random", 0)
    keys = [Rung("fedsim", "FedSim", "fedsim", k=k).result_key(arrays) for k in (4, None, 3)]
    assert keys[0] == keys[1] != keys[2]
