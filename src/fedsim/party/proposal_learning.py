"""What could be learnt from a table: the label, the kind of task, and the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fedsim.data.column_words import says_part_of_name, says_person, words_of
from fedsim.data.header import absent
from fedsim.data.kinds import Kind
from fedsim.data.looks import OTHER, ColumnLook, TableLook
from fedsim.errors import InputError, SettingError
from fedsim.party.estimate import TRAIN

LABELS = ("label", "target", "price", "outcome", "class", "sales", "rent", "income", "default", "churn", "value", "y")
KEYS = {"id", "key", "index", "row", "nr", "number", "no", "column", "unnamed"}
DENSE, MANY = 1.05, 50
FEW_ROWS = 20  # below, whole numbers are often all different and yet no account numbers
FEW_CLASSES, MOST_CLASSES, MOST_ONE_HOT = 10, 100, 16
MANY_ALIKE, LEAST_GROUPS = 0.2, 30
STEPS, SMALLEST, LARGEST = 10, 32, 512  # of an epoch at least; records of a batch


@dataclass(frozen=True)
class Guess:
    """A word and why it was chosen."""

    word: str
    reason: str


@dataclass(frozen=True)
class Learning:
    """The columns to learn from, those left out with the reason, those of the first that are dates.

    ``linking`` are columns that link and are learnt from, too.
    """

    columns: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]
    dates: tuple[str, ...]
    linking: tuple[str, ...] = ()


def look_of(table: TableLook, name: str) -> ColumnLook:
    """The column of this name, if it is there."""
    if name not in table.columns:
        raise InputError(f"{table.name}: {absent(name, list(table.columns))}")
    return table.columns[name]


def guessed_label(table: TableLook, taken: Sequence[str]) -> Guess | None:
    """The column that is probably predicted: by its name, else the last that could be."""
    could = [look for look in table.columns.values() if look.name not in taken and _could_be_label(look)]
    for word in LABELS:
        for look in could:
            if word in words_of(look.name):
                return Guess(look.name, "guessed by its name")
    return Guess(could[-1].name, "guessed, the last column that could be") if could else None


def checked_label(table: TableLook, name: str, taken: Sequence[str]) -> list[str]:
    """What the owner should know about a label; one that cannot be learnt is refused."""
    look = look_of(table, name)
    where = f"{table.name}: column '{name}'"
    if name in taken:
        raise SettingError(f"{where} links the tables, and would leave the party as the label; choose another")
    if look.distinct < 2:
        seen = "one value only" if look.distinct else "no value at all"
        raise InputError(f"{where} has {seen}; choose another label")
    return [f"{where} {gap_words(look)}; training needs a label in every row"] if look.gaps else []


def guessed_task(look: ColumnLook) -> Guess:
    """Whether a label is a quantity or a class."""
    many = f"{look.distinct:,} different values"
    if look.kind == Kind.CATEGORY and look.distinct > MOST_CLASSES:
        raise InputError(f"column '{look.name}' holds {look.distinct:,} different texts; such a label cannot be learnt")
    if look.kind == Kind.CATEGORY or look.distinct == 2 or (look.whole and look.distinct <= FEW_CLASSES):
        return Guess("classification", f"guessed from {many}")
    return Guess("regression", f"guessed from {many}")


def guessed_split(table: TableLook, identifiers: Sequence[str]) -> Guess:
    """By group where many records share their identifiers: a random split would test on places seen in training."""
    frame = pl.DataFrame([table.columns[name].cells for name in identifiers])
    share = float(frame.is_duplicated().mean() or 0.0)  # type: ignore[arg-type]
    if share >= MANY_ALIKE and frame.n_unique() >= LEAST_GROUPS:
        return Guess("group", f"for {share:.0%} of the records share their identifiers with another; or random")
    if share >= MANY_ALIKE:
        few = f"{frame.n_unique():,} different identifiers are too few to part; tests then meet them again"
        return Guess("random", few)
    return Guess("random", "or group, which keeps records with equal identifiers on one side")


def proposed_batch(rows: int) -> int:
    """Records per step: a power of two that gives an epoch ten steps or more, where there are enough records.

    >>> [proposed_batch(rows) for rows in (100, 2_000, 5_000, 100_000)]
    [32, 128, 256, 512]
    """
    wanted = max(SMALLEST, min(LARGEST, round(TRAIN * rows) // STEPS))
    return 1 << (wanted.bit_length() - 1)


def learning(table: TableLook, taken: Sequence[str], also: Sequence[str] = ()) -> Learning:
    """Which columns are learnt from: all that are not ``taken`` otherwise, and numbers and dates of ``also``.

    Those that the preparation of features would refuse are left out, and so is what names or numbers a person.
    """
    looks = [look for look in table.columns.values() if look.name not in taken]
    dropped = [(look.name, reason) for look in looks if (reason := _useless(look) or _telling(look))]
    rest = [look for look in looks if look.name not in dict(dropped)]
    linking = [table.columns[name] for name in also if not _says_person(table.columns[name])]
    places = [look for look in linking if look.kind in (Kind.NUMBER, Kind.DATE)]
    if not rest and not places:
        useless = "".join(f"; {name} is {reason}" for name, reason in dropped)
        raise InputError(f"{table.name} has nothing left to learn from beside {', '.join(taken)}{useless}; add columns")
    return Learning(
        tuple(look.name for look in rest),
        tuple(dropped),
        tuple(look.name for look in rest + places if look.kind == Kind.DATE),
        tuple(look.name for look in places),
    )


def gap_words(look: ColumnLook) -> str:
    """How many cells are missing, and where the first is."""
    row = int(look.cells.is_null().arg_true()[0]) + 1
    return f"is missing in {look.gaps:,} of {len(look):,} rows, first in row {row:,}"


def _could_be_label(look: ColumnLook) -> bool:
    if look.distinct < 2 or look.kind in (Kind.DATE, OTHER) or _useless(look) or _says_person(look):
        return False
    return look.kind == Kind.NUMBER or look.distinct <= MOST_CLASSES


def _useless(look: ColumnLook) -> str:
    """Why a column is not learnt from; empty where it is."""
    filled = len(look) - look.gaps
    if look.kind == OTHER:
        return f"holds {look.cells.dtype}"
    if look.distinct < 2:
        return "one value only" if look.distinct else "no value at all"
    if look.kind == Kind.CATEGORY and look.distinct > MOST_ONE_HOT and 2 * look.alone > filled:
        return "a text of its own in most rows"
    if look.whole and look.distinct == filled and _numbers_rows(look):
        return "a number of its own in every row"
    return ""


def _telling(look: ColumnLook) -> str:
    """Why a column says who a record is rather than what it is like; empty where it does not.

    A label may be such whole numbers: prices are often all different.
    """
    if _says_person(look):
        return "about a person, by its name"
    if look.whole and look.distinct == len(look.filled) >= FEW_ROWS:
        return "a whole number of its own in every row, perhaps that of an account"
    return ""


def _numbers_rows(look: ColumnLook) -> bool:
    """Whether whole numbers, each in one row, are called a key or leave hardly a number out."""
    span = float(np.ptp(look.numbers.to_numpy()))
    dense = look.distinct >= MANY and span < DENSE * look.distinct
    return dense or any(word in KEYS or word.endswith("id") for word in words_of(look.name))


def _says_person(look: ColumnLook) -> bool:
    return says_person(look.name) or (look.kind == Kind.CATEGORY and says_part_of_name(look.name))
