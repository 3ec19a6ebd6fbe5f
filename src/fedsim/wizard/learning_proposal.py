"""Propose label, task, split, batch size and features from the profile of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fedsim.data.column_names import is_name_part_column, is_personal_column, missing_column_message, name_words
from fedsim.data.columns import ColumnKind
from fedsim.data.profile import OTHER_KIND, ColumnProfile, TableProfile
from fedsim.errors import InputError, SettingError
from fedsim.preflight.estimate import TRAIN_SHARE

LABEL_WORDS = (
    "label",
    "target",
    "price",
    "outcome",
    "class",
    "sales",
    "rent",
    "income",
    "default",
    "churn",
    "value",
    "y",
)
KEY_WORDS = {"id", "key", "index", "row", "nr", "number", "no", "column", "unnamed"}
MAX_KEY_SPAN, MIN_KEY_ROWS = 1.05, 50
MIN_ACCOUNT_ROWS = 20  # below, whole numbers are often all different and yet no account numbers
MAX_INTEGER_CLASSES, MAX_TEXT_CLASSES, MAX_ONE_HOT = 10, 100, 16
MIN_DUPLICATE_SHARE, MIN_GROUPS = 0.2, 30
MIN_STEPS_PER_EPOCH, MIN_BATCH, MAX_BATCH = 10, 32, 512  # of an epoch at least; records of a batch


@dataclass(frozen=True)
class Guess:
    """A word and why it was chosen."""

    word: str
    reason: str


@dataclass(frozen=True)
class FeatureProposal:
    """The columns to learn from, those left out with the reason, those of the first that are dates.

    ``linking`` are columns that link and are learnt from, too.
    """

    columns: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]
    dates: tuple[str, ...]
    linking: tuple[str, ...] = ()


def column_profile(table: TableProfile, name: str) -> ColumnProfile:
    """The column of this name, if it is there."""
    if name not in table.columns:
        raise InputError(f"{table.name}: {missing_column_message(name, list(table.columns))}")
    return table.columns[name]


def guess_label(table: TableProfile, taken: Sequence[str]) -> Guess | None:
    """The column that is probably predicted: by its name, else the last that could be."""
    could = [look for look in table.columns.values() if look.name not in taken and _could_be_label(look)]
    for word in LABEL_WORDS:
        for look in could:
            if word in name_words(look.name):
                return Guess(look.name, "guessed by its name")
    return Guess(could[-1].name, "guessed, the last column that could be") if could else None


def check_label_choice(table: TableProfile, name: str, taken: Sequence[str]) -> list[str]:
    """What the owner should know about a label; one that cannot be learnt is refused."""
    look = column_profile(table, name)
    where = f"{table.name}: column '{name}'"
    if name in taken:
        raise SettingError(f"{where} links the tables, and would leave the party as the label; choose another")
    if look.distinct < 2:
        seen = "one value only" if look.distinct else "no value at all"
        raise InputError(f"{where} has {seen}; choose another label")
    return [f"{where} {describe_gaps(look)}; training needs a label in every row"] if look.gaps else []


def guess_task(look: ColumnProfile) -> Guess:
    """Whether a label is a quantity or a class."""
    many = f"{look.distinct:,} different values"
    if look.kind == ColumnKind.CATEGORY and look.distinct > MAX_TEXT_CLASSES:
        raise InputError(f"column '{look.name}' holds {look.distinct:,} different texts; such a label cannot be learnt")
    if look.kind == ColumnKind.CATEGORY or look.distinct == 2 or (look.whole and look.distinct <= MAX_INTEGER_CLASSES):
        return Guess("classification", f"guessed from {many}")
    return Guess("regression", f"guessed from {many}")


def guess_split(table: TableProfile, identifiers: Sequence[str]) -> Guess:
    """By group where many records share their identifiers: a random split would test on places seen in training."""
    frame = pl.DataFrame([table.columns[name].cells for name in identifiers])
    share = float(frame.is_duplicated().mean() or 0.0)  # type: ignore[arg-type]
    if share >= MIN_DUPLICATE_SHARE and frame.n_unique() >= MIN_GROUPS:
        return Guess("group", f"for {share:.0%} of the records share their identifiers with another; or random")
    if share >= MIN_DUPLICATE_SHARE:
        few = f"{frame.n_unique():,} different identifiers are too few to part; tests then meet them again"
        return Guess("random", few)
    return Guess("random", "or group, which keeps records with equal identifiers on one side")


def propose_batch_size(rows: int) -> int:
    """Records per step: a power of two that gives an epoch ten steps or more, where there are enough records.

    >>> [propose_batch_size(rows) for rows in (100, 2_000, 5_000, 100_000)]
    [32, 128, 256, 512]
    """
    wanted = max(MIN_BATCH, min(MAX_BATCH, round(TRAIN_SHARE * rows) // MIN_STEPS_PER_EPOCH))
    return 1 << (wanted.bit_length() - 1)


def propose_features(table: TableProfile, taken: Sequence[str], also: Sequence[str] = ()) -> FeatureProposal:
    """Which columns are learnt from: all that are not ``taken`` otherwise, and numbers and dates of ``also``.

    Those that the preparation of features would refuse are left out, and so is what names or numbers a person.
    """
    looks = [look for look in table.columns.values() if look.name not in taken]
    dropped = [
        (look.name, reason) for look in looks if (reason := _uninformative_reason(look) or _identifying_reason(look))
    ]
    rest = [look for look in looks if look.name not in dict(dropped)]
    linking = [table.columns[name] for name in also if not _is_personal(table.columns[name])]
    places = [look for look in linking if look.kind in (ColumnKind.NUMBER, ColumnKind.DATE)]
    if not rest and not places:
        useless = "".join(f"; {name} is {reason}" for name, reason in dropped)
        raise InputError(f"{table.name} has nothing left to learn from beside {', '.join(taken)}{useless}; add columns")
    return FeatureProposal(
        tuple(look.name for look in rest),
        tuple(dropped),
        tuple(look.name for look in rest + places if look.kind == ColumnKind.DATE),
        tuple(look.name for look in places),
    )


def describe_gaps(look: ColumnProfile) -> str:
    """How many cells are missing, and where the first is."""
    row = int(look.cells.is_null().arg_true()[0]) + 1
    return f"is missing in {look.gaps:,} of {len(look):,} rows, first in row {row:,}"


def _could_be_label(look: ColumnProfile) -> bool:
    if (
        look.distinct < 2
        or look.kind in (ColumnKind.DATE, OTHER_KIND)
        or _uninformative_reason(look)
        or _is_personal(look)
    ):
        return False
    return look.kind == ColumnKind.NUMBER or look.distinct <= MAX_TEXT_CLASSES


def _uninformative_reason(look: ColumnProfile) -> str:
    """Why a column is not learnt from; empty where it is."""
    filled = len(look) - look.gaps
    if look.kind == OTHER_KIND:
        return f"holds {look.cells.dtype}"
    if look.distinct < 2:
        return "one value only" if look.distinct else "no value at all"
    if look.kind == ColumnKind.CATEGORY and look.distinct > MAX_ONE_HOT and 2 * look.alone > filled:
        return "a text of its own in most rows"
    if look.whole and look.distinct == filled and _is_row_number(look):
        return "a number of its own in every row"
    return ""


def _identifying_reason(look: ColumnProfile) -> str:
    """Why a column says who a record is rather than what it is like; empty where it does not.

    A label may be such whole numbers: prices are often all different.
    """
    if _is_personal(look):
        return "about a person, by its name"
    if look.whole and look.distinct == len(look.filled) >= MIN_ACCOUNT_ROWS:
        return "a whole number of its own in every row, perhaps that of an account"
    return ""


def _is_row_number(look: ColumnProfile) -> bool:
    """Whether whole numbers, each in one row, are called a key or leave hardly a number out."""
    span = float(np.ptp(look.numbers.to_numpy()))
    dense = look.distinct >= MIN_KEY_ROWS and span < MAX_KEY_SPAN * look.distinct
    return dense or any(word in KEY_WORDS or word.endswith("id") for word in name_words(look.name))


def _is_personal(look: ColumnProfile) -> bool:
    return is_personal_column(look.name) or (look.kind == ColumnKind.CATEGORY and is_name_part_column(look.name))
