"""Checks of a party's table: columns, number of records, cells of identifiers and label, and features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.cells import parse_iso_date
from fedsim.config.job import Job
from fedsim.config.party_file import DataSettings, PartyColumns, PartyFile, identifier_columns, resolve_columns
from fedsim.data.column_names import missing_column_message
from fedsim.data.columns import DECIMAL_COMMA, TEXT_DTYPES, infer_numbers, number_advice
from fedsim.data.features import FeatureRules, fit_preprocessor
from fedsim.data.splits import random_split
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError
from fedsim.linkage.encoding import DateFilter, NumericFilter, SchemaField, StringFilter
from fedsim.preflight.finding import (
    CheckedTable,
    CheckFinding,
    PartyInJob,
    SettingPath,
    failure,
    failure_from_error,
    failure_from_message,
    info,
    nearest_file,
    ok,
    setting_location,
    warning,
)
from fedsim.protocol.codec import MAX_FRAME_BYTES
from fedsim.protocol.messages import Role

# A party's table: can it be read, has it the columns, are there enough records?


MIN_STEPS = 200
MIN_GROUPS = 3  # training, validation and test need one each


def check_table(own: PartyFile, job: Job | None) -> tuple[CheckedTable | None, list[CheckFinding]]:
    """The party's table; where it cannot be read as a whole, at least the columns that the job needs."""
    if own.data is None:
        return None, []
    try:
        frame = _read_columns(own.data, None)
    except FedSimError as error:
        return _read_needed_columns(own, job), [_unreadable_table(own, own.data, error)]
    size = f"{own.data.source}: {len(frame):,} records, {frame.width:,} columns"
    return CheckedTable(frame, tuple(frame.columns)), [info("data", size)]


def check_columns(own: PartyFile, job: Job, table: CheckedTable) -> tuple[PartyColumns | None, list[CheckFinding]]:
    """The party's columns in this job, each of those that are missing with the nearest that is there."""
    if table.header is None or own.data is None:
        return None, []
    missing = {
        column: setting for column, setting in _columns_by_setting(own, job).items() if column not in table.header
    }
    if missing:
        where = {column: f"{setting_location(own, setting)}{own.data.source}" for column, setting in missing.items()}
        return None, [
            failure_from_message("columns", f"{where[name]}: {missing_column_message(name, table.header)}")
            for name in missing
        ]
    try:
        columns = resolve_columns(job, own, table.header)
    except FedSimError as error:
        return None, [failure_from_error("columns", error)]
    linking, features = len(columns.linking), len(columns.features or ())
    return columns, [ok("columns", f"{linking} that link, {features:,} features{', label' * bool(columns.label)}")]


def check_records(case: PartyInJob) -> Iterator[CheckFinding]:
    """Enough for k, for the split, and not too many for one message."""
    if case.table is None:
        return
    here = len(case.table.frame)
    if case.own.role is Role.PRIMARY:
        yield from _check_split(case, here)
    elif here < (k := case.job.secondaries[case.own.name].k):
        yield failure(
            "records", f"k is {k:,} for a table of {here:,} records", f"lower k to {here:,} in the job at most"
        )
    largest = case.estimate.largest_message
    if largest > MAX_FRAME_BYTES:
        yield failure(
            "records",
            f"the largest message would have {largest:,} bytes, and {MAX_FRAME_BYTES:,} are allowed",
            "take fewer records, shorter filters or a smaller k",
        )
    yield ok("records", f"{here:,}")


def check_steps(case: PartyInJob) -> Iterator[CheckFinding]:
    """Enough of them for networks to learn anything."""
    if case.table is None or case.own.role is not Role.PRIMARY:
        return
    in_all = case.estimate.steps * case.estimate.epochs
    if in_all < MIN_STEPS:
        result = f"{in_all:,} step{'s' * (in_all != 1)} in all; networks learn little from so few"
        yield warning("steps", result, "more epochs or a smaller batch_size")
    else:
        yield ok("steps", f"{in_all:,} in all")


def _check_split(case: PartyInJob, here: int) -> Iterator[CheckFinding]:
    if case.job.task.split == "random":
        random_split(here, np.random.default_rng(0))
        return
    frame = case.table.frame if case.table else pl.DataFrame()
    linking = [column for column in _own_identifiers(case.own, case.job) if column in frame.columns]
    groups = frame.select(linking).n_unique() if linking else MIN_GROUPS
    if groups < MIN_GROUPS:
        yield failure(
            "records",
            f"all records share {groups} sets of identifiers, and a split by group needs {MIN_GROUPS}",
            'set task.split = "random" in the job, or link by other columns',
        )


def _read_columns(data: DataSettings, columns: list[str] | None) -> pl.DataFrame:
    return read_table(data.source, columns, separator=data.separator, option="data.separator =")


def _unreadable_table(own: PartyFile, data: DataSettings, error: FedSimError) -> CheckFinding:
    """Why a table cannot be read; where no file has its name, also where that is written and which name is near."""
    source = data.source
    if not isinstance(source, Path) or source.exists():
        return failure_from_error("data", error)
    near = nearest_file(source)
    result = f"{setting_location(own, ('data', 'file'))}{source} does not exist"
    return failure("data", result, f"did you mean '{near}'?" if near else "check the path")


def _read_needed_columns(own: PartyFile, job: Job | None) -> CheckedTable | None:
    """What can still be looked at, such as in a table with a column twice that nobody uses."""
    if own.data is None or job is None or own.party not in job.parties:
        return None
    try:
        return CheckedTable(_read_columns(own.data, list(dict.fromkeys(_needed_columns(own, job)))), None)
    except FedSimError:
        return None


def _columns_by_setting(own: PartyFile, job: Job) -> dict[str, SettingPath]:
    """Every column that the party names or agreed on, and the setting that names it."""
    by_name = {column: (name,) for name, column in own.identifiers.items() if isinstance(column, str)}
    for name, columns in own.identifiers.items():
        by_name |= {column: (name, agreed) for agreed, column in columns.items()} if isinstance(columns, dict) else {}
    wanted = {column: ("identifiers", *by_name.get(column, ())) for column in _own_identifiers(own, job)}
    named = {("label", "column"): [own.label.column] if own.label else []}
    named |= {("features", "columns"): list(own.features.columns or ()), ("features", "drop"): list(own.features.drop)}
    for setting, columns in named.items():
        for column in columns:
            wanted.setdefault(column, setting)
    return wanted


def _needed_columns(own: PartyFile, job: Job) -> list[str]:
    return [*_own_identifiers(own, job), *([own.label.column] if own.label else [])]


def _own_identifiers(own: PartyFile, job: Job) -> list[str]:
    linked = [name for name in job.secondaries if name == own.name or own.role is Role.PRIMARY]
    return [column for name in linked for column in identifier_columns(job, own, name).values()]


# The cells of identifiers and label: of the type that encoding and task want, none missing, within the agreed range
#
# Rows are data rows, the first under the header is row 1; what stands in a cell is never told.


MIN_SHARE_IN_RANGE = 0.95  # share of the cells that must lie in a range for the column to be meant for it
MAX_CLASSES = 100


@dataclass(frozen=True, eq=False, repr=False)
class _CheckedColumn:
    """A column in use; ``check`` is the name under which its faults are told."""

    check: str
    cells: pl.Series

    @property
    def missing(self) -> pl.Series:
        blank = self.cells == "" if self.cells.dtype == pl.String else pl.repeat(False, len(self.cells), eager=True)
        return self.cells.is_null() | blank

    def fault(self, bad: pl.Series, what: str, fix: str) -> Iterator[CheckFinding]:
        """How many cells are bad, and where the first is."""
        rows = bad.arg_true()
        if len(rows):
            count = f"{len(rows):,} of {len(bad):,}"
            first = f"first in row {int(rows[0]) + 1:,}"
            yield failure(self.check, f"column '{self.cells.name}': {count} {what}, {first}", fix)

    def gaps(self) -> Iterator[CheckFinding]:
        yield from self.fault(self.missing, "are missing", "fill them in, or drop those records")

    def holds(self, needed: str) -> CheckFinding:
        found = f"column '{self.cells.name}' holds {self.cells.dtype}; {needed} needed"
        return failure(self.check, found, "convert the column")


def check_identifiers(case: PartyInJob) -> Iterator[CheckFinding]:
    """Every column that links, for every list it links."""
    places = list(_linking_columns(case))
    pairs = list(_swapped_columns(places))
    turned = [place for pair in pairs for place in pair]
    found = [_swap_finding(case, *pair) for pair in pairs]
    for place in places:
        look = (
            _check_numeric_cells
            if place in turned
            else _COLUMN_CHECKS.get(type(place.field.encoding), _check_any_column)
        )
        found += look(place)
    yield from found
    names = dict.fromkeys(place.column.cells.name for place in places)
    if case.columns and names and not found:
        yield ok("identifiers", f"{', '.join(names)}: none missing, all as their encodings want them")


def check_label(case: PartyInJob) -> Iterator[CheckFinding]:
    """One for every record, numbers or classes as the task says."""
    named = case.own.label.column if case.own.label else None
    if case.table is None or named is None or named not in case.table.frame.columns:
        return
    column = _CheckedColumn("label", _strip_cells(case.table.frame[named]))
    if column.cells.dtype.is_nested() or column.cells.dtype in (pl.Binary, pl.Object):
        yield column.holds("numbers or text are")
        return
    look = _check_class_label if case.job.task.kind == "classification" else _check_numeric_label
    found = list(look(column, case.own.data.missing if case.own.data else ()))
    yield from found
    if not found:
        yield ok("label", f"{named}: {case.job.task.kind}, none missing")


@dataclass(frozen=True, eq=False, repr=False)
class _LinkingColumn:
    """A column as one list uses it."""

    secondary: str
    field: SchemaField
    column: _CheckedColumn
    salt: _CheckedColumn | None

    def numbers(self) -> pl.Series:
        return _as_numbers(self.column.cells)

    def fits(self, numbers: pl.Series) -> bool:
        """Whether nearly all of these numbers lie in this field's range."""
        there = numbers.filter(numbers.is_finite())
        encoding = self.field.encoding
        if not len(there) or not isinstance(encoding, NumericFilter):
            return False
        return float(there.is_between(encoding.low, encoding.high).mean() or 0.0) >= MIN_SHARE_IN_RANGE  # type: ignore[arg-type]


def _linking_columns(case: PartyInJob) -> Iterator[_LinkingColumn]:
    """Every field and salt of every list of this party whose column is there."""
    if case.table is None:
        return
    frame = case.table.frame
    for name, terms in case.job.secondaries.items():
        if case.own.role is not Role.PRIMARY and name != case.own.name:
            continue
        own = identifier_columns(case.job, case.own, name)
        columns = {
            agreed: _CheckedColumn("identifiers", _strip_cells(frame[column]))
            for agreed, column in own.items()
            if column in frame.columns
        }
        for field in terms.encoding.fields:
            if field.column in columns:
                yield _LinkingColumn(name, field, columns[field.column], columns.get(field.salt or ""))


def _check_numeric_cells(place: _LinkingColumn) -> Iterator[CheckFinding]:
    column = place.column
    if not (column.cells.dtype.is_numeric() or column.cells.dtype == pl.String):
        yield column.holds("numbers are")
        return
    yield from column.gaps()
    yield from column.fault(*_non_numeric_cells(column, place.numbers()))


def _check_number_column(place: _LinkingColumn) -> Iterator[CheckFinding]:
    yield from _check_numeric_cells(place)
    numbers, encoding = place.numbers(), place.field.encoding
    if isinstance(encoding, NumericFilter):
        outside = numbers.is_finite() & ~numbers.is_between(encoding.low, encoding.high)
        agreed = f"{encoding.low:g} to {encoding.high:g}"
        yield from _check_range(place, outside.fill_null(value=False), agreed)


def _check_date_column(place: _LinkingColumn) -> Iterator[CheckFinding]:
    column, encoding = place.column, place.field.encoding
    yield from column.gaps()
    if column.cells.dtype in (pl.Date, pl.Datetime):
        days = column.cells.dt.date()
    elif column.cells.dtype in TEXT_DTYPES:
        days = pl.Series([None if cell is None else parse_iso_date(cell) for cell in column.cells], dtype=pl.Date)
        yield from column.fault(
            days.is_null() & ~column.missing, "are no dates like 1984-07-31", "write year-month-day"
        )
    else:
        yield column.holds("dates like 1984-07-31 are")
        return
    if isinstance(encoding, DateFilter):
        outside = ~days.is_between(encoding.low, encoding.high)
        yield from _check_range(place, outside.fill_null(value=False), f"{encoding.low} to {encoding.high}")


def _check_text_column(place: _LinkingColumn) -> Iterator[CheckFinding]:
    if place.column.cells.dtype not in TEXT_DTYPES:
        yield place.column.holds("text is")
        return
    yield from place.column.gaps()
    if place.salt:
        yield from place.salt.gaps()


def _check_any_column(place: _LinkingColumn) -> Iterator[CheckFinding]:
    """Check what every encoding requires: a value in every row. The encoding itself checks the rest when it runs."""
    yield from place.column.gaps()
    if place.salt:
        yield from place.salt.gaps()


_COLUMN_CHECKS: dict[type, Callable[[_LinkingColumn], Iterator[CheckFinding]]] = {
    NumericFilter: _check_number_column,
    DateFilter: _check_date_column,
    StringFilter: _check_text_column,
}


def _check_range(place: _LinkingColumn, outside: pl.Series, agreed: str) -> Iterator[CheckFinding]:
    what = f"lie outside the range agreed with {place.secondary}, {agreed}"
    yield from place.column.fault(outside, what, "agree on a wider range in the job, or drop those records")


def _swapped_columns(places: list[_LinkingColumn]) -> Iterator[tuple[_LinkingColumn, _LinkingColumn]]:
    """Two columns of a list that fit their ranges only the other way round, such as latitude and longitude."""
    numeric = [place for place in places if isinstance(place.field.encoding, NumericFilter)]
    for one, other in combinations(numeric, 2):
        first, second = one.numbers(), other.numbers()
        as_meant = one.fits(first) and other.fits(second)
        if one.secondary == other.secondary and not as_meant and one.fits(second) and other.fits(first):
            yield one, other


def _swap_finding(case: PartyInJob, one: _LinkingColumn, other: _LinkingColumn) -> CheckFinding:
    first, second = one.column.cells.name, other.column.cells.name
    return failure(
        "identifiers",
        f"columns '{first}' and '{second}' look exchanged: each fits the range of the other",
        f'in {case.own.path}: [identifiers] {one.field.column} = "{second}", {other.field.column} = "{first}"',
    )


def _check_numeric_label(column: _CheckedColumn, _: tuple[str, ...]) -> Iterator[CheckFinding]:
    if not (column.cells.dtype.is_numeric() or column.cells.dtype == pl.String):
        yield column.holds("numbers are")
        return
    yield from column.gaps()
    numbers = _as_numbers(column.cells)
    yield from column.fault(*_non_numeric_cells(column, numbers))
    there = numbers.filter(numbers.is_finite())
    values = there.n_unique()
    if values == 1:
        yield failure("label", f"column '{there.name}' has one value only", "predict another column")
    elif values == 2:
        fix = 'set task.kind = "classification" in the job if it is a yes or no'
        yield warning("label", f"column '{there.name}' has two values only, as classes have", fix)


def _check_class_label(column: _CheckedColumn, missing_words: tuple[str, ...]) -> Iterator[CheckFinding]:
    yield from column.gaps()
    there = infer_numbers(pl.DataFrame([column.cells.filter(~column.missing)]))[column.cells.name]
    values = there.n_unique()
    if values < 2:
        yield failure("label", f"column '{there.name}' has one class only", "at least two are needed to tell apart")
    elif values > MAX_CLASSES and there.dtype.is_numeric():
        fix = 'set task.kind = "regression" in the job if it is a quantity'
        yield warning("label", f"column '{there.name}' has {values:,} classes, all of them numbers", fix)
    if there.dtype == pl.String and (gaps := int(there.is_in(list(missing_words)).sum())):
        result = f"column '{there.name}': {gaps:,} of {len(there):,} hold a word of data.missing, a class of its own"
        yield warning("label", result, "drop those records if their class is not known")


def _strip_cells(cells: pl.Series) -> pl.Series:
    plain = cells.cast(pl.String) if cells.dtype in TEXT_DTYPES else cells
    return plain.str.strip_chars() if plain.dtype == pl.String else plain


def _as_numbers(cells: pl.Series) -> pl.Series:
    if not (cells.dtype.is_numeric() or cells.dtype == pl.String):
        return pl.Series(cells.name, [None] * len(cells), dtype=pl.Float64)
    return cells.cast(pl.Float64, strict=False)


def _non_numeric_cells(column: _CheckedColumn, numbers: pl.Series) -> tuple[pl.Series, str, str]:
    bad = ~column.missing & ~numbers.is_finite().fill_null(value=False)
    return bad, "are no numbers", number_advice(column.cells.filter(bad), numbers.filter(bad))


# Features that can be prepared, and those that probably mean something else than they look like


RULE_SHARE, MIN_RECORDS_FOR_RULE = 0.9, 20  # share of the cells that make a rule; records below which no rule shows
MAX_NAMES_SHOWN = 3
ISO_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"


def check_features(case: PartyInJob) -> Iterator[CheckFinding]:
    """What is learnt from."""
    if case.table is None or case.columns is None:
        return
    missing = case.own.data.missing if case.own.data else ()
    frame, kinds = infer_numbers(case.table.frame.select(case.columns.features or ()), missing), case.own.features.kinds
    open_kinds = frame.select(column for column in frame.columns if column not in kinds)
    for suspect, (what, fix) in _SUSPECTS.items():
        names = [column.name for column in open_kinds.iter_columns() if suspect(column)]
        if names:
            yield warning("features", f"{_column_list(names)}: {what}", fix)
            open_kinds = open_kinds.drop(names)
    fit_preprocessor(frame, party=str(case.own.party), rules=FeatureRules(kinds=kinds))
    yield ok("features", f"{frame.width:,}, all can be prepared")


def _is_empty(column: pl.Series) -> bool:
    return column.null_count() == len(column)


def _has_commas(column: pl.Series) -> bool:
    return _mostly_matches(column, DECIMAL_COMMA)


def _is_almost_numbers(column: pl.Series) -> bool:
    """Text only because a few cells are none; such words belong under ``data.missing``."""
    if column.dtype != pl.String or len(column) < MIN_RECORDS_FOR_RULE:
        return False
    numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
    return len(column) - numbers.null_count() >= RULE_SHARE * (len(column) - column.null_count())


def _is_dates(column: pl.Series) -> bool:
    return _mostly_matches(column, ISO_DAY)


def _counts_records(column: pl.Series) -> bool:
    """A different word in nearly every record, or numbers one after the other: it names the record."""
    if len(column) < MIN_RECORDS_FOR_RULE:
        return False
    if column.dtype == pl.String:
        return column.n_unique() > RULE_SHARE * len(column)
    if not column.dtype.is_numeric() or column.n_unique() < len(column):
        return False
    return float(column.max()) - float(column.min()) == len(column) - 1  # type: ignore[arg-type]


# In this order: a column is suspected of the first that fits.
_SUSPECTS: dict[Callable[[pl.Series], bool], tuple[str, str]] = {
    _is_empty: ("no value at all", "leave it out: [features] drop"),
    _has_commas: ("decimal commas, learnt as words", "write decimals with a point"),
    _is_almost_numbers: ("numbers but for some cells, learnt as words", "name such words in data.missing"),
    _is_dates: ("dates, learnt as words", 'say so: [features] kinds = { ... = "date" }'),
    _counts_records: ("another value in every record; a name or number of it?", "leave it out: [features] drop"),
}


def _mostly_matches(column: pl.Series, pattern: str) -> bool:
    if column.dtype != pl.String:
        return False
    there = column.drop_nulls().str.strip_chars()
    return len(there) > 0 and float(there.str.contains(pattern).mean() or 0.0) >= RULE_SHARE  # type: ignore[arg-type]


def _column_list(names: list[str]) -> str:
    """The first names, and how many more.

    >>> _column_list(["a", "b", "c", "d", "e"])
    'columns a, b, c and 2 more'
    """
    more = f" and {len(names) - MAX_NAMES_SHOWN:,} more" if len(names) > MAX_NAMES_SHOWN else ""
    return f"column{'s' * (len(names) > 1)} {', '.join(names[:MAX_NAMES_SHOWN])}{more}"
