"""How two tables could be linked: identifiers, encodings that fit their values, K and noise.

Everything is a guess from the tables at hand that the owner sees and may change. Parameters round away what a single
record says: ranges have a margin and end at round numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from fedsim.data.column_words import LATITUDE, LONGITUDE, NAMES, says_latitude, says_longitude, words_of
from fedsim.data.identifier_guess import EAST, NORTH, Pair, common_identifiers, lie_apart
from fedsim.data.kinds import Kind
from fedsim.data.looks import OTHER, ColumnLook, TableLook
from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding import Field
from fedsim.party.proposal_doubts import doubtful, meant, odd_cell, vague
from fedsim.party.proposal_encodings import encodings_for
from fedsim.party.proposal_learning import gap_words, look_of
from fedsim.party.proposal_places import Side, straightened

PARTNERS, TAU = 20, 0.05


@dataclass(frozen=True)
class Tables:
    """What is at hand of the two parties' tables."""

    primary: TableLook | None
    secondary: TableLook | None

    @property
    def sides(self) -> list[Side]:
        """Those at hand, with their roles."""
        both = (("primary", self.primary), ("secondary", self.secondary))
        return [(role, table) for role, table in both if table]


@dataclass(frozen=True)
class Linking:
    """The identifiers, their encodings in the same order, and what their owners should know about them."""

    pairs: tuple[Pair, ...]
    fields: tuple[Field, ...]
    notes: tuple[str, ...]

    def columns_of(self, role: str) -> dict[str, str]:
        """The own columns of primary or secondary by agreed names."""
        return {pair.agreed: getattr(pair, role) for pair in self.pairs}


def named_pairs(tables: Tables, ours: Sequence[str], theirs: Sequence[str]) -> list[Pair]:
    """The identifiers the user named, in both tables where both are at hand."""
    if len(ours) != len(theirs):
        raise SettingError(f"--on-secondary names {len(theirs)} columns for {len(ours)}; name as many, in this order")
    for one, other in zip(ours, theirs, strict=True):
        _refuse_absent(tables, one, other)
    first, second = tables.primary, tables.secondary
    both = zip(ours, theirs, strict=True)
    return [Pair(one, one if first else None, other if second else None) for one, other in both]


def _refuse_absent(tables: Tables, ours: str, theirs: str) -> None:
    if tables.primary:
        look_of(tables.primary, ours)
    there = tables.secondary
    if tables.primary and there and ours == theirs and theirs not in there.columns:
        raise InputError(
            f"{there.name}: there is no column {theirs!r} among its {len(there.columns)}; name the columns that mean "
            "the same with --on-secondary"
        )
    if there:
        look_of(there, theirs)


def guessed_pairs(tables: Tables) -> list[Pair]:
    """The identifiers that both tables seem to have."""
    return common_identifiers(tables.primary, tables.secondary)


def linking(tables: Tables, pairs: Sequence[Pair], k: int) -> Linking:
    """The identifiers with encodings that fit their values; columns that cannot link are refused."""
    if not pairs:
        _refuse_to_guess(tables)
    straight, notes = straightened(pairs, tables.sides)
    looks = [[look_of(table, getattr(pair, role)) for role, table in tables.sides] for pair in straight]
    for pair, of_pair in zip(straight, looks, strict=True):
        notes += _checked(tables, pair, of_pair)
    for role, table in tables.sides:
        notes += doubtful(table, [getattr(pair, role) for pair in straight])
    notes += vague(tables.sides, straight)
    limits = [_limit(pair, of_pair) for pair, of_pair in zip(straight, looks, strict=True)]
    fields = encodings_for([pair.agreed for pair in straight], looks, limits, k)
    return Linking(tuple(straight), tuple(fields), tuple(notes))


def partners(tables: Tables, asked: int | None) -> int:
    """K, as asked for or the number that did well in our experiments, where there are so many candidates."""
    most = tables.secondary.rows if tables.secondary else None
    if asked is not None and most is not None and asked > most:
        raise SettingError(f"--k {asked}, but the secondary has {most:,} records; choose k between 1 and {most:,}")
    return asked or min(PARTNERS, most or PARTNERS)


def _refuse_to_guess(tables: Tables) -> NoReturn:
    for _, table in tables.sides:
        _refuse_empty(table)
        for doubt in doubtful(table, ()):
            raise InputError(doubt)
    names = " and ".join(table.name for _, table in tables.sides)
    raise InputError(
        f"no column of {names} looks like a common identifier (a place, a name, a date of birth); name columns "
        "that both sides have with --on, and with --on-secondary where the secondary names them otherwise"
    )


def _refuse_empty(table: TableLook) -> None:
    """Name the column that would have linked, had it any value."""
    for look in table.columns.values():
        if not look.distinct and set(words_of(look.name)) & (LATITUDE | LONGITUDE | NAMES):
            raise _no_value(table, look)


def _no_value(table: TableLook, look: ColumnLook) -> InputError:
    return InputError(
        f"{table.name}: column '{look.name}' is missing in all {len(look):,} rows; link by another column"
    )


def _checked(tables: Tables, pair: Pair, looks: Sequence[ColumnLook]) -> list[str]:
    """What the owners should know about one identifier; one that cannot link is refused."""
    notes = []
    for (_, table), look in zip(tables.sides, looks, strict=True):
        where = f"{table.name}: column '{look.name}'"
        if not look.distinct:
            raise _no_value(table, look)
        if look.gaps:
            notes.append(f"{where} {gap_words(look)}; fill it in or drop those rows, for linking refuses them")
    kinds = {str(look.kind) for look in looks}
    if len(kinds) > 1 or OTHER in kinds:
        raise InputError(_of_two_kinds(tables, pair, looks))
    for (_, table), look in zip(tables.sides, looks, strict=True):
        notes += _as_text(table, look)
    if len(looks) == 2 and Kind.CATEGORY not in kinds and lie_apart(*looks):
        notes.append(f"'{pair.agreed}': the values of the two tables lie wholly apart; are both in the same unit?")
    return notes


def _as_text(table: TableLook, look: ColumnLook) -> Iterator[str]:
    """That dates are compared as text; numbers that would be are refused."""
    wanted = meant(look)
    if wanted == Kind.NUMBER:
        raise InputError(f"{table.name}: column '{look.name}', {odd_cell(look, wanted)}")
    if wanted == Kind.DATE:
        yield f"{table.name}: column '{look.name}' is compared as text, for {odd_cell(look, wanted)}"


def _of_two_kinds(tables: Tables, pair: Pair, looks: Sequence[ColumnLook]) -> str:
    """That an identifier is of two kinds, with the first cell of text that is not like the other table's."""
    sides = list(zip(tables.sides, looks, strict=True))
    rule = "link by columns of one kind: numbers, text or dates"
    for ((_, table), look), ((_, other), partner) in zip(sides, reversed(sides), strict=True):
        if look.kind == Kind.CATEGORY and partner.kind in (Kind.NUMBER, Kind.DATE):
            found = odd_cell(look, Kind(partner.kind))
            return (
                f"{table.name}: column '{look.name}', {found}, for {other.name} has {_WORDS[partner.kind]}; or {rule}"
            )
    held = " and ".join(f"{_WORDS[look.kind]} in {table.name}" for (_, table), look in sides)
    return f"'{pair.agreed}' is {held}; {rule}"


_WORDS = {Kind.NUMBER: "numbers", Kind.CATEGORY: "text", Kind.DATE: "dates", OTHER: "of a type that cannot link"}


def _limit(pair: Pair, looks: Sequence[ColumnLook]) -> float | None:
    """Degrees have an end, if they are degrees."""
    limit = NORTH if says_latitude(pair.agreed) else EAST if says_longitude(pair.agreed) else None
    if limit is None or looks[0].kind != Kind.NUMBER:
        return None
    return limit if all(bool((look.numbers.abs() <= limit).all()) for look in looks) else None
