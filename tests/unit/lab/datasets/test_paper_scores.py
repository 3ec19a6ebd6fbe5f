"""Scores of the paper."""

from __future__ import annotations

from fedsim_lab.datasets.dataset import PaperScore
from fedsim_lab.datasets.dataset_registry import SOURCES


def test_the_papers_best_method_is_among_its_figures() -> None:
    assert SOURCES["hdb"].about.scores["FedSim"] == PaperScore(27.13, 0.06)
    for name in ("house", "taxi", "hdb", "company"):
        scores = SOURCES[name].about.scores
        assert min(scores, key=lambda method: scores[method].mean) == "FedSim"
    assert len(SOURCES["game"].about.scores) == 9
