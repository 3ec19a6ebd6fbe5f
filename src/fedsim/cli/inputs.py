"""What the two parties bring to a linkage: columns read and checked by the metric that compares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from fedsim.data.columns import date, number, text
from fedsim.data.readers import read_table
from fedsim.data.sql_source import Source
from fedsim.errors import SettingError
from fedsim.linkage.choices import metric_named
from fedsim.linkage.encoded_file import load_encoded
from fedsim.linkage.metric import Metric
from fedsim.linkage.metrics.filters import Dice, Hamming, RankHamming
from fedsim.linkage.metrics.places import Days, Euclidean, GreatCircle
from fedsim.linkage.metrics.text import Levenshtein
from fedsim.linkage.metrics.weighted import Field, WeightedSum

FILTERS = (Hamming, Dice)
CELLS: dict[type, Callable[..., pl.Series]] = {
    Euclidean: number,
    GreatCircle: number,
    RankHamming: number,
    Days: date,
    Levenshtein: text,
}


@dataclass(frozen=True)
class Side:
    """One party's table, its columns to compare, what stands between its cells and the option that says so."""

    table: Source
    columns: list[str]
    separator: str | None
    separator_option: str


def identifiers(side: Side, metric: Metric, names: Sequence[str]) -> Any:
    """The encoded table, or the side's columns under the common ``names``, in the type the metric wants."""
    if isinstance(metric, FILTERS):
        if side.columns:
            raise SettingError(f"--metric {metric.name} compares filters, which have no columns; leave out --on")
        return load_encoded(_file(side.table))
    if not side.columns:
        raise SettingError("no columns to compare; name them with --on, for example --on lat,lon")
    wanted = list(dict.fromkeys(side.columns))
    frame = read_table(side.table, wanted, separator=side.separator, option=side.separator_option)
    readers = [CELLS[type(part)] for part in _metric_by_column(metric, len(names))]
    return pl.DataFrame(
        [
            read(frame[column], table=str(side.table)).alias(name)
            for column, name, read in zip(side.columns, names, readers, strict=True)
        ]
    )


def _file(table: Source) -> Path:
    if isinstance(table, Path):
        return table
    raise SettingError(f"{table} is a database; filters are in files that `fedsim encode` wrote")


def _metric_by_column(metric: Metric, columns: int) -> list[Metric]:
    if not isinstance(metric, WeightedSum):
        return [metric] * columns
    return [field.measure for field in metric.fields for _ in field.columns]


def parse_field(words: str) -> Field:
    """``column:metric`` or ``column:metric:weight``; a place has two columns, ``lat,lon:great-circle:0.001``.

    >>> parse_field("born:days:0.5")
    Field(column='born', metric=Days(name='days', whole=False), weight=0.5)
    >>> parse_field("name:levenshtein").weight
    1.0
    """
    head, _, last = words.rpartition(":")
    weight = _as_weight(last)
    column, _, word = (words if weight is None else head).rpartition(":")
    if not column:
        raise SettingError(f"--field {words!r} is not column:metric:weight, such as name:levenshtein:2.0")
    metric = metric_named(word)
    if isinstance(metric, (RankHamming, *FILTERS)):
        raise SettingError(
            f"--field {words!r}: {word} does not compare columns; use euclidean, great-circle, days or a text metric"
        )
    return Field(column, metric, 1.0 if weight is None else weight)


def distinct_fields(fields: Sequence[Field]) -> tuple[Field, ...]:
    """The fields under names of their own, so that one column may count in several ways.

    >>> [field.column for field in distinct_fields([parse_field("born:days"), parse_field("born:levenshtein")])]
    ['born', 'born (field 2)']
    """
    seen: set[str] = set()
    found = []
    for place, field in enumerate(fields):
        names = [f"{name} (field {place + 1})" if name in seen else name for name in field.columns]
        found.append(replace(field, column=",".join(names)))
        seen.update(names)
    return tuple(found)


def _as_weight(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
