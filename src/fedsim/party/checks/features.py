"""Features that can be prepared, and those that probably mean something else than they look like."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from fedsim.data.columns import DECIMAL_COMMA
from fedsim.data.features import Rules, fit_preparation
from fedsim.data.typed import typed
from fedsim.party.checks.finding import Finding, ok, warning
from fedsim.party.checks.subject import Case

MOST, FEW = 0.9, 20  # share of the cells that make a rule; records below which no rule shows
SHOWN = 3
ISO_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"


def features(case: Case) -> Iterator[Finding]:
    """What is learnt from."""
    if case.table is None or case.columns is None:
        return
    missing = case.own.data.missing if case.own.data else ()
    frame, kinds = typed(case.table.frame.select(case.columns.features or ()), missing), case.own.features.kinds
    open_kinds = frame.select(column for column in frame.columns if column not in kinds)
    for suspect, (what, fix) in _SUSPECTS.items():
        names = [column.name for column in open_kinds.iter_columns() if suspect(column)]
        if names:
            yield warning("features", f"{_listed(names)}: {what}", fix)
            open_kinds = open_kinds.drop(names)
    fit_preparation(frame, party=str(case.own.party), rules=Rules(kinds=kinds))
    yield ok("features", f"{frame.width:,}, all can be prepared")


def _is_empty(column: pl.Series) -> bool:
    return column.null_count() == len(column)


def _has_commas(column: pl.Series) -> bool:
    return _mostly(column, DECIMAL_COMMA)


def _is_almost_numbers(column: pl.Series) -> bool:
    """Text only because a few cells are none; such words belong under ``data.missing``."""
    if column.dtype != pl.String or len(column) < FEW:
        return False
    numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
    return len(column) - numbers.null_count() >= MOST * (len(column) - column.null_count())


def _is_dates(column: pl.Series) -> bool:
    return _mostly(column, ISO_DAY)


def _counts_records(column: pl.Series) -> bool:
    """A different word in nearly every record, or numbers one after the other: it names the record."""
    if len(column) < FEW:
        return False
    if column.dtype == pl.String:
        return column.n_unique() > MOST * len(column)
    if not column.dtype.is_numeric() or column.n_unique() < len(column):
        return False
    return float(column.max()) - float(column.min()) == len(column) - 1  # type: ignore[arg-type]


# In this order: a column is suspected of the first that fits.
_SUSPECTS: dict[Callable[[pl.Series], bool], tuple[str, str]] = {
    _is_empty: ("no value at all", "leave it out: [features] drop"),
    _has_commas: ("decimal commas, learnt as words", "write decimals with a point"),
    _is_almost_numbers: ("numbers but for some cells, learnt as words", "name such words in data.missing"),
    _is_dates: ("dates, learnt as words", 'say so: [features] kinds = { ... = "date" }'),
    _counts_records: ("another value in every record; a name or number of it?", "leave it out: [features] drop"),
}


def _mostly(column: pl.Series, pattern: str) -> bool:
    if column.dtype != pl.String:
        return False
    there = column.drop_nulls().str.strip_chars()
    return len(there) > 0 and float(there.str.contains(pattern).mean() or 0.0) >= MOST  # type: ignore[arg-type]


def _listed(names: list[str]) -> str:
    """The first names, and how many more.

    >>> _listed(["a", "b", "c", "d", "e"])
    'columns a, b, c and 2 more'
    """
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"column{'s' * (len(names) > 1)} {', '.join(names[:SHOWN])}{more}"
