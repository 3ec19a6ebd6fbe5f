"""Files that describe studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.errors import FedSimError
from fedsim_lab.reproduce import REPRODUCTIONS, STUDIES
from fedsim_lab.study_config import read_study
from fedsim_lab.study_runner import read_ladders
from lab_fixtures import FILES, STUDY


def test_every_study_of_the_project_can_be_read_and_shortened() -> None:
    for name in STUDIES:
        study = read_study(FILES / f"{name}.toml")
        assert study.shortened().parts
    assert {part.dataset for part in read_ladders(FILES / "leaderboard.toml")} >= {"city", "hdb"}
    assert set(STUDIES) < set(REPRODUCTIONS)


def test_fast_may_take_smaller_batches_and_larger_steps(folder: Path) -> None:
    quick = STUDY.replace("fast = { epochs = 1,", "fast = { batch_size = 16, learning_rate = 0.01,")
    (folder / "figure-k.toml").write_text(quick)
    rungs = read_study(folder / "figure-k.toml").shortened().parts[0].rungs_at(3)
    assert [(rung.epochs, rung.batch_size, rung.learning_rate) for rung in rungs] == [(2, 16, 0.01)] * 2


def test_a_figure_of_the_paper_that_no_value_changes_is_named_without_one(folder: Path) -> None:
    (folder / "figure-k.toml").write_text(STUDY.replace("paper = { ", "paper = { Solo = [50.0], "))
    part = read_study(folder / "figure-k.toml").parts[0]
    solo, fedsim = part.rungs_at(3)
    assert (part.in_paper(solo, 3), part.in_paper(solo, 6)) == ((50.0, 0.0), (50.0, 0.0))
    assert part.in_paper(fedsim, 3) is None


def test_pieces_of_a_secondary_do_not_touch_who_learns_alone() -> None:
    part = read_study(FILES / "table-multiparty.toml").parts[0]
    assert {rung.key: rung.pieces for rung in part.rungs_at("13")} == {"fedsim": "13", "solo": ""}


@pytest.mark.parametrize(
    ("word", "other", "seen"),
    [('"fedsim"]', '"fedsin"]', "fedsin"), ('vary = "k"', 'vary = "q"', "vary 'q'"), ("records", "recrods", "recrods")],
)
def test_a_faulty_study_is_answered_with_a_sentence(folder: Path, word: str, other: str, seen: str) -> None:
    (folder / "figure-k.toml").write_text(STUDY.replace(word, other, 1))
    with pytest.raises(FedSimError, match=seen):
        read_study(folder / "figure-k.toml")
