"""Which columns of the primary's table and of each secondary's say who is who, and how they are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from fedsim.data.frames import frame_of
from fedsim.errors import InputError, SettingError
from fedsim.linkage import Metric, metric_named

PRIMARY, COORDINATOR = "primary", "coordinator"


@dataclass(frozen=True)
class Pair:
    """How one secondary is linked: the identifier columns on both sides, in the same order, and their metric."""

    party: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    metric: Metric

    def our_identifiers(self, primary: pl.DataFrame) -> pl.DataFrame:
        """The primary's identifiers."""
        return chosen(primary, self.ours, PRIMARY)

    def their_identifiers(self, secondary: pl.DataFrame) -> pl.DataFrame:
        """The secondary's identifiers, under the primary's names."""
        return chosen(secondary, self.theirs, self.party).rename(dict(zip(self.theirs, self.ours, strict=True)))

    def their_features(self, secondary: pl.DataFrame) -> pl.DataFrame:
        """All other columns of the secondary."""
        return features_beside(secondary, self.theirs, self.party)


def tables_of(secondaries: Any) -> list[pl.DataFrame]:
    """The secondaries' tables; ``None`` means there are none."""
    if secondaries is None:
        return []
    if not isinstance(secondaries, list | tuple):
        raise SettingError(
            f"secondaries is a {type(secondaries).__name__}; give a list of tables, also for one of them"
        )
    return [frame_of(table, party=party_named(place)) for place, table in enumerate(secondaries)]


def party_named(place: int) -> str:
    """What messages and folders call the secondary at this place of the list."""
    return f"secondary-{place + 1}"


def pairs_for(count: int, link_on: Any, metric: Any) -> list[Pair]:
    """A pair per secondary.

    ``link_on`` is a list of columns that all tables have, or one such list per secondary, or a mapping from the
    primary's names to the secondary's; ``metric`` is one for all or a list.

    >>> [(pair.party, pair.theirs) for pair in pairs_for(2, [["lat", "lon"], {"name": "title"}], "euclidean")]
    [('secondary-1', ('lat', 'lon')), ('secondary-2', ('title',))]
    """
    columns = _per_secondary(link_on, count)
    metrics = list(metric) if isinstance(metric, list | tuple) else [metric] * count
    if len(metrics) != count:
        raise SettingError(
            f"metric names {len(metrics)} metrics for {count} secondaries; give one, or one per secondary"
        )
    return [_pair(party_named(place), *both) for place, both in enumerate(zip(columns, metrics, strict=True))]


def _per_secondary(link_on: Any, count: int) -> list[Any]:
    if isinstance(link_on, str):
        return [[link_on]] * count
    if isinstance(link_on, Mapping) or all(isinstance(name, str) for name in link_on):
        return [link_on] * count
    if len(link_on) != count:
        raise SettingError(
            f"link_on holds {len(link_on)} lists of columns for {count} secondaries; give one list for all of them, or "
            "one per secondary"
        )
    return list(link_on)


def our_columns(link_on: Any) -> list[str]:
    """The primary's identifier columns, each once, whatever form ``link_on`` has.

    >>> our_columns([["lat", "lon"], {"lat": "latitude", "name": "title"}])
    ['lat', 'lon', 'name']
    """
    if isinstance(link_on, str):
        return [link_on]
    columns = [[entry] if isinstance(entry, str) else list(entry) for entry in link_on]
    return list(dict.fromkeys(name for some in columns for name in some))


def _pair(party: str, columns: Mapping[str, str] | Sequence[str], metric: str | Metric) -> Pair:
    both = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    if not both:
        raise SettingError(
            f"link_on names no column for {party}; name those that say who is who, such as ['lat', 'lon']"
        )
    return Pair(party, tuple(both), tuple(both.values()), metric_named(metric))


def chosen(frame: pl.DataFrame, columns: Sequence[str], party: str) -> pl.DataFrame:
    """Some columns of a party's table."""
    for name in columns:
        if name not in frame.columns:
            raise InputError(
                f"the {party} table has no column '{name}' to link on; it has {', '.join(map(repr, frame.columns))}"
            )
    return frame.select(columns)


def features_beside(frame: pl.DataFrame, identifiers: Sequence[str], party: str) -> pl.DataFrame:
    """What is left of a party's table without its identifiers."""
    features = frame.drop(chosen(frame, identifiers, party).columns)
    if not features.width:
        raise InputError(f"the {party} table has no columns beside its identifiers; it needs at least one feature")
    return features
