"""Games on Steam and ratings of games with similar titles in the RAWG database (paper: game)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.cells import CellType, read_cells
from fedsim.data.column_names import column_positions
from fedsim.data.table_reader import read_table
from fedsim_lab.datasets import cleaning, dataset, paper_scores

# Titles as the paper compares them


def normalise_titles(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Reduce titles to letters and digits in lower case; keep the first row of equal titles and no empty one.

    >>> normalise_titles(pl.DataFrame({"name": ["Half-Life 2", "Half Life 2!", "?"]}), "name")["name"].to_list()
    ['halflife2']
    """
    bare = frame.with_columns(pl.col(column).str.replace_all(r"\W", "").str.to_lowercase())
    return bare.filter(pl.col(column) != "").unique(column, keep="first", maintain_order=True)


# Two public tables of the game database RAWG: the authors' (``game_info``), and a smaller one with fewer columns


YEAR = 2020
MAX_PLAYTIME = 100  # hours of playtime; the authors treated more as an error


@dataclass(frozen=True)
class RawgColumns:
    """How one of the tables names its columns."""

    title: str
    numbers: tuple[str, ...]
    years: Mapping[str, str]
    lists: Mapping[str, str]
    separator: str
    playtime: str
    website: tuple[str, ...]
    dropped: Mapping[str, str]

    @property
    def columns(self) -> list[str]:
        """All columns that are read."""
        return [self.title, *self.numbers, *self.years, *self.lists, *self.website]


STATUS = tuple(f"added_status_{word}" for word in ("yet", "owned", "beaten", "toplay", "dropped", "playing"))
AUTHORS_COLUMNS = RawgColumns(
    title="name",
    numbers=(
        "rating",
        "playtime",
        "achievements_count",
        "suggestions_count",
        "game_series_count",
        "reviews_count",
        *STATUS,
    ),
    years={"released": "released_years_before_2020", "updated": "updated_years_before_2020"},
    lists={"platforms": "pf", "genres": "gn"},
    separator="||",
    playtime="playtime",
    website=("website",),
    dropped={
        "id, slug": "different in every row",
        "metacritic, esrb_rating": "most are empty",
        "developers, publishers": "thousands of names",
        "tba, rating_top, ratings_count": "dropped by the authors",
        "website": "whether there is one is kept",
    },
)
SMALL_TABLE_COLUMNS = RawgColumns(
    title="Name",
    numbers=("Playtime", "Rating", "Reviews text count", "Score", "Reviews count", "Suggestions count"),
    years={"Released": "released_years_before_2020"},
    lists={"Platforms": "pf", "Genres": "gn"},
    separator=",",
    playtime="Playtime",
    website=(),
    dropped={
        "Slug, Rawg_id": "different in every row",
        "Metacritic, ESRD Rating": "most are empty",
        "Rating count": "dropped by the authors",
        "Platforms count": "the platforms are kept",
    },
)


def read_rawg(path: Path) -> dataset.PartyTable:
    """Read games of distinct titles with a date and less than 100 hours of playtime, as the authors selected them."""
    frame = read_table(path, None)
    form = SMALL_TABLE_COLUMNS if SMALL_TABLE_COLUMNS.title in frame.columns else AUTHORS_COLUMNS
    column_positions(path, frame.columns, form.columns)
    websites = [(~frame[name].is_null()).cast(pl.UInt8).alias("has_website") for name in form.website]
    frame = cleaning.cast_to_numbers(frame.select(form.columns), form.numbers, path).drop(form.website).hstack(websites)
    for column, years in form.years.items():
        moment = read_cells(frame[column], CellType.DATE).require(str(path), allow_missing=True)
        frame = frame.drop(column).with_columns((YEAR - moment.dt.year()).alias(years))
    for column, prefix in form.lists.items():
        frame = cleaning.multi_hot(frame.with_columns(pl.col(column).fill_null("")), column, form.separator, prefix)
    frame = cleaning.drop_incomplete_rows(frame, path).filter(pl.col(form.playtime) < MAX_PLAYTIME)
    frame = cleaning.require_rows(frame, path, f"a playtime below {MAX_PLAYTIME} hours")
    frame = normalise_titles(frame.rename({form.title: "name"}), "name")
    return dataset.PartyTable.excluding(("name",), frame, form.dropped)


# Games on Steam and their ratings by RAWG (paper: ``game``)


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

GAME_INFO = dataset.DatasetInfo(
    name="game",
    title="games on Steam, ratings by RAWG",
    task=dataset.DatasetTask.CLASSIFICATION,
    measure="accuracy",
    unit="% of games, more than 20,000 owners or not",
    records=(26_987, 439_999),
    files=(
        dataset.DatasetFile(
            "steam",
            ("game/steam.csv.gz", "game/steam.csv"),
            "27,075 games with owners, ratings, playtime, categories",
            "Kaggle, nikdavis/steam-store-games",
            "CC BY 4.0",
        ),
        dataset.DatasetFile(
            "rawg",
            ("game/game_info.csv", "game/rawg.csv", "game/rawg.csv.gz"),
            "474,417 games; a smaller public table of 10,884 is read as well",
            "Kaggle, jummyegg/rawg-game-dataset",
            "all rights reserved",
        ),
    ),
    scores=paper_scores.GAME,
    note="positive and negative ratings nearly determine the number of owners; the smaller RAWG table is a fortieth",
)


def read_game(paths: Mapping[str, Path], rng: np.random.Generator) -> dataset.Dataset:
    """Read games, of distinct titles on both sides."""
    steam = _steam(paths["steam"])
    link = dataset.LinkSpec(("name",), ("name",), "levenshtein-normalised", 50, filters=dataset.TITLE_FILTERS)
    return dataset.Dataset(
        about=GAME_INFO,
        primary=dataset.PartyTable.excluding(("name", LABEL), steam, DROPPED),
        label=LABEL,
        secondaries=(dataset.SecondaryTable("rawg", read_rawg(paths["rawg"]), link),),
    )


def _steam(path: Path) -> pl.DataFrame:
    frame = cleaning.read_columns(path, ["name", "owners", "categories", *NUMBERS], NUMBERS)
    frame = cleaning.drop_incomplete_rows(frame, path)
    popular = (pl.col("owners") != FEWEST).cast(pl.UInt8).alias(LABEL)
    frame = normalise_titles(frame.with_columns(popular).drop("owners"), "name")
    return cleaning.multi_hot(frame, "categories", ";", "cat")
