"""Figures of the paper that need no training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsim.linkage import link
from fedsim.linkage.soft_linkage import improvement_from_links
from fedsim_lab.illustrations import (
    mean_similarity_by_rank,
    neighbours_sheet,
    similarity_curves_sheet,
    tau_epsilon_sheet,
)
from fedsim_lab.study_config import PaperStudy, StudyPart
from fedsim_lab.study_runner import StudyContext


def test_the_area_under_the_curve_is_what_delta_counts() -> None:
    rng = np.random.default_rng(0)
    links = link(rng.normal(size=(40, 2)), rng.normal(size=(30, 2)), metric="euclidean", k=8)
    curve, delta = mean_similarity_by_rank(links), improvement_from_links(links)
    assert (np.diff(curve) <= 0).all()
    assert (curve[0], curve[-1]) == (1.0, 0.0)
    assert curve[1:].sum() == pytest.approx(delta.top1sim)
    assert (1 - curve).sum() == pytest.approx(delta.avgsim)


def test_every_dataset_at_hand_has_a_curve_and_a_missing_one_a_note() -> None:
    study = PaperStudy("s", "S", "nowhere", (StudyPart("firms", ["fedsim"], "rmse", records=100), _company()))
    sheet = similarity_curves_sheet(study, StudyContext(None, Path(), 1))
    assert [row[0] for row in sheet.tables[0].rows] == ["firms"]
    assert sheet.charts[0].series[0].mean[0] == 1.0
    assert sum("company" in note for note in sheet.notes) == 1


def _company() -> StudyPart:
    return StudyPart("company", ["fedsim"], "rmse")


def test_tau_and_epsilon_fall_with_the_noise_to_the_papers_figures() -> None:
    rows = [[float(cell) for cell in row] for row in tau_epsilon_sheet().tables[0].rows]
    taus, epsilons = [row[1] for row in rows], [row[2] for row in rows]
    assert taus == sorted(taus, reverse=True)
    assert epsilons == sorted(epsilons, reverse=True)
    assert next(row[1:] for row in rows if row[0] == 4.0) == [1.94e-05, 2.96e9]


def test_titles_are_missing_where_their_data_is() -> None:
    sheet = neighbours_sheet(StudyContext(None, Path(), 1))
    assert sheet.tables == ()
    assert "game" in sheet.notes[0]
