"""Secondaries that are linked one to one among themselves, as the paper extends FedSim to several parties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsim.contribution.rungs import Rung
from fedsim_lab.cost_tables import parties_sheet
from fedsim_lab.dataset_cases import DatasetCases, identifier_tables
from fedsim_lab.job_training import train_study_rung
from fedsim_lab.study_runner import StudyContext, load_sample

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


def test_the_time_of_an_epoch_is_measured_for_every_way_of_linking(tmp_path: Path) -> None:
    sheet = parties_sheet(StudyContext(None, tmp_path, 1, report=lambda _: None), 40, most=2, paired=1)
    assert [row[4:] for row in sheet.tables[0].rows] == [("10", "10", "10"), ("20", "10", "100")]
    assert [row[3] == "-" for row in sheet.tables[0].rows] == [False, True]
