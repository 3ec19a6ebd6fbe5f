"""Films from IMDb and TMDb, two registers with different spellings and dates; not in the paper."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim_lab.datasets import cleaning, dataset

LABEL = "numvotes"
NUMBERS = ("start_year", "runtime_minutes", "averagerating")
THEIR_NUMBERS = ("popularity", "vote_average", "vote_count")
DROPPED = {"original_title": "the title once more, in another language"}

FILMS = dataset.DatasetInfo(
    name="films",
    title="films of IMDb and TMDb",
    task=dataset.DatasetTask.REGRESSION,
    measure="r2",
    unit="log10 of votes",
    records=(73_856, 25_497),
    files=(
        dataset.DatasetFile(
            "imdb",
            ("films/imdb.csv.gz", "films/imdb.csv"),
            "73,856 films of 2010 to 2019 with the number of votes",
            "IMDb, Non-commercial datasets",
            "personal and non-commercial use",
        ),
        dataset.DatasetFile(
            "tmdb",
            ("films/tmdb.csv.gz", "films/tmdb.csv"),
            "25,497 films with popularity and votes",
            "The Movie Database (TMDb), a public copy of its API",
            "unknown",
        ),
    ),
    note="not in the paper; the counts are the files'",
)


def read_films(paths: Mapping[str, Path], rng: np.random.Generator) -> dataset.Dataset:
    """Read all films of both tables, linked by title."""
    link = dataset.LinkSpec(("primary_title",), ("title",), "levenshtein-normalised", 10, casefold=True)
    return dataset.Dataset(
        about=FILMS,
        primary=dataset.PartyTable.excluding(
            (LABEL, "primary_title"), _imdb(paths["imdb"]), {"original_title": "text"}
        ),
        label=LABEL,
        secondaries=(dataset.SecondaryTable("tmdb", _tmdb(paths["tmdb"]), link),),
        transform=dataset.LabelTransform.LOG10,
    )


def _imdb(path: Path) -> pl.DataFrame:
    frame = cleaning.read_columns(path, ["primary_title", "genres", LABEL, *NUMBERS])
    frame = cleaning.cast_to_numbers(frame, (LABEL, *NUMBERS), path).drop_nulls(["primary_title", LABEL])
    frame = cleaning.require_rows(frame, path, f"a title and a {LABEL}")
    return cleaning.multi_hot(frame.with_columns(pl.col("genres").fill_null("")), "genres", ",", "genre")


def _tmdb(path: Path) -> dataset.PartyTable:
    columns = ["title", "original_language", "release_date", "genre_ids", *THEIR_NUMBERS]
    frame = cleaning.cast_to_numbers(cleaning.read_columns(path, columns), THEIR_NUMBERS, path).drop_nulls(["title"])
    year = pl.col("release_date").str.slice(0, 4).cast(pl.Int64, strict=False).alias("year")
    frame = frame.with_columns(year, pl.col("genre_ids").fill_null("").str.strip_chars("[]")).drop("release_date")
    return dataset.PartyTable.excluding(("title",), cleaning.multi_hot(frame, "genre_ids", ", ", "genre"), DROPPED)
