"""The cells of identifiers and label: of the type that encoding and task want, none missing, within the agreed range.

Rows are data rows, the first under the header is row 1; what stands in a cell is never told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import polars as pl

from fedsim.data.columns import TEXT, advice
from fedsim.data.typed import typed
from fedsim.dates import iso_date
from fedsim.linkage.encoding import DateFilter, Field, NumericFilter, StringFilter
from fedsim.party.checks.finding import Finding, fails, ok, warning
from fedsim.party.checks.subject import Case
from fedsim.party.own_columns import identifiers_for
from fedsim.protocol.parties import Role

FITTING = 0.95  # share of the cells that must lie in a range for the column to be meant for it
MANY_CLASSES = 100


@dataclass(frozen=True, eq=False, repr=False)
class _Column:
    """A column in use; ``check`` is the name under which its faults are told."""

    check: str
    cells: pl.Series

    @property
    def missing(self) -> pl.Series:
        blank = self.cells == "" if self.cells.dtype == pl.String else pl.repeat(False, len(self.cells), eager=True)
        return self.cells.is_null() | blank

    def fault(self, bad: pl.Series, what: str, fix: str) -> Iterator[Finding]:
        """How many cells are bad, and where the first is."""
        rows = bad.arg_true()
        if len(rows):
            count = f"{len(rows):,} of {len(bad):,}"
            first = f"first in row {int(rows[0]) + 1:,}"
            yield fails(self.check, f"column '{self.cells.name}': {count} {what}, {first}", fix)

    def gaps(self) -> Iterator[Finding]:
        yield from self.fault(self.missing, "are missing", "fill them in, or drop those records")

    def holds(self, needed: str) -> Finding:
        found = f"column '{self.cells.name}' holds {self.cells.dtype}; {needed} needed"
        return fails(self.check, found, "convert the column")


def identifiers(case: Case) -> Iterator[Finding]:
    """Every column that links, for every list it links."""
    places = list(_linking(case))
    pairs = list(_exchanged(places))
    turned = [place for pair in pairs for place in pair]
    found = [_turn(case, *pair) for pair in pairs]
    for place in places:
        look = _look_at_cells if place in turned else _LOOK[type(place.field.encoding)]
        found += look(place)
    yield from found
    names = dict.fromkeys(place.column.cells.name for place in places)
    if case.columns and names and not found:
        yield ok("identifiers", f"{', '.join(names)}: none missing, all as their encodings want them")


def label(case: Case) -> Iterator[Finding]:
    """One for every record, numbers or classes as the task says."""
    named = case.own.label.column if case.own.label else None
    if case.table is None or named is None or named not in case.table.frame.columns:
        return
    column = _Column("label", _stripped(case.table.frame[named]))
    if column.cells.dtype.is_nested() or column.cells.dtype in (pl.Binary, pl.Object):
        yield column.holds("numbers or text are")
        return
    look = _classes if case.job.task.kind == "classification" else _numbers
    found = list(look(column, case.own.data.missing if case.own.data else ()))
    yield from found
    if not found:
        yield ok("label", f"{named}: {case.job.task.kind}, none missing")


@dataclass(frozen=True, eq=False, repr=False)
class _Linking:
    """A column as one list uses it."""

    secondary: str
    field: Field
    column: _Column
    salt: _Column | None

    def numbers(self) -> pl.Series:
        return _as_numbers(self.column.cells)

    def fits(self, numbers: pl.Series) -> bool:
        """Whether nearly all of these numbers lie in this field's range."""
        there = numbers.filter(numbers.is_finite())
        encoding = self.field.encoding
        if not len(there) or not isinstance(encoding, NumericFilter):
            return False
        return float(there.is_between(encoding.low, encoding.high).mean() or 0.0) >= FITTING  # type: ignore[arg-type]


def _linking(case: Case) -> Iterator[_Linking]:
    """Every field and salt of every list of this party whose column is there."""
    if case.table is None:
        return
    frame = case.table.frame
    for name, terms in case.job.secondaries.items():
        if case.own.role is not Role.PRIMARY and name != case.own.name:
            continue
        own = identifiers_for(case.job, case.own, name)
        columns = {
            agreed: _Column("identifiers", _stripped(frame[column]))
            for agreed, column in own.items()
            if column in frame.columns
        }
        for field in terms.encoding.fields:
            if field.column in columns:
                yield _Linking(name, field, columns[field.column], columns.get(field.salt or ""))


def _look_at_cells(place: _Linking) -> Iterator[Finding]:
    column = place.column
    if not (column.cells.dtype.is_numeric() or column.cells.dtype == pl.String):
        yield column.holds("numbers are")
        return
    yield from column.gaps()
    yield from column.fault(*_no_numbers(column, place.numbers()))


def _look_at_numbers(place: _Linking) -> Iterator[Finding]:
    yield from _look_at_cells(place)
    numbers, encoding = place.numbers(), place.field.encoding
    if isinstance(encoding, NumericFilter):
        outside = numbers.is_finite() & ~numbers.is_between(encoding.low, encoding.high)
        agreed = f"{encoding.low:g} to {encoding.high:g}"
        yield from _outside(place, outside.fill_null(value=False), agreed)


def _look_at_dates(place: _Linking) -> Iterator[Finding]:
    column, encoding = place.column, place.field.encoding
    yield from column.gaps()
    if column.cells.dtype in (pl.Date, pl.Datetime):
        days = column.cells.dt.date()
    elif column.cells.dtype in TEXT:
        days = pl.Series([None if cell is None else iso_date(cell) for cell in column.cells], dtype=pl.Date)
        yield from column.fault(
            days.is_null() & ~column.missing, "are no dates like 1984-07-31", "write year-month-day"
        )
    else:
        yield column.holds("dates like 1984-07-31 are")
        return
    if isinstance(encoding, DateFilter):
        outside = ~days.is_between(encoding.low, encoding.high)
        yield from _outside(place, outside.fill_null(value=False), f"{encoding.low} to {encoding.high}")


def _look_at_text(place: _Linking) -> Iterator[Finding]:
    if place.column.cells.dtype not in TEXT:
        yield place.column.holds("text is")
        return
    yield from place.column.gaps()
    if place.salt:
        yield from place.salt.gaps()


_LOOK: dict[type, Callable[[_Linking], Iterator[Finding]]] = {
    NumericFilter: _look_at_numbers,
    DateFilter: _look_at_dates,
    StringFilter: _look_at_text,
}


def _outside(place: _Linking, outside: pl.Series, agreed: str) -> Iterator[Finding]:
    what = f"lie outside the range agreed with {place.secondary}, {agreed}"
    yield from place.column.fault(outside, what, "agree on a wider range in the job, or drop those records")


def _exchanged(places: list[_Linking]) -> Iterator[tuple[_Linking, _Linking]]:
    """Two columns of a list that fit their ranges only the other way round, such as latitude and longitude."""
    numeric = [place for place in places if isinstance(place.field.encoding, NumericFilter)]
    for one, other in combinations(numeric, 2):
        first, second = one.numbers(), other.numbers()
        as_meant = one.fits(first) and other.fits(second)
        if one.secondary == other.secondary and not as_meant and one.fits(second) and other.fits(first):
            yield one, other


def _turn(case: Case, one: _Linking, other: _Linking) -> Finding:
    first, second = one.column.cells.name, other.column.cells.name
    return fails(
        "identifiers",
        f"columns '{first}' and '{second}' look exchanged: each fits the range of the other",
        f'in {case.own.path}: [identifiers] {one.field.column} = "{second}", {other.field.column} = "{first}"',
    )


def _numbers(column: _Column, _: tuple[str, ...]) -> Iterator[Finding]:
    if not (column.cells.dtype.is_numeric() or column.cells.dtype == pl.String):
        yield column.holds("numbers are")
        return
    yield from column.gaps()
    numbers = _as_numbers(column.cells)
    yield from column.fault(*_no_numbers(column, numbers))
    there = numbers.filter(numbers.is_finite())
    values = there.n_unique()
    if values == 1:
        yield fails("label", f"column '{there.name}' has one value only", "predict another column")
    elif values == 2:
        fix = 'set task.kind = "classification" in the job if it is a yes or no'
        yield warning("label", f"column '{there.name}' has two values only, as classes have", fix)


def _classes(column: _Column, missing_words: tuple[str, ...]) -> Iterator[Finding]:
    yield from column.gaps()
    there = typed(pl.DataFrame([column.cells.filter(~column.missing)]))[column.cells.name]
    values = there.n_unique()
    if values < 2:
        yield fails("label", f"column '{there.name}' has one class only", "at least two are needed to tell apart")
    elif values > MANY_CLASSES and there.dtype.is_numeric():
        fix = 'set task.kind = "regression" in the job if it is a quantity'
        yield warning("label", f"column '{there.name}' has {values:,} classes, all of them numbers", fix)
    if there.dtype == pl.String and (gaps := int(there.is_in(list(missing_words)).sum())):
        result = f"column '{there.name}': {gaps:,} of {len(there):,} hold a word of data.missing, a class of its own"
        yield warning("label", result, "drop those records if their class is not known")


def _stripped(cells: pl.Series) -> pl.Series:
    plain = cells.cast(pl.String) if cells.dtype in TEXT else cells
    return plain.str.strip_chars() if plain.dtype == pl.String else plain


def _as_numbers(cells: pl.Series) -> pl.Series:
    if not (cells.dtype.is_numeric() or cells.dtype == pl.String):
        return pl.Series(cells.name, [None] * len(cells), dtype=pl.Float64)
    return cells.cast(pl.Float64, strict=False)


def _no_numbers(column: _Column, numbers: pl.Series) -> tuple[pl.Series, str, str]:
    bad = ~column.missing & ~numbers.is_finite().fill_null(value=False)
    return bad, "are no numbers", advice(column.cells.filter(bad), numbers.filter(bad))
