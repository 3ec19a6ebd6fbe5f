"""Sales of video games and reviews of games with similar titles; not in the paper."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim_lab.datasets import cleaning, dataset

LABEL = "Global_Sales"
NAME = "Name"
FEATURES = ("Platform", "Year", "Genre", "Publisher")
REVIEWED = ("Meta_Critic_Score", "Meta_User_Score", "N_Critic_Reviews", "N_User_Reviews")
THEIR_FEATURES = (
    "Platform",
    "Genre",
    "Meta_Critic_Score",
    "Meta_User_Score",
    "Publisher",
    "N_Critic_Reviews",
    "N_User_Reviews",
)
EMPTY = ["N/A", ""]

VGSALES = dataset.DatasetInfo(
    name="vgsales",
    title="sales of games, reviews",
    task=dataset.DatasetTask.REGRESSION,
    measure="r2",
    unit="log10 of million copies",
    records=(16_598, 19_269),
    files=(
        dataset.DatasetFile(
            "sales",
            ("game/vgsales.csv.gz", "game/vgsales.csv"),
            "16,598 games with copies sold",
            "Kaggle, gregorut/videogamesales (from vgchartz)",
            "unknown",
        ),
        dataset.DatasetFile(
            "reviews",
            ("game/metacritic.csv.gz", "game/metacritic.csv"),
            "19,269 games with scores and numbers of reviews",
            "Kaggle, a public table of Metacritic's pages",
            "unknown",
        ),
    ),
    note="not in the paper; the counts are the files'",
)


def read_vgsales(paths: Mapping[str, Path], rng: np.random.Generator) -> dataset.Dataset:
    """Read all games of both tables; each platform of a game is a row of its own."""
    sales, reviews = _read(paths["sales"], (LABEL, "Year"), FEATURES), _reviews(paths["reviews"])
    ours = {
        "Rank": "the label's order",
        "NA_Sales, EU_Sales, JP_Sales, Other_Sales": "the label in parts",
    }
    link = dataset.LinkSpec((NAME,), (NAME,), "levenshtein-normalised", 10, casefold=True)
    return dataset.Dataset(
        about=VGSALES,
        primary=dataset.PartyTable(cleaning.require_rows(sales, paths["sales"], f"a {LABEL}"), FEATURES, ours),
        label=LABEL,
        secondaries=(dataset.SecondaryTable("reviews", reviews, link),),
        transform=dataset.LabelTransform.LOG10,
    )


def _reviews(path: Path) -> dataset.PartyTable:
    theirs = {"Release_date": "a date in words", "Developer": "thousands of names"}
    return dataset.PartyTable(_read(path, REVIEWED, THEIR_FEATURES), THEIR_FEATURES, theirs)


def _read(path: Path, numbers: tuple[str, ...], features: tuple[str, ...]) -> pl.DataFrame:
    columns = list(dict.fromkeys([NAME, *features, *numbers]))
    frame = cleaning.read_columns(path, columns).with_columns(pl.all().replace(EMPTY, None))
    return cleaning.cast_to_numbers(frame, numbers, path)
