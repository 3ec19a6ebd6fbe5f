"""Figures about privacy and time."""

from __future__ import annotations

from pathlib import Path

from fedsim_lab.analysis_figures import attacker_table
from fedsim_lab.study_config import PaperStudy, StudyPart
from fedsim_lab.study_runner import StudyContext


def test_figure_6_says_what_attackers_guess_at_its_bounds() -> None:
    part = StudyPart("sklearn", ["fedsim"], "accuracy", metric="hamming", records=100, vary="tau", values=[1.0, 0.1])
    table = attacker_table(PaperStudy("x", "", "", (part,)), StudyContext(None, Path(), 1))
    bare, noisy = ([float(cell) for cell in row[1:]] for row in table.rows)
    assert bare == [1.0, 0.0, 1.0, 1.0]
    assert noisy[2] <= noisy[3] < 1  # the greedy attacker guesses less than the one who knows the distances
