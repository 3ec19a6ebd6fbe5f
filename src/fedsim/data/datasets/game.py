"""Games on Steam and what players of RAWG say of games with similar titles (paper: ``game``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.data.datasets.dataset import About, Dataset, File, Link, Secondary, Table, Task
from fedsim.data.datasets.filters import TITLES
from fedsim.data.datasets.paper_scores import GAME
from fedsim.data.datasets.rawg import read_rawg
from fedsim.data.datasets.reading import as_numbers, complete, flags, table_with
from fedsim.data.datasets.titles import bare_titles

LABEL = "popular"
FEWEST = "0-20000"
NUMBERS = (
    "english",
    "required_age",
    "achievements",
    "positive_ratings",
    "negative_ratings",
    "average_playtime",
    "median_playtime",
    "price",
)
DROPPED = {
    "appid": "a number, different in every row",
    "release_date": "dropped by the authors",
    "developer, publisher": "thousands of names",
    "platforms, genres": "dropped by the authors: the secondary has them",
    "steamspy_tags": "dropped by the authors: repeats genres and categories",
    "owners": "the label in detail",
}

ABOUT = About(
    name="game",
    title="games on Steam, ratings by RAWG",
    task=Task.CLASSIFICATION,
    measure="accuracy",
    unit="% of games, more than 20,000 owners or not",
    records=(26_987, 439_999),
    files=(
        File(
            "steam",
            ("game/steam.csv.gz", "game/steam.csv"),
            "27,075 games with owners, ratings, playtime, categories",
            "Kaggle, nikdavis/steam-store-games",
            "CC BY 4.0",
        ),
        File(
            "rawg",
            ("game/game_info.csv", "game/rawg.csv", "game/rawg.csv.gz"),
            "474,417 games; a smaller public table of 10,884 is read as well",
            "Kaggle, jummyegg/rawg-game-dataset",
            "all rights reserved",
        ),
    ),
    scores=GAME,
    note="positive and negative ratings nearly tell the number of owners; the smaller RAWG table is a fortieth",
)


def read(paths: Mapping[str, Path], rng: np.random.Generator) -> Dataset:
    """Games of distinct titles on both sides."""
    steam = _steam(paths["steam"])
    link = Link(("name",), ("name",), "levenshtein-normalised", 50, filters=TITLES)
    return Dataset(
        about=ABOUT,
        primary=Table(steam, tuple(name for name in steam.columns if name not in ("name", LABEL)), DROPPED),
        label=LABEL,
        secondaries=(Secondary("rawg", read_rawg(paths["rawg"]), link),),
    )


def _steam(path: Path) -> pl.DataFrame:
    frame = table_with(path, ["name", "owners", "categories", *NUMBERS]).select(
        "name", "owners", "categories", *NUMBERS
    )
    frame = complete(as_numbers(frame, NUMBERS, path), path)
    popular = (pl.col("owners") != FEWEST).cast(pl.UInt8).alias(LABEL)
    frame = bare_titles(frame.with_columns(popular).drop("owners"), "name")
    return flags(frame, "categories", ";", "cat")
