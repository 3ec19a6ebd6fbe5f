"""Two public tables of the game database RAWG: the authors' (``game_info``), and a smaller one with fewer columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fedsim.data.datasets.dataset import Table
from fedsim.data.datasets.reading import as_numbers, complete, flags, some
from fedsim.data.datasets.titles import bare_titles
from fedsim.data.header import choose
from fedsim.data.kinds import dates
from fedsim.data.readers import read_table

YEAR = 2020
LONGEST = 100  # hours of playtime; the authors took more for an error


@dataclass(frozen=True)
class Form:
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
AUTHORS = Form(
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
SMALL = Form(
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


def read_rawg(path: Path) -> Table:
    """Games of distinct titles with a date and less than 100 hours of playtime, as the authors kept them."""
    frame = read_table(path, None)
    form = SMALL if SMALL.title in frame.columns else AUTHORS
    choose(path, frame.columns, form.columns)
    websites = [(~frame[name].is_null()).cast(pl.UInt8).alias("has_website") for name in form.website]
    frame = as_numbers(frame.select(form.columns), form.numbers, path).drop(form.website).hstack(websites)
    for column, years in form.years.items():
        moment = dates(frame[column], party=str(path))
        frame = frame.drop(column).with_columns((YEAR - moment.dt.year()).alias(years))
    for column, prefix in form.lists.items():
        frame = flags(frame.with_columns(pl.col(column).fill_null("")), column, form.separator, prefix)
    frame = complete(frame, path).filter(pl.col(form.playtime) < LONGEST)
    frame = bare_titles(some(frame, path, f"a playtime below {LONGEST} hours").rename({form.title: "name"}), "name")
    return Table(frame, tuple(name for name in frame.columns if name != "name"), form.dropped)
