"""Where a model errs: the error of the test records by groups of the primary's own columns and by similarity."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.party.run_record import GroupError
from fedsim.types import Floats

FEWEST = 10  # records of a group; a smaller one is not told
PARTS = 5  # of a column of numbers
MOST_WORDS = 6  # of a column of words
MOST_COLUMNS = 40
OTHER = "other"
Group = tuple[str, NDArray[np.bool_]]


def grouped(columns: Mapping[str, pl.Series], wrong: Floats, *, numbers: bool) -> list[GroupError]:
    """Errors by group for every column; ``wrong`` is predicted less true, or 1 where a class is wrong.

    >>> town = pl.Series(["a"] * 10 + ["b"] * 10 + ["c"])
    >>> [(g.group, g.error) for g in grouped({"town": town}, np.repeat([0.0, 2.0, 9.0], [10, 10, 1]), numbers=True)]
    [('a', 0.0), ('b', 2.0)]
    """
    return [
        _error(name, group, wrong[inside], numbers)
        for name, column in list(columns.items())[:MOST_COLUMNS]
        for group, inside in _groups(column)
        if inside.sum() >= FEWEST
    ]


def _error(by: str, group: str, inside: Floats, numbers: bool) -> GroupError:
    if numbers:
        return GroupError(by, group, len(inside), float(np.sqrt(np.square(inside).mean())), float(inside.mean()))
    return GroupError(by, group, len(inside), float(inside.mean()), None)


def _groups(column: pl.Series) -> list[Group]:
    """Names and members, in the order in which they are told; none for a column that has no natural groups."""
    if column.dtype.is_numeric() and column.n_unique() > PARTS:
        return _parts(column.cast(pl.Float64).fill_null(float("nan")).to_numpy())
    if column.dtype.is_numeric() or column.dtype in (pl.String, pl.Boolean):
        return _words(column.cast(pl.String))
    return []


def _parts(values: Floats) -> list[Group]:
    """Numbers in parts of about equal size, named by their ends, from small to large."""
    edges = np.unique(np.nanquantile(values, np.linspace(0.0, 1.0, PARTS + 1)))
    place = np.searchsorted(edges[1:-1], values, side="right")
    return [
        (f"{low:.4g} to {high:.4g}", (place == number) & ~np.isnan(values))
        for number, (low, high) in enumerate(pairwise(edges))
    ]


def _words(column: pl.Series) -> list[Group]:
    """The commonest words in their order, and one group for all others."""
    common = sorted(column.drop_nulls().value_counts(sort=True).head(MOST_WORDS).to_series(0).to_list())
    members = [(word, (column == word).fill_null(False).to_numpy()) for word in common]
    others = (~column.is_in(common)).fill_null(False).to_numpy()
    return [*members, (OTHER, others)]
