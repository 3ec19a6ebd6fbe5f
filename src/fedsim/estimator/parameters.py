"""The constructor's parameters, checked: settings, and the identifier columns that link each secondary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

import polars as pl
from sklearn.utils import check_random_state

from fedsim.data.table_reader import to_polars
from fedsim.errors import InputError, SettingError, nearest_word
from fedsim.linkage import Metric, get_metric

# Which columns of the primary's table and of each secondary's say who is who, and how they are compared


PRIMARY, COORDINATOR = "primary", "coordinator"


@dataclass(frozen=True)
class LinkedColumns:
    """How one secondary is linked: the identifier columns on both sides, in the same order, and their metric."""

    party: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    metric: Metric

    def primary_identifiers(self, primary: pl.DataFrame) -> pl.DataFrame:
        """The primary's identifiers."""
        return select_columns(primary, self.ours, PRIMARY)

    def secondary_identifiers(self, secondary: pl.DataFrame) -> pl.DataFrame:
        """The secondary's identifiers, under the primary's names."""
        return select_columns(secondary, self.theirs, self.party).rename(dict(zip(self.theirs, self.ours, strict=True)))

    def secondary_features(self, secondary: pl.DataFrame) -> pl.DataFrame:
        """All other columns of the secondary."""
        return drop_identifiers(secondary, self.theirs, self.party)


def secondary_tables(secondaries: Any) -> list[pl.DataFrame]:
    """The secondaries' tables; ``None`` means there are none."""
    if secondaries is None:
        return []
    if not isinstance(secondaries, list | tuple):
        raise SettingError(
            f"secondaries is a {type(secondaries).__name__}; give a list of tables, also for one of them"
        )
    return [to_polars(table, party=secondary_name(place)) for place, table in enumerate(secondaries)]


def secondary_name(place: int) -> str:
    """What messages and folders call the secondary at this place of the list."""
    return f"secondary-{place + 1}"


def columns_per_secondary(count: int, link_on: Any, metric: Any) -> list[LinkedColumns]:
    """A pair per secondary.

    ``link_on`` is a list of columns that all tables have, or one such list per secondary, or a mapping from the
    primary's names to the secondary's; ``metric`` is one for all or a list.

    >>> pairs = columns_per_secondary(2, [["lat", "lon"], {"name": "title"}], "euclidean")
    >>> [(pair.party, pair.theirs) for pair in pairs]
    [('secondary-1', ('lat', 'lon')), ('secondary-2', ('title',))]
    """
    columns = _per_secondary(link_on, count)
    metrics = list(metric) if isinstance(metric, list | tuple) else [metric] * count
    if len(metrics) != count:
        raise SettingError(
            f"metric names {len(metrics)} metrics for {count} secondaries; give one, or one per secondary"
        )
    return [
        _linked_columns(secondary_name(place), *both) for place, both in enumerate(zip(columns, metrics, strict=True))
    ]


def normalise_link_on(link_on: Any) -> Any:
    """``link_on`` with every name as text, as our frames have them: pandas also counts columns.

    >>> normalise_link_on([[0, 1], {"name": 2}])
    [['0', '1'], {'name': '2'}]
    """
    if isinstance(link_on, list):
        return [_column_names(entry) if isinstance(entry, list | dict) else _column_name(entry) for entry in link_on]
    return _column_names(link_on) if isinstance(link_on, dict) else [_column_name(link_on)]


def _column_names(columns: list[Any] | dict[Any, Any]) -> Any:
    if isinstance(columns, dict):
        return {_column_name(ours): _column_name(theirs) for ours, theirs in columns.items()}
    return [_column_name(column) for column in columns]


def _column_name(column: Any) -> str:
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


def primary_link_columns(link_on: Any) -> list[str]:
    """The primary's identifier columns, each once, whatever form ``link_on`` has.

    >>> primary_link_columns([["lat", "lon"], {"lat": "latitude", "name": "title"}])
    ['lat', 'lon', 'name']
    """
    columns = [[entry] if isinstance(entry, str) else list(entry) for entry in link_on]
    return list(dict.fromkeys(name for some in columns for name in some))


def _linked_columns(party: str, columns: Mapping[str, str] | Sequence[str], metric: str | Metric) -> LinkedColumns:
    ours, theirs = tuple(columns), tuple(columns.values() if isinstance(columns, Mapping) else columns)
    if not ours:
        raise SettingError(
            f"link_on names no column for {party}; name those that say who is who, such as ['lat', 'lon']"
        )
    twice = [name for side in (ours, theirs) for name in side if side.count(name) > 1]
    if twice:
        raise SettingError(f"link_on names column '{twice[0]}' twice for {party}; a column says who is who once")
    return LinkedColumns(party, ours, theirs, get_metric(metric))


def check_kinds(
    kinds: Mapping[str, str],
    tables: tuple[pl.DataFrame, Sequence[pl.DataFrame]],
    identifiers: Sequence[str],
    pairs: Sequence[LinkedColumns],
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


def select_columns(frame: pl.DataFrame, columns: Sequence[str], party: str) -> pl.DataFrame:
    """Some columns of a party's table."""
    for name in columns:
        if name not in frame.columns:
            raise InputError(
                f"the {party} table has no column '{name}' to link on; it has {', '.join(map(repr, frame.columns))}"
            )
    return frame.select(columns)


def drop_identifiers(frame: pl.DataFrame, identifiers: Sequence[str], party: str) -> pl.DataFrame:
    """What is left of a party's table without its identifiers."""
    features = frame.drop(select_columns(frame, identifiers, party).columns)
    if not features.width:
        raise InputError(f"the {party} table has no columns beside its identifiers; it needs at least one feature")
    return features


# The constructor's parameters as plain values of the right type; the estimator keeps what it was given
#
# Searches hand over NumPy numbers and pandas indexes, which JSON does not know. Ranges are checked where a value is
# used.


MAX_SEED = 2**31 - 1
PRINTABLE_TYPES = (
    str,
    int,
    float,
    type(None),
)  # a message may repeat these values; anything else could be somebody's data
TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a word",
    list: "a list",
    dict: "a mapping",
    type(None): "None",
}


@dataclass(frozen=True)
class EstimatorSettings:
    """What the user asked for; the annotations are what is checked."""

    link_on: str | int | list[Any] | dict[Any, Any]
    metric: Any
    k: int
    sigma: float
    tau: float | None
    method: Any
    preset: str
    use_identifiers: bool
    kinds: dict[Any, Any] | None
    epochs: int | None
    batch_size: int | None
    learning_rate: float | None
    patience: int | None
    validation_fraction: float
    validation_split: str
    device: str

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(EstimatorSettings).items():
            _check_type(name, getattr(self, name), hint)
        if not (isinstance(self.method, str) or (hasattr(self.method, "build") and not isinstance(self.method, type))):
            raise SettingError(f"a {type(self.method).__name__} is no method; give a word such as 'fedsim'")


def estimator_settings(estimator: Any) -> EstimatorSettings:
    """An estimator's parameters, checked; names of columns are text, as in our frames."""
    given = {entry.name: to_builtin(getattr(estimator, entry.name)) for entry in fields(EstimatorSettings)}
    settings = EstimatorSettings(**given)
    kinds = settings.kinds and {str(name): word for name, word in settings.kinds.items()}
    return EstimatorSettings(**{**given, "link_on": normalise_link_on(settings.link_on), "kinds": kinds})


def to_builtin(value: Any) -> Any:
    """NumPy and pandas values as Python's own.

    >>> import numpy as np
    >>> to_builtin((np.int64(3), {"k": np.array(["lat", "lon"])}))
    [3, {'k': ['lat', 'lon']}]
    """
    if isinstance(value, Mapping):
        return {to_builtin(name): to_builtin(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtin(entry) for entry in value]
    as_list = getattr(value, "tolist", None) or getattr(value, "to_list", None)
    return as_list() if callable(as_list) and not isinstance(value, type) else value


def draw_seed(random_state: Any) -> int:
    """A seed by scikit-learn's rules: a number, a generator that is drawn from, or chance."""
    try:
        return int(check_random_state(random_state).randint(MAX_SEED))
    except (TypeError, ValueError):
        raise SettingError(
            f"random_state={_format_value(random_state)}; give an integer from 0 to {2**32 - 1}, a RandomState or None"
        ) from None


def _check_type(name: str, value: Any, hint: Any) -> None:
    if hint is Any:
        return
    kinds = [get_origin(kind) or kind for kind in (get_args(hint) or (hint,))]
    allowed = (*kinds, int) if float in kinds else tuple(kinds)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in kinds):
        raise SettingError(f"{name}={_format_value(value)}; give {' or '.join(TYPE_NAMES[kind] for kind in kinds)}")


def _format_value(value: Any) -> str:
    return repr(value) if isinstance(value, PRINTABLE_TYPES) else f"<{type(value).__name__}>"
