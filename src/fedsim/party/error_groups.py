"""Where a model errs: the error of the test records by groups of the primary's own columns and by similarity.

Groups are told in reports, which are passed on: no name of a group is one record's value, and columns that say who
somebody is have no groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.column_words import says_part_of_name, says_person
from fedsim.party.run_record import GroupError
from fedsim.types import Floats

FEWEST = 10  # records of a group; a smaller one is not told
PARTS = 5  # of a column of numbers
MOST_WORDS = 6  # of a column of words
MOST_COLUMNS = 40
DIGITS = 3  # that count, of an edge that few records have
OTHER = "other"
NEAREST = "similarity to the nearest of "  # then the secondary's name, which is no column's
Group = tuple[str, NDArray[np.bool_]]


def grouped(columns: Mapping[str, pl.Series], wrong: Floats, *, numbers: bool) -> list[GroupError]:
    """Errors by group for every column; ``wrong`` is predicted less true, or 1 where a class is wrong.

    >>> town = pl.Series(["a"] * 10 + ["b"] * 10 + ["c"])
    >>> [(g.group, g.error) for g in grouped({"town": town}, np.repeat([0.0, 2.0, 9.0], [10, 10, 1]), numbers=True)]
    [('a', 0.0), ('b', 2.0)]
    """
    told = [name for name in columns if not is_personal(name)][:MOST_COLUMNS]
    found = [
        _error(name, group, wrong[inside], numbers)
        for name in told
        for group, inside in _groups(columns[name])
        if inside.sum() >= FEWEST
    ]
    return [group for group in found if math.isfinite(group.error)]


def is_personal(column: str) -> bool:
    """Whether a column's name says that it tells who somebody is.

    >>> [is_personal(name) for name in ("last_name", "firstName", "e-mail", "tournaments", "first_floor_area", "area")]
    [True, True, True, False, True, False]
    """
    return not column.startswith(NEAREST) and (says_person(column) or says_part_of_name(column))


def _error(by: str, group: str, inside: Floats, numbers: bool) -> GroupError:
    if numbers:
        with np.errstate(over="ignore"):
            return GroupError(by, group, len(inside), float(np.sqrt(np.square(inside).mean())), float(inside.mean()))
    return GroupError(by, group, len(inside), float(inside.mean()), None)


def _groups(column: pl.Series) -> list[Group]:
    """Names and members, in the order in which they are told; none for a column that has no natural groups."""
    if column.dtype.is_numeric():
        values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        several = np.unique(values[np.isfinite(values)])
        return _parts(values) if len(several) > PARTS else [(_number(value), values == value) for value in several]
    return _words(column.cast(pl.String)) if column.dtype in (pl.String, pl.Boolean) else []


def _parts(values: Floats) -> list[Group]:
    """Numbers in parts of about equal size, from small to large; the outer ones are open, for their ends are records'.

    >>> [name for name, _ in _parts(np.linspace(10123.0, 98765.0, 200))]
    ['below 27,900', '27,900 to below 45,800', '45,800 to below 63,600', '63,600 to below 81,400', '81,400 and more']
    >>> [name for name, _ in _parts(np.repeat([0, 0, 1, 2, 3, 5, 6, 7, 8, 9], 20).astype(float))]
    ['0', '1 to 2', '3 to 5', '6 to 7', '8 and more']
    """
    finite = values[np.isfinite(values)]
    inner = np.quantile(finite, np.arange(1, PARTS) / PARTS, method="higher")
    edges = np.unique([_common(float(edge), finite) for edge in inner])
    place = np.searchsorted(edges, values, side="right")
    whole = bool((finite == np.floor(finite)).all())
    between = [_between(float(low), float(high), whole) for low, high in pairwise(edges)]
    names = [f"below {_number(float(edges[0]))}", *between, f"{_number(float(edges[-1]))} and more"]
    parts = [(name, (place == number) & ~np.isnan(values)) for number, name in enumerate(names)]
    return [(_same(values[inside]) or name, inside) for name, inside in parts]


def _between(low: float, high: float, whole: bool) -> str:
    return f"{_number(low)} to {_number(high - 1)}" if whole else f"{_number(low)} to below {_number(high)}"


def _same(values: Floats) -> str:
    """The number that all of them are, where they are one and enough records have it."""
    same = len(values) >= FEWEST and np.isfinite(values[0]) and (values == values[0]).all()
    return _number(float(values[0])) if same else ""


def _common(edge: float, values: Floats) -> float:
    """The edge itself where many records have it, such as a year, else a rounded one."""
    return edge if (values == edge).sum() >= FEWEST else float(f"{edge:.{DIGITS}g}")


def _number(value: float) -> str:
    return f"{value:,.10g}" if abs(value) >= 1e4 else f"{value:.10g}"


def _words(column: pl.Series) -> list[Group]:
    """The commonest words in their order, and one group for all others."""
    common = sorted(column.drop_nulls().value_counts(sort=True).head(MOST_WORDS).to_series(0).to_list())
    members = [(word, (column == word).fill_null(False).to_numpy()) for word in common]
    others = (~column.is_in(common)).fill_null(False).to_numpy()
    return [*members, (OTHER, others)]
