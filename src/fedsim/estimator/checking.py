"""What users hand to an estimator, checked by scikit-learn's rules and brought into our form.

scikit-learn remembers the columns seen in training and compares them at prediction; its complaints become ours.
"""

from __future__ import annotations

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

from fedsim.data.frames import frame_of
from fedsim.errors import InputError
from fedsim.estimator.pairs import PRIMARY
from fedsim.types import Floats


@contextmanager
def our_errors() -> Iterator[None]:
    """scikit-learn's errors as ours, in its words."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from None


def training_table(estimator: BaseEstimator, table: Any) -> pl.DataFrame:
    """The primary's table; the estimator remembers its columns."""
    return _table(estimator, table, reset=True)


def known_table(estimator: BaseEstimator, table: Any) -> pl.DataFrame:
    """A table with the same columns as in training."""
    return _table(estimator, table, reset=False)


def _table(estimator: BaseEstimator, table: Any, *, reset: bool) -> pl.DataFrame:
    if isinstance(nw.from_native(table, pass_through=True, eager_only=True), nw.DataFrame):
        with our_errors():
            validate_data(estimator, table, skip_check_array=True, reset=reset)
        return _filled(frame_of(table, party=PRIMARY))
    with our_errors():
        array = validate_data(estimator, table, dtype=None, ensure_all_finite="allow-nan", reset=reset)
    return frame_of(array, party=PRIMARY)


def _filled(frame: pl.DataFrame) -> pl.DataFrame:
    if not (frame.height and frame.width):
        raise InputError(f"the {PRIMARY} table has {frame.height} records and {frame.width} columns; give some of both")
    return frame


def numbers(labels: Any, table: pl.DataFrame) -> Floats:
    """One finite number per record."""
    column = _column(labels, table)
    if column.dtype.kind not in "fiubO":
        raise InputError(f"the labels are of type {column.dtype}; a regression needs numbers")
    with our_errors():
        values = _floats(column)
    _refuse_missing(~np.isfinite(values))
    return values


def classes(labels: Any, table: pl.DataFrame) -> NDArray[Any]:
    """One class per record, of any type that can be sorted."""
    column = _column(labels, table)
    _refuse_missing(np.array([_is_missing(value) for value in column]))
    with our_errors():
        check_classification_targets(column)
    return column


def label_name(labels: Any) -> str | None:
    """The name that the column of labels brought along, if it is a column of a table."""
    column = nw.from_native(labels, series_only=True, pass_through=True)
    return str(column.name) if isinstance(column, nw.Series) and column.name is not None else None


def _column(labels: Any, table: pl.DataFrame) -> NDArray[Any]:
    if labels is None:
        raise InputError("training requires y to be passed, but the target y is None; give one label per record")
    with our_errors():
        column = np.asarray(column_or_1d(labels, warn=True))
        check_consistent_length(table, column)
    return column


def _floats(column: NDArray[Any]) -> Floats:
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError("the labels are not all numbers; a regression needs a number per record") from None


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.floating) and not np.isfinite(value))


def _refuse_missing(bad: NDArray[np.bool_]) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        raise InputError(
            f"the label of row {rows[0] + 1} is NaN, missing or infinite ({len(rows)} such rows); drop these records"
        )
