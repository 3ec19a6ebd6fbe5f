"""Propose label, task, split, batch size and features from the profile of a table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fedsim.cells import CellType
from fedsim.data.column_names import is_name_part_column, is_personal_column, missing_column_message, name_words
from fedsim.data.profile import OTHER_KIND, ColumnProfile, TableProfile
from fedsim.errors import InputError, SettingError
from fedsim.preflight.estimate import TRAIN_SHARE

# Words in the names of labels, the most likely first, and in the names of row numbers.
LABEL_WORDS = (
    *("label", "target", "price", "outcome", "class", "sales"),
    *("rent", "income", "default", "churn", "value", "y"),
)
KEY_WORDS = {"id", "key", "index", "row", "nr", "number", "no", "column", "unnamed"}
MAX_KEY_SPAN, MIN_KEY_ROWS = 1.05, 50  # row numbers are dense: their range is hardly larger than their count
MIN_ACCOUNT_ROWS = 20  # in shorter tables, unique integers need not be account numbers
MAX_INTEGER_CLASSES, MAX_TEXT_CLASSES, MAX_ONE_HOT = 10, 100, 16
MIN_DUPLICATE_SHARE, MIN_GROUPS = 0.2, 30
MIN_STEPS_PER_EPOCH, MIN_BATCH, MAX_BATCH = 10, 32, 512


@dataclass(frozen=True)
class Guess:
    """A proposed value and the reason for it."""

    word: str
    reason: str


@dataclass(frozen=True)
class FeatureProposal:
    """Feature columns, columns left out with the reason, and feature columns that are dates.

    ``linking`` are identifiers that are features, too.
    """

    columns: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]
    dates: tuple[str, ...]
    linking: tuple[str, ...] = ()


def column_profile(table: TableProfile, name: str) -> ColumnProfile:
    """Return the profile of a column, or raise an error that suggests the nearest name."""
    if name not in table.columns:
        message = f"{table.name}: {missing_column_message(name, list(table.columns))}"
        raise InputError(message, code="missing-column", column=name)
    return table.columns[name]


def guess_label(table: TableProfile, taken: Sequence[str]) -> Guess | None:
    """Return the column that is probably the label: by its name, else the last one that is possible."""
    possible = [
        column
        for column in table.columns.values()
        if column.name not in taken
        and (
            column.kind == CellType.NUMBER or (column.kind == CellType.CATEGORY and column.distinct <= MAX_TEXT_CLASSES)
        )
        and not (_uninformative_reason(column) or _is_personal(column))
    ]
    for word in LABEL_WORDS:
        for column in possible:
            if word in name_words(column.name):
                return Guess(column.name, "guessed by its name")
    return Guess(possible[-1].name, "guessed, the last possible column") if possible else None


def check_label_choice(table: TableProfile, name: str, taken: Sequence[str]) -> list[str]:
    """Return warnings about a label; a label that cannot be learnt is an error."""
    column, where = column_profile(table, name), f"{table.name}: column '{name}'"
    if name in taken:
        message = f"{where} is an identifier and would leave the party as such; choose another label"
        raise SettingError(message, code="label-is-identifier", column=name)
    if column.distinct < 2:
        values = "one value only" if column.distinct else "no values"
        raise InputError(f"{where} has {values}; choose another label", code="constant-label", column=name)
    return [f"{where} {describe_gaps(column)}; training needs a label in every row"] if column.gaps else []


def guess_task(column: ColumnProfile) -> Guess:
    """Guess whether a label is a number or a class."""
    is_text = column.kind == CellType.CATEGORY
    if is_text and column.distinct > MAX_TEXT_CLASSES:
        message = (
            f"column '{column.name}' has {column.distinct:,} different texts, too many for classes; choose another"
        )
        raise InputError(message, code="too-many-classes", column=column.name, limit=MAX_TEXT_CLASSES)
    is_class = is_text or column.distinct == 2 or (column.whole and column.distinct <= MAX_INTEGER_CLASSES)
    return Guess("classification" if is_class else "regression", f"guessed from {column.distinct:,} different values")


def guess_split(table: TableProfile, identifiers: Sequence[str]) -> Guess:
    """Propose a group split if many records share their identifiers: a random split would test on training places."""
    frame = pl.DataFrame([table.columns[name].cells for name in identifiers])
    share = float(frame.is_duplicated().mean() or 0.0)  # type: ignore[arg-type]
    groups = frame.n_unique()
    if share < MIN_DUPLICATE_SHARE:
        return Guess("random", "or group, which keeps records with equal identifiers together")
    if groups < MIN_GROUPS:
        return Guess("random", f"{groups:,} different identifiers are too few for a group split")
    return Guess("group", f"{share:.0%} of the records share their identifiers with another; or random")


def propose_batch_size(rows: int) -> int:
    """Return a power of two that gives at least ten steps per epoch, if there are enough records.

    >>> [propose_batch_size(rows) for rows in (100, 2_000, 5_000, 100_000)]
    [32, 128, 256, 512]
    """
    size = max(MIN_BATCH, min(MAX_BATCH, round(TRAIN_SHARE * rows) // MIN_STEPS_PER_EPOCH))
    return 1 << (size.bit_length() - 1)


def propose_features(table: TableProfile, taken: Sequence[str], also: Sequence[str] = ()) -> FeatureProposal:
    """Propose the feature columns: all that are not ``taken``, and numbers and dates of the identifiers ``also``.

    Columns that carry no information or that identify persons are left out.
    """
    profiles = [column for column in table.columns.values() if column.name not in taken]
    reasons = {column.name: _uninformative_reason(column) or _identifying_reason(column) for column in profiles}
    dropped = tuple((name, reason) for name, reason in reasons.items() if reason)
    features = [column for column in profiles if not reasons[column.name]]
    linking = [
        column
        for column in map(table.columns.__getitem__, also)
        if column.kind in (CellType.NUMBER, CellType.DATE) and not _is_personal(column)
    ]
    if not features and not linking:
        useless = "".join(f"; {name}: {reason}" for name, reason in dropped)
        message = f"{table.name} has no feature columns beside {', '.join(taken)}{useless}; add columns"
        raise InputError(message, code="no-features")
    return FeatureProposal(
        tuple(column.name for column in features),
        dropped,
        tuple(column.name for column in features + linking if column.kind == CellType.DATE),
        tuple(column.name for column in linking),
    )


def describe_gaps(column: ColumnProfile) -> str:
    """Return how many values are missing, and the first row without one."""
    row = int(column.cells.is_null().arg_true()[0]) + 1
    return f"is missing in {column.gaps:,} of {len(column):,} rows, first in row {row:,}"


def _uninformative_reason(column: ColumnProfile) -> str:
    """Return why a column is useless as a feature; empty if it is not."""
    n_filled = len(column) - column.gaps
    if column.kind == OTHER_KIND:
        return f"has the type {column.cells.dtype}"
    if column.distinct < 2:
        return "one value only" if column.distinct else "no values"
    if column.kind == CellType.CATEGORY and column.distinct > MAX_ONE_HOT and 2 * column.alone > n_filled:
        return "a different text in most rows"
    if not column.whole or column.distinct != n_filled:
        return ""
    # Unique integers are row numbers if they are dense or named like a key.
    span = float(np.ptp(column.numbers.to_numpy()))
    dense = column.distinct >= MIN_KEY_ROWS and span < MAX_KEY_SPAN * column.distinct
    is_key = any(word in KEY_WORDS or word.endswith("id") for word in name_words(column.name))
    return "a different number in every row" if dense or is_key else ""


def _identifying_reason(column: ColumnProfile) -> str:
    """Return why a column identifies a record; labels may be such integers, because prices often all differ."""
    if _is_personal(column):
        return "personal data, by its name"
    if column.whole and column.distinct == len(column.filled) >= MIN_ACCOUNT_ROWS:
        return "a different integer in every row, perhaps an account number"
    return ""


def _is_personal(column: ColumnProfile) -> bool:
    return is_personal_column(column.name) or (column.kind == CellType.CATEGORY and is_name_part_column(column.name))
