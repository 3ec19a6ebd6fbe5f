"""Which columns of the primary's table and of each secondary's say who is who, and how they are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from fedsim.data.frames import frame_of
from fedsim.errors import InputError, SettingError, nearest_word
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


def columns_named(link_on: Any) -> Any:
    """``link_on`` with every name as text, as our frames have them: pandas also counts columns.

    >>> columns_named([[0, 1], {"name": 2}])
    [['0', '1'], {'name': '2'}]
    """
    if isinstance(link_on, list):
        return [_names(entry) if isinstance(entry, list | dict) else _name(entry) for entry in link_on]
    return _names(link_on) if isinstance(link_on, dict) else [_name(link_on)]


def _names(columns: list[Any] | dict[Any, Any]) -> Any:
    if isinstance(columns, dict):
        return {_name(ours): _name(theirs) for ours, theirs in columns.items()}
    return [_name(column) for column in columns]


def _name(column: Any) -> str:
    if not isinstance(column, str | int) or isinstance(column, bool):
        raise SettingError(f"link_on holds a {type(column).__name__} for a column; name columns by text or number")
    return str(column)


def _per_secondary(link_on: Any, count: int) -> list[Any]:
    if isinstance(link_on, Mapping) or all(isinstance(name, str) for name in link_on):
        return [link_on] * count
    if len(link_on) != count:
        raise SettingError(
            f"link_on holds {len(link_on)} lists of columns for {count} secondaries; give one list for all of them, or "
            "one per secondary"
        )
    return [[entry] if isinstance(entry, str) else entry for entry in link_on]


def our_columns(link_on: Any) -> list[str]:
    """The primary's identifier columns, each once, whatever form ``link_on`` has.

    >>> our_columns([["lat", "lon"], {"lat": "latitude", "name": "title"}])
    ['lat', 'lon', 'name']
    """
    columns = [[entry] if isinstance(entry, str) else list(entry) for entry in link_on]
    return list(dict.fromkeys(name for some in columns for name in some))


def _pair(party: str, columns: Mapping[str, str] | Sequence[str], metric: str | Metric) -> Pair:
    ours, theirs = tuple(columns), tuple(columns.values() if isinstance(columns, Mapping) else columns)
    if not ours:
        raise SettingError(
            f"link_on names no column for {party}; name those that say who is who, such as ['lat', 'lon']"
        )
    twice = [name for side in (ours, theirs) for name in side if side.count(name) > 1]
    if twice:
        raise SettingError(f"link_on names column '{twice[0]}' twice for {party}; a column says who is who once")
    return Pair(party, ours, theirs, metric_named(metric))


def check_kinds(
    kinds: Mapping[str, str],
    tables: tuple[pl.DataFrame, Sequence[pl.DataFrame]],
    identifiers: Sequence[str],
    pairs: Sequence[Pair],
) -> None:
    """Every declared kind speaks of a feature of some table; a misspelt name must not pass in silence."""
    primary, secondaries = tables
    theirs = [pair.theirs for pair in pairs] or [()] * len(secondaries)
    both = zip((primary, *secondaries), (identifiers, *theirs), strict=True)
    features = {name for table, own in both for name in table.columns if name not in own}
    columns = {name for table in (primary, *secondaries) for name in table.columns}
    for name in kinds:
        if name not in columns:
            near = nearest_word(name, columns)
            hint = f"did you mean '{near}'?" if near else "name one of their columns"
            raise SettingError(f"kinds names column '{name}', which no table has; {hint}")
        if name not in features:
            raise SettingError(
                f"kinds names column '{name}', which identifies records and is no feature; leave it out, or set "
                "use_identifiers for the primary's own"
            )


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
