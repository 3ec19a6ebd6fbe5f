"""Propose how two tables could be linked: identifiers, encodings that fit their values, K, and notes for the owners."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import NoReturn

import numpy as np
import polars as pl

from fedsim.cells import parse_iso_date
from fedsim.data.column_names import (
    LATITUDE_WORDS,
    LONGITUDE_WORDS,
    NAME_WORDS,
    identifies_person,
    is_birth_date_column,
    is_latitude_column,
    is_longitude_column,
    name_words,
)
from fedsim.data.columns import ColumnKind
from fedsim.data.profile import (
    MAX_LATITUDE,
    MAX_LONGITUDE,
    OTHER_KIND,
    ColumnProfile,
    IdentifierPair,
    TableProfile,
    are_coordinates_swapped,
    are_valid_coordinates,
    guess_identifiers,
    have_disjoint_ranges,
)
from fedsim.errors import InputError, SettingError
from fedsim.linkage import link
from fedsim.linkage.encoding import DateFilter, FieldEncoding, NumericFilter, SchemaField, StringFilter
from fedsim.types import DEFAULT_K, Floats
from fedsim.wizard.learning_proposal import column_profile, describe_gaps

# Latitude and longitude, the right way round in both tables


TableSide = tuple[str, TableProfile]  # "primary" or "secondary", and its table
CoordinatePair = tuple[IdentifierPair, IdentifierPair]  # latitude and longitude


def fix_swapped_coordinates(
    pairs: Sequence[IdentifierPair], sides: Sequence[TableSide]
) -> tuple[list[IdentifierPair], list[str]]:
    """The identifiers with exchanged columns turned round, and what their owners should check."""
    lat = next((pair for pair in pairs if is_latitude_column(pair.agreed)), None)
    lon = next((pair for pair in pairs if is_longitude_column(pair.agreed)), None)
    if not (lat and lon) or not all(_are_numeric((lat, lon), side) for side in sides):
        return list(pairs), []
    place: CoordinatePair = (lat, lon)
    notes = []
    for side in sides:
        lats, lons = _coordinate_profiles(place, side)
        if not are_valid_coordinates(lats, lons) and are_valid_coordinates(lons, lats):
            notes.append(_swap_note(place, side, "no latitude is beyond 90 degrees"))
            place = _swap_coordinates(place, side)
    if len(sides) == 2 and are_coordinates_swapped(*(_coordinate_profiles(place, side) for side in sides)):
        notes.append(_swapped_between_tables_note(place, sides))
        place = _swap_coordinates(place, sides[1])
    straight = dict(zip((lat, lon), place, strict=True))
    return [straight.get(pair, pair) for pair in pairs], notes


def _coordinate_profiles(place: CoordinatePair, side: TableSide) -> tuple[ColumnProfile, ColumnProfile]:
    (lat, lon), (role, table) = place, side
    return table.columns[getattr(lat, role)], table.columns[getattr(lon, role)]


def _are_numeric(place: CoordinatePair, side: TableSide) -> bool:
    return all(look.kind == ColumnKind.NUMBER and look.distinct for look in _coordinate_profiles(place, side))


def _swap_coordinates(place: CoordinatePair, side: TableSide) -> CoordinatePair:
    lat, lon = place
    role = side[0]
    return replace(lat, **{role: getattr(lon, role)}), replace(lon, **{role: getattr(lat, role)})


def _swap_note(place: CoordinatePair, side: TableSide, reason: str) -> str:
    lat, lon = (look.name for look in _coordinate_profiles(place, side))
    return f"{side[1].name}: columns '{lat}' and '{lon}' are taken the other way round, for {reason}; check them"


def _swapped_between_tables_note(place: CoordinatePair, sides: Sequence[TableSide]) -> str:
    """Nobody can tell from the values which of the two is wrong."""
    (_, ours), (_, theirs) = sides
    lat, lon = (look.name for look in _coordinate_profiles(place, sides[1]))
    return (
        f"{ours.name} or {theirs.name} has latitude and longitude exchanged: columns '{lat}' and '{lon}' of "
        f"{theirs.name} are taken the other way round, for only so do both lie in one place; correct the one that is "
        "wrong"
    )


# What keeps columns from linking well: cells of another kind than the rest, and names that many records share


MIN_FITTING_SHARE = 0.9  # of the cells: the others are mistakes
MIN_DISTINCT_SHARE = 0.5  # of the records: with fewer, names and dates tell people badly apart
OTHER_DATE = r"^[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}$"
_CELL_RULES = {
    ColumnKind.NUMBER: "is not a number; correct it",
    ColumnKind.DATE: "is not a date like 1984-07-31; write year-month-day",
}


def describe_odd_cell(look: ColumnProfile, kind: ColumnKind) -> str:
    """The first row of a text column that breaks its kind, and the way out; nothing where none does."""
    odd = (look.cells.is_not_null() & ~_cells_of_kind(look.cells, kind)).arg_true()
    return f"row {odd[0] + 1:,} {_CELL_RULES[kind]}" if len(odd) else ""


def doubtful_columns(table: TableProfile, linked: Sequence[str]) -> Iterator[str]:
    """The columns that would link but for a few cells, or for the way their dates are written."""
    for look in table.columns.values():
        kind = intended_kind(look)
        if kind and look.name not in linked:
            yield f"{table.name}: column '{look.name}' cannot link, for {describe_odd_cell(look, kind)}"


def intended_kind(look: ColumnProfile) -> ColumnKind | None:
    """What a text column should hold, by its name and nearly all of its cells; ``None`` where text is in order."""
    if look.kind != ColumnKind.CATEGORY or not look.distinct:
        return None
    if is_latitude_column(look.name) or is_longitude_column(look.name):
        return (
            ColumnKind.NUMBER if _share(_cells_of_kind(look.filled, ColumnKind.NUMBER)) >= MIN_FITTING_SHARE else None
        )
    if not is_birth_date_column(look.name):
        return None
    dates = _cells_of_kind(look.filled, ColumnKind.DATE) | look.filled.str.contains(OTHER_DATE)
    return ColumnKind.DATE if _share(dates) >= MIN_FITTING_SHARE else None


def ambiguity_notes(sides: Sequence[TableSide], pairs: Sequence[IdentifierPair]) -> Iterator[str]:
    """A word about names and dates of birth that tell few records apart on every side.

    Where one side has every person once, many records of the other may well mean the same one.
    """
    if not all(identifies_person(pair.agreed) for pair in pairs):
        return
    counts = [(_count_distinct(table, [getattr(pair, role) for pair in pairs]), table) for role, table in sides]
    if all(different < MIN_DISTINCT_SHARE * table.rows for different, table in counts):
        told = " and ".join(f"{different:,} of {table.rows:,} records of {table.name}" for different, table in counts)
        named = ", ".join(f"'{pair.agreed}'" for pair in pairs)
        yield f"only {told} differ in {named}: others are linked by chance; add columns with --on and --on-secondary"


def _count_distinct(table: TableProfile, columns: Sequence[str]) -> int:
    return pl.DataFrame([table.columns[name].cells for name in columns]).n_unique()


def _cells_of_kind(cells: pl.Series, kind: ColumnKind) -> pl.Series:
    if kind == ColumnKind.NUMBER:
        return cells.cast(pl.Float64, strict=False).is_not_null()
    return pl.Series([cell is not None and parse_iso_date(cell) is not None for cell in cells], dtype=pl.Boolean)


def _share(held: pl.Series) -> float:
    return float(held.mean() or 0.0)  # type: ignore[arg-type]


# Encodings that fit the values of the identifiers: ranges with a margin, thresholds by how far partners are
#
# A threshold of about twice the distance to the farther partners finds the most of them: on the generated city 84 to 86
# percent of the nearest 20 at 0.02 to 0.05 degrees, 62 at 0.005 (1,024 bits).


SAMPLE_SIZE = 2_000
FAR_QUANTILE = 0.95  # of all partners are nearer
THRESHOLD_FACTOR = 2.0
MARGIN, MARGIN_ALONE = 0.1, 0.5  # of the span; more where the partner's values are not known
MIN_THRESHOLD_SHARE = 1 / 50  # of the span: a threshold below would leave a filter too few ones
MAX_FILL = 0.45  # share of ones above which filters of text look alike
EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (date(1, 1, 1) - EPOCH).days, (date(9999, 12, 31) - EPOCH).days

IdentifierProfiles = Sequence[ColumnProfile]  # one identifier in the tables at hand


def propose_encodings(
    names: Sequence[str], looks: Sequence[IdentifierProfiles], limits: Sequence[float | None], k: int
) -> list[SchemaField]:
    """An encoding for every identifier; ``limits`` are those of its values either way, where there are any."""
    measured = [of_one for of_one in looks if of_one[0].kind != ColumnKind.CATEGORY]
    # Beside a name, which decides who is near, a number or date has a threshold by its range alone.
    scales = iter(_partner_distances(measured, k) if len(measured) == len(looks) else [0.0] * len(measured))
    fields = []
    for name, of_one, limit in zip(names, looks, limits, strict=True):
        encoding = (
            _text_encoding(of_one)
            if of_one[0].kind == ColumnKind.CATEGORY
            else _numeric_encoding(of_one, next(scales), limit)
        )
        fields.append(SchemaField(name, encoding))
    return fields


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20...

    >>> round_up(0.013), round_up(730.0)
    (0.02, 1000.0)
    """
    power = 10.0 ** math.floor(math.log10(value))
    step = next(step for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))
    return float(f"{step * power:.6g}")


def _numeric_encoding(looks: IdentifierProfiles, scale: float, limit: float | None) -> FieldEncoding:
    low, high = _encoded_range(looks)
    threshold = round_up(max(THRESHOLD_FACTOR * scale, MIN_THRESHOLD_SHARE * (high - low)))
    if looks[0].kind == ColumnKind.NUMBER:
        if limit is not None:
            low, high = max(low, -limit), min(high, limit)
        return NumericFilter(low, high, threshold)
    first, last = (EPOCH + timedelta(days=min(max(day, FIRST_DAY), LAST_DAY)) for day in (low, high))
    return DateFilter(date(first.year, 1, 1), date(last.year, 12, 31), threshold)


def _encoded_range(looks: IdentifierProfiles) -> tuple[float, float]:
    """From a round number below all values to one above, so that no record's own value shows."""
    numbers = np.concatenate([look.numbers.to_numpy() for look in looks])
    low, high = float(numbers.min()), float(numbers.max())
    span = (high - low) or max(1.0, abs(high))
    margin = span * (MARGIN if len(looks) > 1 else MARGIN_ALONE)
    step = round_up(span / 20)
    return _round_digits(math.floor((low - margin) / step) * step), _round_digits(
        math.ceil((high + margin) / step) * step
    )


def _round_digits(value: float) -> float:
    return float(f"{value:.9g}")


def _text_encoding(looks: IdentifierProfiles) -> StringFilter:
    """As many bits as keep filters from filling up."""
    plain = StringFilter()
    grams = max(look.length for look in looks) + plain.q - 1
    bits = plain.bits
    while 1 - math.exp(-plain.hashes * grams / bits) > MAX_FILL:
        bits *= 2
    return StringFilter(bits=bits)


def _partner_distances(looks: Sequence[IdentifierProfiles], k: int) -> Iterator[float]:
    """For every number or date how far, in its own unit, most of the K nearest candidates are."""
    if not looks:
        return
    queries, candidates = (_complete_rows([of_one[side] for of_one in looks]) for side in (0, -1))
    spans = np.maximum(np.ptp(np.vstack([queries, candidates]), axis=0), 1e-12)
    queries = queries[:: max(1, len(queries) // SAMPLE_SIZE)]
    if not (len(queries) and len(candidates)):
        yield from (float(span) * MIN_THRESHOLD_SHARE for span in spans)
        return
    found = link(queries / spans, candidates / spans, metric="euclidean", k=min(k, len(candidates)))
    apart = np.abs(queries[:, None, :] - candidates[found.partner])
    yield from (float(far) for far in np.quantile(apart, FAR_QUANTILE, axis=(0, 1)))


def _complete_rows(columns: Sequence[ColumnProfile]) -> Floats:
    """One row per record that has all of them."""
    frame = pl.DataFrame([look.cells.to_physical().cast(pl.Float64).alias(str(i)) for i, look in enumerate(columns)])
    return frame.drop_nulls().to_numpy()


# How two tables could be linked: identifiers, encodings that fit their values, K and noise
#
# Everything is a guess from the tables at hand that the owner sees and may change. Parameters round away what a single
# record says: ranges have a margin and end at round numbers.


DEFAULT_TAU = 0.05


@dataclass(frozen=True)
class TableProfiles:
    """What is at hand of the two parties' tables."""

    primary: TableProfile | None
    secondary: TableProfile | None

    @property
    def sides(self) -> list[TableSide]:
        """Those at hand, with their roles."""
        both = (("primary", self.primary), ("secondary", self.secondary))
        return [(role, table) for role, table in both if table]


@dataclass(frozen=True)
class LinkageProposal:
    """The identifiers, their encodings in the same order, and what their owners should know about them."""

    pairs: tuple[IdentifierPair, ...]
    fields: tuple[SchemaField, ...]
    notes: tuple[str, ...]

    def columns_of(self, role: str) -> dict[str, str]:
        """The own columns of primary or secondary by agreed names."""
        return {pair.agreed: getattr(pair, role) for pair in self.pairs}


def pairs_from_names(tables: TableProfiles, ours: Sequence[str], theirs: Sequence[str]) -> list[IdentifierPair]:
    """The identifiers the user named, in both tables where both are at hand."""
    if len(ours) != len(theirs):
        raise SettingError(f"--on-secondary names {len(theirs)} columns for {len(ours)}; name as many, in this order")
    for one, other in zip(ours, theirs, strict=True):
        _require_columns(tables, one, other)
    first, second = tables.primary, tables.secondary
    both = zip(ours, theirs, strict=True)
    return [IdentifierPair(one, one if first else None, other if second else None) for one, other in both]


def _require_columns(tables: TableProfiles, ours: str, theirs: str) -> None:
    if tables.primary:
        column_profile(tables.primary, ours)
    there = tables.secondary
    if tables.primary and there and ours == theirs and theirs not in there.columns:
        raise InputError(
            f"{there.name}: there is no column {theirs!r} among its {len(there.columns)}; name the columns that mean "
            "the same with --on-secondary"
        )
    if there:
        column_profile(there, theirs)


def guess_pairs(tables: TableProfiles) -> list[IdentifierPair]:
    """The identifiers that both tables seem to have."""
    return guess_identifiers(tables.primary, tables.secondary)


def propose_linkage(tables: TableProfiles, pairs: Sequence[IdentifierPair], k: int) -> LinkageProposal:
    """The identifiers with encodings that fit their values; columns that cannot link are refused."""
    if not pairs:
        _raise_no_identifiers(tables)
    straight, notes = fix_swapped_coordinates(pairs, tables.sides)
    looks = [[column_profile(table, getattr(pair, role)) for role, table in tables.sides] for pair in straight]
    for pair, of_pair in zip(straight, looks, strict=True):
        notes += _check_pair(tables, pair, of_pair)
    for role, table in tables.sides:
        notes += doubtful_columns(table, [getattr(pair, role) for pair in straight])
    notes += ambiguity_notes(tables.sides, straight)
    limits = [_degree_limit(pair, of_pair) for pair, of_pair in zip(straight, looks, strict=True)]
    fields = propose_encodings([pair.agreed for pair in straight], looks, limits, k)
    return LinkageProposal(tuple(straight), tuple(fields), tuple(notes))


def propose_k(tables: TableProfiles, asked: int | None) -> int:
    """K, as asked for or the number that did well in our experiments, where there are so many candidates."""
    most = tables.secondary.rows if tables.secondary else None
    if asked is not None and most is not None and asked > most:
        raise SettingError(f"--k {asked}, but the secondary has {most:,} records; choose k between 1 and {most:,}")
    return asked or min(DEFAULT_K, most or DEFAULT_K)


def _raise_no_identifiers(tables: TableProfiles) -> NoReturn:
    for _, table in tables.sides:
        _raise_if_empty(table)
        for doubt in doubtful_columns(table, ()):
            raise InputError(doubt)
    names = " and ".join(table.name for _, table in tables.sides)
    raise InputError(
        f"no column of {names} looks like a common identifier (a place, a name, a date of birth); name columns "
        "that both sides have with --on, and with --on-secondary where the secondary names them otherwise"
    )


def _raise_if_empty(table: TableProfile) -> None:
    """Name the column that would have linked, had it any value."""
    for look in table.columns.values():
        if not look.distinct and set(name_words(look.name)) & (LATITUDE_WORDS | LONGITUDE_WORDS | NAME_WORDS):
            raise _empty_column_error(table, look)


def _empty_column_error(table: TableProfile, look: ColumnProfile) -> InputError:
    return InputError(
        f"{table.name}: column '{look.name}' is missing in all {len(look):,} rows; link by another column"
    )


def _check_pair(tables: TableProfiles, pair: IdentifierPair, looks: Sequence[ColumnProfile]) -> list[str]:
    """What the owners should know about one identifier; one that cannot link is refused."""
    notes = []
    for (_, table), look in zip(tables.sides, looks, strict=True):
        where = f"{table.name}: column '{look.name}'"
        if not look.distinct:
            raise _empty_column_error(table, look)
        if look.gaps:
            notes.append(f"{where} {describe_gaps(look)}; fill it in or drop those rows, for linking refuses them")
    kinds = {str(look.kind) for look in looks}
    if len(kinds) > 1 or OTHER_KIND in kinds:
        raise InputError(_describe_kind_mismatch(tables, pair, looks))
    for (_, table), look in zip(tables.sides, looks, strict=True):
        notes += _text_notes(table, look)
    if len(looks) == 2 and ColumnKind.CATEGORY not in kinds and have_disjoint_ranges(*looks):
        notes.append(f"'{pair.agreed}': the values of the two tables lie wholly apart; are both in the same unit?")
    return notes


def _text_notes(table: TableProfile, look: ColumnProfile) -> Iterator[str]:
    """That dates are compared as text; numbers that would be are refused."""
    wanted = intended_kind(look)
    if wanted == ColumnKind.NUMBER:
        raise InputError(f"{table.name}: column '{look.name}', {describe_odd_cell(look, wanted)}")
    if wanted == ColumnKind.DATE:
        yield f"{table.name}: column '{look.name}' is compared as text, for {describe_odd_cell(look, wanted)}"


def _describe_kind_mismatch(tables: TableProfiles, pair: IdentifierPair, looks: Sequence[ColumnProfile]) -> str:
    """That an identifier is of two kinds, with the first cell of text that is not like the other table's."""
    sides = list(zip(tables.sides, looks, strict=True))
    rule = "link by columns of one kind: numbers, text or dates"
    for ((_, table), look), ((_, other), partner) in zip(sides, reversed(sides), strict=True):
        if look.kind == ColumnKind.CATEGORY and partner.kind in (ColumnKind.NUMBER, ColumnKind.DATE):
            found = describe_odd_cell(look, ColumnKind(partner.kind))
            return f"{table.name}: column '{look.name}', {found}, for {other.name} has {_KIND_NAMES[partner.kind]}; or {rule}"
    held = " and ".join(f"{_KIND_NAMES[look.kind]} in {table.name}" for (_, table), look in sides)
    return f"'{pair.agreed}' is {held}; {rule}"


_KIND_NAMES = {
    ColumnKind.NUMBER: "numbers",
    ColumnKind.CATEGORY: "text",
    ColumnKind.DATE: "dates",
    OTHER_KIND: "of a type that cannot link",
}


def _degree_limit(pair: IdentifierPair, looks: Sequence[ColumnProfile]) -> float | None:
    """Degrees have an end, if they are degrees."""
    limit = (
        MAX_LATITUDE if is_latitude_column(pair.agreed) else MAX_LONGITUDE if is_longitude_column(pair.agreed) else None
    )
    if limit is None or looks[0].kind != ColumnKind.NUMBER:
        return None
    return limit if all(bool((look.numbers.abs() <= limit).all()) for look in looks) else None
