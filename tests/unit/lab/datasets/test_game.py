"""Games of Steam and RAWG."""

from __future__ import annotations

from pathlib import Path

from dataset_files import ROWS, game_files
from fedsim_lab.datasets.dataset_registry import load_dataset


def test_game_reads_the_authors_table_of_rawg(tmp_path: Path) -> None:
    game_files(tmp_path)
    games = load_dataset("game", tmp_path)
    rawg = games.secondaries[0].table
    assert games.primary.frame["name"].head(2).to_list() == ["halflife", "game0"]
    assert (len(games.primary), len(rawg)) == (ROWS - 2, ROWS - 2)
    assert games.labels[:4].tolist() == [0, 0, 1, 1]
    assert {"has_website", "pf_PC", "gn_Indie", "released_years_before_2020"} <= set(rawg.features)
