"""Check what users pass to an estimator: tables, labels, parameters and the columns that link each secondary."""

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

import narwhals as nw
import numpy as np
import polars as pl
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from fedsim.data.column_names import have_same_name
from fedsim.data.profile import guess_metrics
from fedsim.data.table_reader import to_polars
from fedsim.errors import FedSimError, InputError, SettingError, nearest_word, replace_unprintable
from fedsim.hyperparameters import TrainingSettings
from fedsim.linkage import Metric, get_metric
from fedsim.linkage.metrics import combine_metrics
from fedsim.registry import METHODS
from fedsim.types import AnyArray, Flags, Floats, Integers, Split

PRIMARY, COORDINATOR = "primary", "coordinator"
AUTO = "auto"  # the metric that fits the identifiers

# Tables and labels, checked by scikit-learn
#
# scikit-learn remembers the columns of training and compares them at prediction. Its messages may print data, so only
# those about columns and counts pass; all others are reworded.


SAFE_PREFIXES = (  # of scikit-learn's messages that contain no values
    "The feature names should match",
    "Feature names are only supported",
    "Found array with",
    "Found input variables with inconsistent numbers of samples",
    "X has",
)
REWORDED = {  # part of scikit-learn's message: ours; scikit-learn's estimator checks look for some of these words
    "Complex data not supported": "Complex data not supported: some values are complex numbers; give real ones",
    "Sparse data was passed": "Sparse data was passed, but dense data is required; convert it with .toarray()",
    "Reshape your data": "the table does not have two dimensions; Reshape your data to one row per record and one "
    "column per feature",
    "y should be a 1d array": "y should be a 1d array; give one label per record",
    "multi-output": "y should be a 1d array; give one label per record",
    "infinity": "the primary table contains an infinite number; correct it or leave it empty",
    "Unknown label type": "Unknown label type: the labels are continuous or mixed; a classifier needs classes that are "
    "whole numbers, text or true/false",
    "not supported between": "the labels are of several types that cannot be sorted; give all of one type",
}
FALLBACK_MESSAGE = "scikit-learn cannot read the table or its labels; give a table and one label per record"


@contextmanager
def translate_sklearn_errors() -> Iterator[None]:
    """Raise scikit-learn's errors as ours, without the data they may show."""
    try:
        yield
    except FedSimError:
        raise
    except (TypeError, ValueError) as error:
        message = str(error)
        if not message.startswith(SAFE_PREFIXES):
            message = next((ours for part, ours in REWORDED.items() if part in message), FALLBACK_MESSAGE)
        raise InputError(message, code="sklearn-check") from None


def check_table(estimator: BaseEstimator, table: Any, *, reset: bool) -> pl.DataFrame:
    """Return the primary's table; with ``reset`` the estimator remembers its columns, else they must be the same."""
    if not nw.dependencies.is_into_dataframe(table):
        with translate_sklearn_errors():
            array = validate_data(estimator, table, dtype=None, ensure_all_finite="allow-nan", reset=reset)
        frame = to_polars(array, party=PRIMARY)
        names = getattr(estimator, "feature_names_in_", frame.columns)  # of a table in training; scikit-learn warns
        return frame.rename(dict(zip(frame.columns, map(str, names), strict=True)))
    frame = to_polars(table, party=PRIMARY)  # first, because scikit-learn does not name duplicate columns
    with translate_sklearn_errors():
        validate_data(estimator, table, skip_check_array=True, reset=reset)
    if not (frame.height and frame.width):
        message = f"the {PRIMARY} table has {frame.height} records and {frame.width} columns; it needs some of both"
        raise InputError(message, code="empty-table")
    return frame


def add_identifiers(table: pl.DataFrame, identifiers: Any) -> pl.DataFrame:
    """Return the primary's table with identifiers that are passed beside it; they replace columns of their names."""
    if identifiers is None:
        return table
    own = to_polars(identifiers, party="identifiers")
    if len(own) != len(table):
        message = f"identifiers have {len(own):,} rows, but X has {len(table):,}; give one per record of X"
        raise InputError(message, code="identifier-count", limit=len(table))
    return table.with_columns(own.iter_columns())


@dataclass(frozen=True, eq=False)
class LabelledTable:
    """Records of the primary with their labels and, if there are any, their weights."""

    table: pl.DataFrame
    labels: Any
    weights: Floats | None

    def append(self, other: "LabelledTable") -> "LabelledTable":
        """Return both as one; the other table has all columns of this one."""
        rest = select_columns(other.table, self.table.columns, "eval_set")
        labels = np.concatenate([_label_column(part.labels, part.table) for part in (self, other)])
        weights = None
        if self.weights is not None or other.weights is not None:
            parts = ((part.weights, len(part.table)) for part in (self, other))
            weights = np.concatenate([np.ones(count) if found is None else found for found, count in parts])
        return LabelledTable(pl.concat([self.table, rest], how="vertical_relaxed"), labels, weights)


EVAL_SET_KEYS = ("X", "y", "identifiers", "sample_weight")


def read_eval_set(eval_set: Any, *, needs_identifiers: bool = False) -> dict[str, Any]:
    """Return the validation records as arguments of ``fit``, from ``(X, y)`` or a mapping that names more of them.

    >>> sorted(read_eval_set(("a table", "labels")))
    ['X', 'identifiers', 'sample_weight', 'y']
    """
    if isinstance(eval_set, list) and len(eval_set) == 1:  # as in LightGBM and XGBoost
        eval_set = eval_set[0]
    pair = isinstance(eval_set, tuple | list) and len(eval_set) == 2
    given = dict(zip(EVAL_SET_KEYS, eval_set, strict=False)) if pair else eval_set
    if not isinstance(given, Mapping) or not {"X", "y"} <= given.keys() <= set(EVAL_SET_KEYS):
        message = f"eval_set is neither (X, y) nor a mapping with X, y and perhaps {' and '.join(EVAL_SET_KEYS[2:])}"
        raise InputError(f"{message}; give one of these", code="invalid-eval-set")
    if needs_identifiers and given.get("identifiers") is None:
        message = "identifiers are passed beside X, but not in eval_set; give a mapping with X, y and identifiers"
        raise InputError(message, code="eval-set-without-identifiers")
    return {name: given.get(name) for name in EVAL_SET_KEYS}


def record_weights(weights: Any, n_records: int) -> Floats | None:
    """Return one finite weight per record, none negative and not all zero; None if none are given.

    >>> record_weights([1, 0, 2], 3)
    array([1., 0., 2.])
    """
    if weights is None:
        return None
    name = "sample_weight"
    try:
        values = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        message = f"{name} contains values that are not numbers; give one number per record"
        raise InputError(message, code="weight-not-a-number") from None
    if values.shape != (n_records,):
        message = f"{name} has shape {values.shape}; give one number for each of the {n_records:,} records"
        raise InputError(message, code="weight-count", limit=n_records)
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        message = f"{name} contains negative, missing or infinite weights, or zeros only; give weights above zero"
        raise InputError(message, code="invalid-weight")
    return values


def regression_labels(labels: Any, table: pl.DataFrame) -> Floats:
    """Return one finite number per record."""
    column = _label_column(labels, table)
    if column.dtype.kind not in "fiubO":
        message = f"the labels are of type {column.dtype}; a regression needs numbers"
        raise InputError(message, code="labels-not-numbers")
    try:
        values: Floats = column.astype(np.float64)
    except (TypeError, ValueError):
        message = "the labels are not all numbers; a regression needs a number per record"
        raise InputError(message, code="labels-not-numbers") from None
    _refuse_missing(~np.isfinite(values))
    return values


def class_labels(labels: Any, table: pl.DataFrame) -> tuple[AnyArray, Integers]:
    """Return the sorted classes, and for every record the position of its class among them."""
    column = _label_column(labels, table)
    with translate_sklearn_errors():
        check_classification_targets(column)
        found, places = np.unique(column, return_inverse=True)
    if len(found) < 2:
        message = "all labels are of one class; a classifier needs records of at least two classes"
        raise InputError(message, code="one-class")
    return found, places.astype(np.int64)


def label_name(labels: Any) -> str | None:
    """Return the name of the labels if they are a column of a table."""
    column = _label_series(labels)
    return None if column is None or column.name is None else str(column.name)


def _label_column(labels: Any, table: pl.DataFrame) -> AnyArray:
    if labels is None:
        raise InputError("training requires y to be passed, but the target y is None; give one label per record")
    series = _label_series(labels)
    if series is not None:
        _refuse_missing(series.is_null().to_numpy())
    with translate_sklearn_errors():
        column = np.asarray(column_or_1d(labels, warn=True) if series is None else series.to_numpy())
        check_consistent_length(table, column)
    if column.dtype.kind == "O":
        _refuse_missing(np.array([_is_missing(value) for value in column], dtype=np.bool_))
    elif column.dtype.kind in "mM":
        _refuse_missing(np.isnat(column))
    elif column.dtype.kind == "f":
        _refuse_missing(~np.isfinite(column))
    return column


def _label_series(labels: Any) -> nw.Series[Any] | None:
    """Return labels that are a column, or a table of one column; scikit-learn would turn booleans into floats."""
    found = nw.from_native(labels, pass_through=True, eager_only=True, allow_series=True)
    if isinstance(found, nw.DataFrame):
        return found[:, 0] if found.shape[1] == 1 else None
    return found if isinstance(found, nw.Series) else None


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT, infinite or pandas' NA, whose comparison with itself is not a bool."""
    equal = operator.eq(value, value)
    present = isinstance(equal, bool | np.bool_) and bool(equal)
    return value is None or not present or (isinstance(value, float | np.floating) and not np.isfinite(value))


def _refuse_missing(bad: Flags) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        message = f"the label of row {rows[0] + 1} is missing or infinite ({len(rows)} such rows); drop these records"
        raise InputError(message, code="label-missing", row=int(rows[0]) + 1)


def split_by_record(n_records: int, fraction: float, rng: np.random.Generator, kinds: AnyArray | None = None) -> Split:
    """Draw validation records one by one; with classes as ``kinds`` a similar share of each, but never its only record.

    >>> split_by_record(16, 1 / 8, np.random.default_rng(0))
    Split(14 training, 2 validation, 0 test records)
    """
    if n_records < 2:
        raise InputError("n_samples=1: one record is too few; at least one to train and one to validate are needed")
    order = rng.permutation(n_records)
    drawn = np.zeros(n_records, dtype=np.int64) if kinds is None else kinds[order]
    rank = np.empty(n_records)  # relative position among the records of its kind, from 0 to almost 1
    for kind in np.unique(drawn):
        members = np.flatnonzero(drawn == kind)
        rank[members] = np.arange(len(members)) / len(members)
    last = order[np.argsort(rank, kind="stable")][::-1]
    count = min(max(1, round(fraction * n_records)), n_records - 1)
    return Split(np.sort(last[count:]), np.sort(last[:count]), np.zeros(0, dtype=np.int64))


# The identifier columns of the primary and of each secondary, and their metric


@dataclass(frozen=True)
class LinkedColumns:
    """How one secondary is linked: the identifier columns on both sides, in the same order, and their metric."""

    party: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    metric: Metric

    def primary_identifiers(self, primary: pl.DataFrame) -> pl.DataFrame:
        """Return the primary's identifiers."""
        return select_columns(primary, self.ours, PRIMARY)

    def secondary_identifiers(self, secondary: pl.DataFrame) -> pl.DataFrame:
        """Return the secondary's identifiers, under the primary's names."""
        return select_columns(secondary, self.theirs, self.party).rename(dict(zip(self.theirs, self.ours, strict=True)))

    def secondary_features(self, secondary: pl.DataFrame) -> pl.DataFrame:
        """Return all other columns of the secondary."""
        return drop_identifiers(secondary, self.theirs, self.party)


def secondary_tables(secondaries: Any) -> list[pl.DataFrame]:
    """Return the secondaries' tables; ``None`` means there are none."""
    if secondaries is None:
        return []
    if not isinstance(secondaries, list | tuple):
        message = f"secondaries is a {type(secondaries).__name__}; give a list of tables, even for a single one"
        raise SettingError(message, code="not-a-list")
    return [to_polars(table, party=secondary_name(place)) for place, table in enumerate(secondaries)]


def drop_label(
    secondaries: Sequence[pl.DataFrame], label: str | None, pairs: Sequence[LinkedColumns]
) -> list[pl.DataFrame]:
    """Return the secondaries' tables without columns that have the name of the label, unless they link."""
    linking = [pair.theirs for pair in pairs] or [()] * len(secondaries)
    twins = [
        [name for name in table.columns if label and have_same_name(name, label) and name not in identifiers]
        for table, identifiers in zip(secondaries, linking, strict=False)
    ]
    return [table.drop(names) for table, names in zip(secondaries, twins, strict=False)]


def warn_of_dropped_label(before: Sequence[pl.DataFrame], after: Sequence[pl.DataFrame]) -> None:
    """Warn about the columns that :func:`drop_label` dropped."""
    for place, (whole, rest) in enumerate(zip(before, after, strict=True)):
        for name in whole.columns:
            if name not in rest.columns:
                what = f"column '{name}' of {secondary_name(place)} has the name of the label, which it may give away"
                message = f"{what}, so it is not a feature; rename it if it is meant"
                warnings.warn(replace_unprintable(message), UserWarning, stacklevel=3)


def secondary_name(place: int) -> str:
    """Return the name of a secondary, by its position in the list, in messages and folders."""
    return f"secondary-{place + 1}"


def columns_per_secondary(primary: pl.DataFrame, count: int, link_on: Any, metric: Any) -> list[LinkedColumns]:
    """Return the linking columns of each secondary.

    ``link_on`` is a list of columns that all tables have, or one such list per secondary, or a mapping from the
    primary's names to the secondary's; ``metric`` is one for all or a list, and ``"auto"`` follows from the primary's
    columns.

    >>> table = pl.DataFrame({"lat": [1.3], "lon": [103.8], "name": ["Ann"]})
    >>> pairs = columns_per_secondary(table, 2, [["lon", "lat"], {"name": "title"}], "auto")
    >>> [(pair.party, pair.theirs, pair.metric.name) for pair in pairs]
    [('secondary-1', ('lat', 'lon'), 'great-circle'), ('secondary-2', ('title',), 'qgram-dice')]
    """
    shared = isinstance(link_on, Mapping) or all(isinstance(name, str) for name in link_on)
    if not shared and len(link_on) != count:
        message = f"link_on has {len(link_on)} lists of columns for {count} secondaries; give one, or one per secondary"
        raise SettingError(message, code="secondary-count", name="link_on")
    metrics = list(metric) if isinstance(metric, list | tuple) else [metric] * count
    if len(metrics) != count:
        message = f"metric names {len(metrics)} metrics for {count} secondaries; give one, or one per secondary"
        raise SettingError(message, code="secondary-count", name="metric")
    pairs = []
    for place, columns in enumerate([link_on] * count if shared else link_on):
        party, names = secondary_name(place), [columns] if isinstance(columns, str) else columns
        ours, theirs = tuple(names), tuple(names.values() if isinstance(names, Mapping) else names)
        if not ours:
            message = f"link_on names no column for {party}; name its identifiers, such as ['lat', 'lon']"
            raise SettingError(message, code="no-identifiers", party=party)
        twice = [name for side in (ours, theirs) for name in side if side.count(name) > 1]
        if twice:
            message = f"link_on names column '{twice[0]}' twice for {party}; name each column once"
            raise SettingError(message, code="column-named-twice", column=twice[0], party=party)
        chosen = metrics[place]
        if isinstance(chosen, str) and chosen == AUTO:
            parts = guess_metrics(select_columns(primary, ours, PRIMARY))
            order = [ours.index(name) for part in parts for name in part]  # a place is latitude, then longitude
            ours, theirs = tuple(ours[at] for at in order), tuple(theirs[at] for at in order)
            chosen = combine_metrics(parts)
        pairs.append(LinkedColumns(party, ours, theirs, get_metric(chosen)))
    return pairs


def normalise_link_on(link_on: Any) -> Any:
    """Return ``link_on`` with every name as text, as in our frames; in pandas, columns may be numbers.

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
        message = f"link_on holds a {type(column).__name__} for a column; name columns by text or number"
        raise SettingError(message, code="invalid-column-name")
    return str(column)


def primary_link_columns(link_on: Any) -> list[str]:
    """Return the primary's identifier columns, each once.

    >>> primary_link_columns([["lat", "lon"], {"lat": "latitude", "name": "title"}])
    ['lat', 'lon', 'name']
    """
    columns = [[entry] if isinstance(entry, str) else list(entry) for entry in link_on]
    return list(dict.fromkeys(name for some in columns for name in some))


def check_kinds(
    kinds: Mapping[str, str],
    tables: tuple[pl.DataFrame, Sequence[pl.DataFrame]],
    identifiers: Sequence[str],
    pairs: Sequence[LinkedColumns],
) -> None:
    """Check that every declared kind belongs to a feature of some table, to catch misspelt names."""
    primary, secondaries = tables
    theirs = [pair.theirs for pair in pairs] or [()] * len(secondaries)
    both = zip((primary, *secondaries), (identifiers, *theirs), strict=True)
    features = {name for table, own in both for name in table.columns if name not in own}
    columns = {name for table in (primary, *secondaries) for name in table.columns}
    for name in kinds:
        if name not in columns:
            near = nearest_word(name, columns)
            hint = f"did you mean '{near}'?" if near else "name one of their columns"
            message = f"kinds names column '{name}', which no table has; {hint}"
            raise SettingError(message, code="unknown-column", column=name)
        if name not in features:
            message = f"kinds names column '{name}', an identifier; remove it, or set use_identifiers if it is your own"
            raise SettingError(message, code="column-is-identifier", column=name)


def select_columns(frame: pl.DataFrame, columns: Sequence[str], party: str) -> pl.DataFrame:
    """Return some columns of a party's table."""
    for name in columns:
        if name not in frame.columns:
            message = f"the {party} table has no column '{name}' to link on, only {', '.join(map(repr, frame.columns))}"
            raise InputError(message, code="missing-column", column=name, party=party)
    return frame.select(columns)


def drop_identifiers(frame: pl.DataFrame, identifiers: Sequence[str], party: str) -> pl.DataFrame:
    """Return a party's table without its identifiers."""
    features = frame.drop(select_columns(frame, identifiers, party).columns)
    if not features.width:
        message = f"the {party} table has no columns beside its identifiers; it needs at least one feature"
        raise InputError(message, code="no-features", party=party)
    return features


# The constructor's parameters as plain values of the right type; the estimator keeps the originals
#
# Parameter searches pass NumPy numbers and pandas indexes, which JSON cannot store. Ranges are checked where a value is
# used.


MAX_SEED = 2**31 - 1
PRINTABLE_TYPES = (str, int, float, type(None))  # messages repeat these values; others may contain data
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
class EstimatorSettings(TrainingSettings):
    """The parameters of an estimator; values are checked against the annotations."""

    link_on: str | int | list[Any] | dict[Any, Any]
    metric: Any
    k: int
    sigma: float
    tau: float | None
    method: Any
    use_identifiers: bool
    kinds: dict[Any, Any] | None
    validation_fraction: float
    validation_split: str
    device: str
    tracking: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, hint in get_type_hints(EstimatorSettings).items():
            value, types = getattr(self, name), [get_origin(part) or part for part in get_args(hint) or (hint,)]
            allowed = (*types, int) if float in types else tuple(types)
            if hint is not Any and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in types)):
                wanted = " or ".join(TYPE_NAMES[part] for part in types)
                raise SettingError(f"{name}={_format_value(value)}; give {wanted}", code="invalid-type", name=name)
        if not (isinstance(self.method, str) or (hasattr(self.method, "build") and not isinstance(self.method, type))):
            message = f"method is a {type(self.method).__name__}; give a name such as 'fedsim'"
            raise SettingError(message, code="invalid-type", name="method")

    @property
    def stacked(self) -> bool:
        """Whether boosted trees are fitted beside the network."""
        return isinstance(self.method, str) and bool(METHODS.detail(self.method, "trees"))


def estimator_settings(estimator: Any) -> EstimatorSettings:
    """Return an estimator's parameters, checked; names of columns are text, as in our frames."""
    given = {entry.name: to_builtin(getattr(estimator, entry.name)) for entry in fields(EstimatorSettings)}
    settings = EstimatorSettings(**given)
    kinds = settings.kinds and {str(name): word for name, word in settings.kinds.items()}
    return EstimatorSettings(**{**given, "link_on": normalise_link_on(settings.link_on), "kinds": kinds})


def to_builtin(value: Any) -> Any:
    """Convert NumPy and pandas values to Python's own.

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
    """Return a seed by scikit-learn's rules from a number, a RandomState, or None for a random one."""
    try:
        return int(check_random_state(random_state).randint(MAX_SEED))
    except (TypeError, ValueError):
        allowed = f"a whole number from 0 to {2**32 - 1}, a RandomState or None"
        message = f"random_state={_format_value(random_state)}; give {allowed}"
        raise SettingError(message, code="invalid-type", name="random_state") from None


def _format_value(value: Any) -> str:
    return repr(value) if isinstance(value, PRINTABLE_TYPES) else f"<{type(value).__name__}>"
