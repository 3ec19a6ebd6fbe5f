"""Parameters and times of the methods."""

from __future__ import annotations

from pathlib import Path

from fedsim_lab.cost_tables import PAPER_PARAMETERS, method_parameters, parties_sheet
from fedsim_lab.study_runner import StudyContext


def test_parameters_equal_the_papers_for_fedsim() -> None:
    assert {name: method_parameters("FedSim", name) for name in PAPER_PARAMETERS["FedSim"]} == PAPER_PARAMETERS[
        "FedSim"
    ]


def test_the_time_of_an_epoch_is_measured_for_every_way_of_linking(tmp_path: Path) -> None:
    sheet = parties_sheet(StudyContext(None, tmp_path, 1, report=lambda _: None), 40, most=2, paired=1)
    assert [row[4:] for row in sheet.tables[0].rows] == [("10", "10", "10"), ("20", "10", "100")]
    assert [row[3] == "-" for row in sheet.tables[0].rows] == [False, True]
