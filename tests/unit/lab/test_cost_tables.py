"""Parameters and times of the methods."""

from __future__ import annotations

from pathlib import Path

from dataset_files import game_files, house_files
from fedsim_lab.cost_tables import PAPER_PARAMETERS, linkage_sheet, method_parameters, parties_sheet
from fedsim_lab.study_runner import StudyContext


def test_parameters_equal_the_papers_for_fedsim() -> None:
    assert {name: method_parameters("FedSim", name) for name in PAPER_PARAMETERS["FedSim"]} == PAPER_PARAMETERS[
        "FedSim"
    ]


def test_the_time_of_an_epoch_is_measured_for_every_way_of_linking(tmp_path: Path) -> None:
    sheet = parties_sheet(StudyContext(None, tmp_path, 1, report=lambda _: None), 40, most=2, paired=1)
    assert [row[4:] for row in sheet.tables[0].rows] == [("10", "10", "10"), ("20", "10", "100")]
    assert [row[3] == "-" for row in sheet.tables[0].rows] == [False, True]


def test_numbers_in_rank_form_are_not_held_against_the_papers_time_for_filters(tmp_path: Path) -> None:
    house_files(tmp_path)
    game_files(tmp_path)
    sheet = linkage_sheet(StudyContext(tmp_path, tmp_path, 1, report=lambda _: None), 20)
    papers = {row[0].split()[0]: row[3:] for row in sheet.tables[0].rows}
    assert papers["house"] == ("3.48", "-")
    assert papers["game"] == ("3.62", "41.38")
