"""Inputs of the linkage benchmarks: real places and titles, enlarged to the paper's sizes with realistic variants.

The real files are read from the folder ``FEDSIM_DATA`` (default ``data``); without them, all tables are generated.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl

DATA = Path(os.environ.get("FEDSIM_DATA", Path(__file__).parents[1] / "data"))
EDITIONS = (
    "deluxe edition",
    "remastered",
    "ii",
    "iii",
    "2",
    "3",
    "vr",
    "online",
    "the beginning",
    "gold",
    "hd",
    "demo",
)


def column(name: str, file: str) -> list[str]:
    """Return the distinct lower-case texts of one column, sorted."""
    values = pl.read_csv(DATA / file, columns=[name])[name].drop_nulls()
    return values.cast(pl.String).str.to_lowercase().unique().sort().to_list()


def real() -> bool:
    return DATA.is_dir()


def steam_titles(n: int = 26_987) -> list[str]:
    """Return the queries of the paper's game job."""
    if not real():
        return variants(["space quest", "star city", "dark forest tales"], n, np.random.default_rng(1))
    return column("name", "game/steam.csv.gz")[:n]


def catalogue(n: int = 439_999) -> list[str]:
    """Return candidates for the paper's game job: real titles, then sequels, editions, typos and new combinations."""
    if not real():
        return variants(["space quest", "star city", "dark forest tales"], n, np.random.default_rng(2))
    titles: dict[str, None] = {}
    for name, file in (("Name", "rawg"), ("Name", "metacritic"), ("Name", "vgsales"), ("name", "steam")):
        titles |= dict.fromkeys(column(name, f"game/{file}.csv.gz"))
    return variants(list(titles), n, np.random.default_rng(2))


def variants(titles: list[str], n: int, rng: np.random.Generator) -> list[str]:
    """Return ``n`` distinct titles: the given ones and near copies of them."""
    words = np.array(" ".join(titles).split())
    found = dict.fromkeys(titles)
    while len(found) < n:
        title = titles[rng.integers(len(titles))]
        change = rng.integers(4)
        if change == 0:
            title = f"{title} {EDITIONS[rng.integers(len(EDITIONS))]}"
        elif change == 1 and title:
            place = rng.integers(len(title))
            title = title[:place] + "abcdefghijklmnopqrstuvwxyz"[rng.integers(26)] + title[place + 1 :]
        elif change == 2:
            title = " ".join([*title.split()[:-1], words[rng.integers(len(words))]])
        else:
            title = " ".join(words[rng.integers(len(words), size=rng.integers(2, 6))])
        found[title] = None
    return list(found)[:n]


def beijing(n_homes: int = 141_050) -> tuple[np.ndarray, np.ndarray]:
    """Return homes and listings as (lat, lon); real homes are repeated with 100 m of jitter to reach the paper's."""
    rng = np.random.default_rng(3)
    if not real():
        return city(n_homes, rng), city(27_827, rng)
    homes = pl.read_csv(DATA / "house/lianjia_sample.csv.gz").select("Lat", "Lng").to_numpy()
    listings = pl.read_csv(DATA / "house/airbnb_beijing.csv.gz").select("lat", "lon").to_numpy()
    chosen = homes[rng.integers(len(homes), size=n_homes)]
    return chosen + rng.normal(0, 1e-3, chosen.shape), listings


def city(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return points in a few hundred neighbourhoods."""
    centres = rng.normal(0, 0.1, (300, 2)) + np.array([39.9, 116.4])
    return centres[rng.integers(300, size=n)] + rng.normal(0, 0.01, (n, 2))
