"""Sales and reviews of games."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dataset_files import ROWS, words, write
from error_fixtures import raises
from fedsim.errors import InputError
from fedsim_lab.datasets.dataset_registry import load_dataset


def write_games(folder: Path, sold: list[str]) -> None:
    names = [f"Game {row}" for row in range(ROWS)]
    common = {"Name": names, "Platform": words("PS2", "PC"), "Genre": words("Sports", "Puzzle")}
    sales = common | {"Year": words("2006", "N/A"), "Publisher": words("Nintendo", "N/A"), "Global_Sales": sold}
    scores = {"Meta_Critic_Score": [80.0] * ROWS, "Meta_User_Score": [7.5] * ROWS}
    counts = {"N_Critic_Reviews": [12] * ROWS, "N_User_Reviews": [None, *([40] * (ROWS - 1))]}
    write(folder, "game/vgsales.csv", sales)
    write(folder, "game/metacritic.csv", common | {"Publisher": words("Nintendo")} | scores | counts)


def test_sales_are_logarithms_and_unknown_cells_are_missing(tmp_path: Path) -> None:
    write_games(tmp_path, ["10.0"] * ROWS)
    games = load_dataset("vgsales", tmp_path)
    assert (games.labels == 1.0).all()
    assert games.primary.frame["Year"].null_count() == games.primary.frame["Publisher"].null_count() == ROWS // 2
    assert np.nanmax(games.secondaries[0].table.frame["N_User_Reviews"].to_numpy()) == 40
    assert games.secondaries[0].link.casefold


def test_sales_that_are_no_number_are_refused(tmp_path: Path) -> None:
    write_games(tmp_path, [*(["10.0"] * 4), "many", *(["10.0"] * (ROWS - 5))])
    with raises(InputError, "not-a-number", column="Global_Sales", row=5):
        load_dataset("vgsales", tmp_path)
