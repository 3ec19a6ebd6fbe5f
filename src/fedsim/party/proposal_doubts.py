"""What keeps columns from linking well: cells of another kind than the rest, and names that many records share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from fedsim.data.column_words import says_birth, says_latitude, says_longitude, says_who
from fedsim.data.identifier_guess import Pair
from fedsim.data.kinds import Kind
from fedsim.data.looks import ColumnLook, TableLook
from fedsim.dates import iso_date
from fedsim.party.proposal_places import Side

NEARLY = 0.9  # of the cells: the others are mistakes
APART = 0.5  # of the records: with fewer, names and dates tell people badly apart
OTHER_DATE = r"^[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}$"
_RULES = {
    Kind.NUMBER: "is not a number; correct it",
    Kind.DATE: "is not a date like 1984-07-31; write year-month-day",
}


def odd_cell(look: ColumnLook, kind: Kind) -> str:
    """The first row of a text column that breaks its kind, and the way out; nothing where none does."""
    odd = (look.cells.is_not_null() & ~_fits(look.cells, kind)).arg_true()
    return f"row {odd[0] + 1:,} {_RULES[kind]}" if len(odd) else ""


def doubtful(table: TableLook, linked: Sequence[str]) -> Iterator[str]:
    """The columns that would link but for a few cells, or for the way their dates are written."""
    for look in table.columns.values():
        kind = meant(look)
        if kind and look.name not in linked:
            yield f"{table.name}: column '{look.name}' cannot link, for {odd_cell(look, kind)}"


def meant(look: ColumnLook) -> Kind | None:
    """What a text column should hold, by its name and nearly all of its cells; ``None`` where text is in order."""
    if look.kind != Kind.CATEGORY or not look.distinct:
        return None
    if says_latitude(look.name) or says_longitude(look.name):
        return Kind.NUMBER if _share(_fits(look.filled, Kind.NUMBER)) >= NEARLY else None
    if not says_birth(look.name):
        return None
    dates = _fits(look.filled, Kind.DATE) | look.filled.str.contains(OTHER_DATE)
    return Kind.DATE if _share(dates) >= NEARLY else None


def vague(sides: Sequence[Side], pairs: Sequence[Pair]) -> Iterator[str]:
    """A word about names and dates of birth that tell few records apart on every side.

    Where one side has every person once, many records of the other may well mean the same one.
    """
    if not all(says_who(pair.agreed) for pair in pairs):
        return
    counts = [(_distinct(table, [getattr(pair, role) for pair in pairs]), table) for role, table in sides]
    if all(different < APART * table.rows for different, table in counts):
        told = " and ".join(f"{different:,} of {table.rows:,} records of {table.name}" for different, table in counts)
        named = ", ".join(f"'{pair.agreed}'" for pair in pairs)
        yield f"only {told} differ in {named}: others are linked by chance; add columns with --on and --on-secondary"


def _distinct(table: TableLook, columns: Sequence[str]) -> int:
    return pl.DataFrame([table.columns[name].cells for name in columns]).n_unique()


def _fits(cells: pl.Series, kind: Kind) -> pl.Series:
    if kind == Kind.NUMBER:
        return cells.cast(pl.Float64, strict=False).is_not_null()
    return pl.Series([cell is not None and iso_date(cell) is not None for cell in cells], dtype=pl.Boolean)


def _share(held: pl.Series) -> float:
    return float(held.mean() or 0.0)  # type: ignore[arg-type]
