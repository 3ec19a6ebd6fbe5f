"""Split the primary's records into training, validation and test sets: at random, by group, by time or by a column.

``random_split`` draws records, as in the paper. ``group_split`` keeps records with equal identifiers on one side:
in the paper's data 94 to 97 % of randomly drawn test records have the exact location of a training record.
``time_split`` tests on the newest records, as a model is used later. ``column_split`` follows a column.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from fedsim.cells import CellType, FaultKind, read_cells
from fedsim.data.table_reader import infer_numbers, to_polars
from fedsim.errors import InputError, SettingError
from fedsim.types import Floats, Integers, Split

PAPER_PROPORTIONS = (7, 1, 2)
PART_NAMES = ("training", "validation", "test")


@dataclass(frozen=True, eq=False)
class SplitRecords:
    """The records to split, as a kind of split sees them; ``registry.SPLITS`` has the kinds that a job may name.

    ``groups`` returns a number per record, the same for records that no linkage can tell apart; ``column`` returns the
    cells of the column that the primary names for the split. ``table`` is the name of the table in errors.
    """

    n_records: int
    groups: Callable[[], Integers]
    column: Callable[[], pl.Series]
    table: str


def draw_random(records: SplitRecords, rng: np.random.Generator) -> Split:
    """Split records one by one."""
    return random_split(records.n_records, rng)


def draw_by_group(records: SplitRecords, rng: np.random.Generator) -> Split:
    """Keep records with equal identifiers together."""
    return group_split(records.groups(), rng)


def draw_by_time(records: SplitRecords, rng: np.random.Generator) -> Split:
    """Test on the newest records."""
    return time_split(read_times(records.column(), records.table))


def draw_by_column(records: SplitRecords, rng: np.random.Generator) -> Split:
    """Follow the cells of a column."""
    return column_split(records.column(), rng)


def single_record_error(label: pl.Series, table: str) -> InputError | None:
    """Return an error if a class has a single record, which no split can both train on and test; often it is a typo.

    >>> single_record_error(pl.Series("late", ["yes", "no", "yes", "no", "ys"]), "flats.csv").row
    5
    """
    values = infer_numbers(pl.DataFrame([label])).to_series()
    rows = (values.is_unique() & values.is_not_null()).arg_true()
    if not len(rows):
        return None
    count, row = f"{len(rows):,} of {values.drop_nulls().n_unique():,} classes", int(rows[0]) + 1
    verb = "has" if len(rows) == 1 else "have"
    message = f"{table}: column '{label.name}': {count} {verb} a single record, first in row {row:,}"
    way_out = "correct that label, leave it empty or merge the class with another"
    return InputError(f"{message}; {way_out}", code="single-record-class", table=table, column=label.name, row=row)


def random_split(n_records: int, rng: np.random.Generator, *, parts: Sequence[float] = PAPER_PROPORTIONS) -> Split:
    """Split records at random in the given proportions; a proportion of zero leaves that part empty.

    >>> random_split(20, np.random.default_rng(7))
    Split(14 training, 2 validation, 4 test records)
    """
    ends = np.rint(np.cumsum(_shares(parts)) * n_records).astype(np.int64)
    pieces = np.split(rng.permutation(n_records), ends[:2])
    return _to_split(pieces, parts, f"{n_records:,} records", "give more records")


def group_split(groups: Integers, rng: np.random.Generator, *, parts: Sequence[float] = PAPER_PROPORTIONS) -> Split:
    """Split whole groups at random; sizes deviate from their proportions by at most twice the largest group.

    >>> group_split(np.repeat(np.arange(10), 3), np.random.default_rng(7))
    Split(21 training, 3 validation, 6 test records)
    """
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    wanted = (_shares(parts) * len(group)).tolist()  # of Python's numbers, which a loop over groups adds up faster
    part = np.empty(len(sizes), dtype=np.int64)
    order = rng.permutation(len(sizes))
    for number, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        neediest = wanted.index(max(wanted))
        part[number] = neediest
        wanted[neediest] -= size
    pieces = [np.flatnonzero(part[group] == place) for place in range(3)]
    seen = f"{len(group):,} records in {len(sizes):,} groups"
    return _to_split(pieces, parts, seen, "give records of more groups, or split at random")


def time_split(times: Floats, *, parts: Sequence[float] = PAPER_PROPORTIONS) -> Split:
    """Train on the oldest records, validate on later ones and test on the newest; equal times stay together.

    >>> split = time_split(np.array([5.0, 1.0, 2.0, 3.0, 4.0, 2.0]), parts=(3, 1, 1))
    >>> split.train.tolist(), split.validation.tolist(), split.test.tolist()
    ([1, 2, 3, 5], [4], [0])
    """
    values, place, counts = np.unique(times, return_inverse=True, return_counts=True)
    # A time belongs to the part that contains most of its records.
    middle = (np.cumsum(counts) - counts / 2) / len(place)
    part = np.searchsorted(np.cumsum(_shares(parts))[:2], middle)
    pieces = [np.flatnonzero(part[place] == number) for number in range(3)]
    seen = f"{len(place):,} records at {len(values):,} times"
    return _to_split(pieces, parts, seen, "choose a column with more times, or split at random")


def read_times(cells: pl.Series, table: str) -> Floats:
    """Return dates or numbers as numbers that grow with time."""
    dates = read_cells(cells, CellType.DATE)
    if any(fault.kind is not FaultKind.MISSING for fault in dates.faults):
        return read_cells(cells, CellType.NUMBER).require(table).to_numpy()
    return dates.require(table).cast(pl.Int64).cast(pl.Float64).to_numpy()


PART_WORDS = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "test": 2, "testing": 2}


def column_split(values: pl.Series, rng: np.random.Generator, *, parts: Sequence[float] = PAPER_PROPORTIONS) -> Split:
    """Split by a column: either its cells name the parts (train, validation, test), or equal cells stay together.

    >>> column_split(pl.Series(["train", "Test", "validation", "train"]), np.random.default_rng(0)).test.tolist()
    [1]
    """
    words = values.cast(pl.String).str.strip_chars().str.to_lowercase()
    part = words.replace_strict(PART_WORDS, default=None, return_dtype=pl.Int64)
    if part.null_count():
        try:
            return group_split(group_equal_records(words.to_frame()), rng, parts=parts)
        except InputError as error:
            seen = f"column '{values.name}' has {words.n_unique():,} different values, too few or too unequal to split"
            fix = "choose a column with more values, or write train, validation and test in its cells"
            raise InputError(f"{seen} {_ratio(parts)}; {fix}", code=error.code, column=values.name) from error
    pieces = [np.flatnonzero(part.to_numpy() == number) for number in range(3)]
    seen = f"{len(values):,} records split by their column '{values.name}'"
    return _to_split(pieces, parts, seen, "write train, validation and test in its cells")


def group_equal_records(identifiers: Any, *, party: str = "primary") -> Integers:
    """Return a group number per record; records whose identifiers are equal in every column share a group.

    >>> group_equal_records(np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0]])).tolist()
    [0, 1, 0]
    """
    frame = to_polars(identifiers, party=party)
    if not frame.width:
        raise InputError(f"the {party} table has no identifier columns to group by; name at least one")
    number = frame.select(pl.struct(pl.all()).rank("dense")).to_series() if frame.height else pl.Series([])
    return np.asarray(number.to_numpy(), dtype=np.int64) - 1


def group_matching_records(
    written: Sequence[pl.DataFrame], compared: Sequence[pl.DataFrame], *, party: str = "primary"
) -> Integers:
    """Return a group number per record: records with equal ``compared`` forms, numbered by their ``written`` forms.

    If nothing is written in two ways, the groups equal those of :func:`group_equal_records`.

    >>> ours, theirs = pl.DataFrame({"name": ["b", "a", "B"]}), pl.DataFrame({"name": ["b", "a", "b"]})
    >>> group_matching_records([ours], [theirs]).tolist()
    [0, 1, 0]
    """
    tables = [
        pl.DataFrame({f"{place} {column.name}": column for place, frame in enumerate(frames) for column in frame})
        for frames in (written, compared)
    ]
    order, alike = (group_equal_records(table, party=party) for table in tables)
    first = np.full(len(order), len(order), dtype=np.int64)
    np.minimum.at(first, alike, order)
    return np.asarray(np.unique(first[alike], return_inverse=True)[1], dtype=np.int64)


def _shares(parts: Sequence[float]) -> Floats:
    shares = np.asarray(parts, dtype=np.float64)
    if shares.shape != (3,) or not np.isfinite(shares).all() or (shares < 0).any() or shares[0] == 0:
        raise SettingError(f"parts={tuple(parts)}; give three numbers such as (7, 1, 2), the first above zero")
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def _ratio(parts: Sequence[float]) -> str:
    return ":".join(f"{part:g}" for part in parts)


def _to_split(pieces: Sequence[Integers], parts: Sequence[float], seen: str, fix: str) -> Split:
    for name, piece, share in zip(PART_NAMES, pieces, parts, strict=True):
        if share > 0 and not len(piece):
            message = f"{seen} cannot be split {_ratio(parts)}: no {name} record is left; {fix}"
            raise InputError(message, code="cannot-split", part=name)
    train, validation, test = (np.sort(piece) for piece in pieces)
    return Split(train, validation, test)
