"""Films of two registers."""

from __future__ import annotations

from pathlib import Path

from dataset_files import ROWS, words, write
from fedsim_lab.datasets.dataset_registry import load_dataset


def test_films_have_columns_of_genres_and_the_logarithm_of_votes(tmp_path: Path) -> None:
    imdb = {
        "primary_title": [f"Film {row}" for row in range(ROWS)],
        "original_title": [f"Filme {row}" for row in range(ROWS)],
        "start_year": [2013] * ROWS,
        "runtime_minutes": [None, *([90] * (ROWS - 1))],
        "genres": words("Action,Crime", "Drama"),
        "averagerating": [7.0] * ROWS,
        "numvotes": [100] * ROWS,
    }
    tmdb = {
        "genre_ids": words("[12, 14]", "[]"),
        "original_language": words("en", "fr"),
        "original_title": [f"Filme {row}" for row in range(ROWS)],
        "popularity": [1.5] * ROWS,
        "release_date": words("2010-11-19", ""),
        "title": [f"film {row}" for row in range(ROWS)],
        "vote_average": [7.7] * ROWS,
        "vote_count": [10] * ROWS,
    }
    write(tmp_path, "films/imdb.csv", imdb)
    write(tmp_path, "films/tmdb.csv", tmdb)
    films = load_dataset("films", tmp_path)
    assert films.primary.features[-3:] == ("genre_Action", "genre_Crime", "genre_Drama")
    assert films.secondaries[0].table.features[-3:] == ("year", "genre_12", "genre_14")
    assert (films.labels == 2).all()
