"""Titles as the paper compares them."""

from __future__ import annotations

import polars as pl


def bare_titles(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Titles in lower case without blanks and signs; of equal ones the first row stays, empty ones go.

    >>> bare_titles(pl.DataFrame({"name": ["Half-Life 2", "Half Life 2!", "?"]}), "name")["name"].to_list()
    ['halflife2']
    """
    bare = frame.with_columns(pl.col(column).str.replace_all(r"\W", "").str.to_lowercase())
    return bare.filter(pl.col(column) != "").unique(column, keep="first", maintain_order=True)
