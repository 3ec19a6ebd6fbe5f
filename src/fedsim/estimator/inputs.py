"""Tables and labels given to an estimator, checked by scikit-learn's rules, and the validation split."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from fedsim.data.splits import group_split
from fedsim.data.table_reader import to_polars
from fedsim.errors import FedSimError, InputError
from fedsim.estimator.parameters import PRIMARY
from fedsim.types import Floats, Integers, Split

# What users hand to an estimator, checked by scikit-learn's rules and brought into our form
#
# scikit-learn remembers the columns seen in training and compares them at prediction. Its complaints can print the
# data, so only those about columns and counts pass; all others are said in our words.


SAFE_PREFIXES = (  # how scikit-learn begins sentences that hold no value
    "The feature names should match",
    "Feature names are only supported",
    "Found array with",
    "Found input variables with inconsistent numbers of samples",
    "X has",
)
REWORDED = {  # a part of scikit-learn's sentence, and ours; its own checks look for some of these words
    "Complex data not supported": "Complex data not supported: some values are complex numbers; give real ones",
    "Sparse data was passed": "Sparse data was passed, but dense data is required; convert it with .toarray()",
    "Reshape your data": "the table is not one of records and columns; Reshape your data to one row per record and one "
    "column per feature",
    "y should be a 1d array": "y should be a 1d array; give one label per record",
    "multi-output": "y should be a 1d array; give one label per record",
    "infinity": "the primary table holds an infinite number; correct it or leave it empty",
    "Unknown label type": "Unknown label type: the labels are continuous or mixed; a classifier needs classes that are "
    "whole numbers, text or true/false",
    "not supported between": "the labels are of several types that cannot be sorted; give all of one type",
}
FALLBACK_MESSAGE = (
    "scikit-learn cannot read the table or its labels; give a table of records and columns, and a label per record"
)


@contextmanager
def translate_sklearn_errors() -> Iterator[None]:
    """scikit-learn's errors as ours, without the data it may show."""
    try:
        yield
    except FedSimError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(_reword(str(error))) from None


def _reword(said: str) -> str:
    if said.startswith(SAFE_PREFIXES):
        return said
    return next((ours for part, ours in REWORDED.items() if part in said), FALLBACK_MESSAGE)


def check_training_table(estimator: BaseEstimator, table: Any) -> pl.DataFrame:
    """The primary's table; the estimator remembers its columns."""
    return _check_table(estimator, table, reset=True)


def check_prediction_table(estimator: BaseEstimator, table: Any) -> pl.DataFrame:
    """A table with the same columns as in training."""
    return _check_table(estimator, table, reset=False)


def _check_table(estimator: BaseEstimator, table: Any, *, reset: bool) -> pl.DataFrame:
    if nw.dependencies.is_into_dataframe(table):
        frame = to_polars(table, party=PRIMARY)  # first, because scikit-learn does not say which column stands twice
        with translate_sklearn_errors():
            validate_data(estimator, table, skip_check_array=True, reset=reset)
        return _check_not_empty(frame)
    with translate_sklearn_errors():
        array = validate_data(estimator, table, dtype=None, ensure_all_finite="allow-nan", reset=reset)
    return to_polars(array, party=PRIMARY)


def _check_not_empty(frame: pl.DataFrame) -> pl.DataFrame:
    if not (frame.height and frame.width):
        raise InputError(f"the {PRIMARY} table has {frame.height} records and {frame.width} columns; give some of both")
    return frame


def regression_labels(labels: Any, table: pl.DataFrame) -> Floats:
    """One finite number per record."""
    column = _label_column(labels, table)
    if column.dtype.kind not in "fiubO":
        raise InputError(f"the labels are of type {column.dtype}; a regression needs numbers")
    values = _to_floats(column)
    _refuse_missing(~np.isfinite(values))
    return values


def class_labels(labels: Any, table: pl.DataFrame) -> tuple[NDArray[Any], Integers]:
    """The classes in order, of any type that can be sorted, and for every record the place of its own among them."""
    column = _label_column(labels, table)
    with translate_sklearn_errors():
        check_classification_targets(column)
        found, places = np.unique(column, return_inverse=True)
    if len(found) < 2:
        raise InputError("all labels are of one class; a classifier needs records of at least two classes")
    return found, places.astype(np.int64)


def label_name(labels: Any) -> str | None:
    """The name that the column of labels brought along, if it is a column of a table."""
    column = _label_series(labels)
    return None if column is None or column.name is None else str(column.name)


def _label_column(labels: Any, table: pl.DataFrame) -> NDArray[Any]:
    if labels is None:
        raise InputError("training requires y to be passed, but the target y is None; give one label per record")
    series = _label_series(labels)
    if series is not None:
        _refuse_missing(series.is_null().to_numpy())
    with translate_sklearn_errors():
        column = np.asarray(column_or_1d(labels, warn=True) if series is None else series.to_numpy())
        check_consistent_length(table, column)
    _refuse_missing(_missing_mask(column))
    return column


def _label_series(labels: Any) -> nw.Series[Any] | None:
    """Labels that are a column of some table, or a table of one column; scikit-learn would make floats of flags."""
    found = nw.from_native(labels, pass_through=True, eager_only=True, allow_series=True)
    if isinstance(found, nw.DataFrame):
        return found[:, 0] if found.shape[1] == 1 else None
    return found if isinstance(found, nw.Series) else None


def _to_floats(column: NDArray[Any]) -> Floats:
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError("the labels are not all numbers; a regression needs a number per record") from None


def _missing_mask(column: NDArray[Any]) -> NDArray[np.bool_]:
    if column.dtype.kind == "O":
        return np.array([_is_missing(value) for value in column], dtype=np.bool_)
    if column.dtype.kind in "mM":
        return np.asarray(np.isnat(column), dtype=np.bool_)
    return ~np.isfinite(column) if column.dtype.kind == "f" else np.zeros(len(column), dtype=np.bool_)


def _is_missing(value: Any) -> bool:
    """None, NaN, NaT, infinity, or pandas' NA: what is there equals itself, and NA alone cannot say so."""
    equal = operator.eq(value, value)
    there = isinstance(equal, bool | np.bool_) and bool(equal)
    return value is None or not there or (isinstance(value, float | np.floating) and not np.isfinite(value))


def _refuse_missing(bad: NDArray[np.bool_]) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        raise InputError(
            f"the label of row {rows[0] + 1} is NaN, missing or infinite ({len(rows)} such rows); drop these records"
        )


# Which of the training records are set aside to choose the best epoch


NO_ROWS = np.zeros(0, dtype=np.int64)


def split_by_record(
    n_records: int, fraction: float, rng: np.random.Generator, kinds: NDArray[Any] | None = None
) -> Split:
    """Records drawn one by one; with classes as ``kinds``, about as many of each, and a class of one record trains.

    >>> split_by_record(16, 1 / 8, np.random.default_rng(0))
    Split(14 training, 2 validation, 0 test records)
    """
    if n_records < 2:
        raise InputError("n_samples=1: one record is too few; at least one to train and one to validate are needed")
    order = rng.permutation(n_records)
    kinds = np.zeros(n_records, dtype=np.int64) if kinds is None else kinds
    last = order[np.argsort(_position_in_class(kinds[order]), kind="stable")][::-1]
    count = min(max(1, round(fraction * n_records)), n_records - 1)
    return Split(np.sort(last[count:]), np.sort(last[:count]), NO_ROWS)


def split_by_group(groups: Integers, fraction: float, rng: np.random.Generator) -> Split:
    """Records with equal identifiers stay together."""
    return group_split(groups, rng, parts=(1 - fraction, fraction, 0))


def _position_in_class(kinds: NDArray[Any]) -> NDArray[np.float64]:
    """How far each record stands in the queue of its kind: 0 for the first, almost 1 for the last of many."""
    place = np.empty(len(kinds))
    for kind in np.unique(kinds):
        members = np.flatnonzero(kinds == kind)
        place[members] = np.arange(len(members)) / len(members)
    return place
