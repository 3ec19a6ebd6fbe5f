"""Propose how two tables can be linked and what can be learnt from them.

Everything is a guess from the available tables, which the owner sees and can change. Proposed parameters do not reveal
single records: ranges have a margin and end at round numbers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl

from fedsim.cells import FEATURE_TYPES, CellType, read_cells
from fedsim.data import column_names, profile
from fedsim.data.column_names import is_latitude_column, is_longitude_column, name_words
from fedsim.data.profile import OTHER_KIND, ColumnProfile, IdentifierPair, TableProfile
from fedsim.errors import InputError, SettingError
from fedsim.linkage.direct import DateTokens, NumberTokens, PlaceTokens, TextTokens, TokenField, TokenSchema
from fedsim.linkage.direct.groups import ShareLevel
from fedsim.linkage.encoding import (
    DateFilter,
    DatePosition,
    FieldEncoding,
    NumberPosition,
    NumericFilter,
    PlacePosition,
    Schema,
    SchemaField,
    StringFilter,
)
from fedsim.linkage.encoding.column_encodings import MAX_POSITION, MIN_METRES
from fedsim.linkage.encoding.quality import LinkageQuality, measure_linkage
from fedsim.privacy.geodesy import great_circle_metres, mean_place
from fedsim.registry import SHARES
from fedsim.types import DEFAULT_K, Floats

DEFAULT_SIGMA = 0.2  # of the noise on similarities, whose standard deviation is 1: this rule fits every linkage
DEFAULT_SHARE = "rows"  # serves every linkage
TEXT_K = 10  # partners per record if text links: the match is among the first ten or nowhere, and each costs traffic
TableSide = tuple[str, TableProfile]  # "primary" or "secondary", and its table
CoordinatePair = tuple[IdentifierPair, IdentifierPair]  # latitude and longitude
IdentifierProfiles = Sequence[ColumnProfile]  # one identifier in the available tables
_KIND_NAMES = {
    CellType.NUMBER: "numbers",
    CellType.CATEGORY: "text",
    CellType.DATE: "dates",
    OTHER_KIND: "a type that cannot be linked",
}


@dataclass(frozen=True)
class TableProfiles:
    """The available tables of the two parties."""

    primary: TableProfile | None
    secondary: TableProfile | None

    @property
    def sides(self) -> list[TableSide]:
        """The available tables with their roles."""
        both = (("primary", self.primary), ("secondary", self.secondary))
        return [(role, table) for role, table in both if table]


@dataclass(frozen=True)
class EncodingProposal:
    """How a coordinator compares identifiers: the schema that encodes them, its metric, and its measured quality."""

    schema: Schema
    metric: str
    quality: LinkageQuality | None = None  # None unless both tables are available


@dataclass(frozen=True)
class LinkageProposal:
    """Identifiers, K, and warnings for the owners; how they link directly, or by a coordinator."""

    pairs: tuple[IdentifierPair, ...]
    k: int
    notes: tuple[str, ...]
    tokens: TokenSchema | None = None
    encoding: EncodingProposal | None = None

    def columns_of(self, role: str) -> dict[str, str]:
        """Return the columns of primary or secondary by agreed name."""
        return {pair.agreed: getattr(pair, role) for pair in self.pairs}


def propose_k(tables: TableProfiles, requested: int | None, default: int = DEFAULT_K) -> int:
    """Return the requested K or the default, limited to the number of candidates."""
    most = tables.secondary.rows if tables.secondary else None
    if requested is not None and most is not None and requested > most:
        message = f"k={requested}, but the secondary has {most:,} records; choose k between 1 and {most:,}"
        raise SettingError(message, code="k-too-large", limit=most)
    return requested or min(default, most or default)


def pairs_from_names(tables: TableProfiles, ours: Sequence[str], theirs: Sequence[str]) -> list[IdentifierPair]:
    """Return the identifiers that the user named, after checking that the available tables have them."""
    if len(ours) != len(theirs):
        message = f"--on-secondary has {len(theirs)} columns, but --on has {len(ours)}; name as many, in the same order"
        raise SettingError(message, code="column-count")
    primary, secondary = tables.primary, tables.secondary
    for one, other in zip(ours, theirs, strict=True):
        if primary:
            column_profile(primary, one)
        if primary and secondary and one == other and other not in secondary.columns:
            message = f"{secondary.name} has no column '{other}'; name the corresponding columns with --on-secondary"
            raise InputError(message, code="missing-column", column=other)
        if secondary:
            column_profile(secondary, other)
    both = zip(ours, theirs, strict=True)
    return [IdentifierPair(one, one if primary else None, other if secondary else None) for one, other in both]


def propose_linkage(
    tables: TableProfiles, pairs: Sequence[IdentifierPair], requested_k: int | None, share: str = DEFAULT_SHARE
) -> LinkageProposal:
    """Propose tokens for identifiers, at least one, or encodings for the coordinator of the level ``share``.

    Columns that cannot be linked, or not at this level, are an error. By default there are fewer partners for text, of
    which only the nearest are near.
    """
    if not pairs:
        raise _no_identifiers_error(tables)
    corrected, notes = _fix_swapped_coordinates(pairs, tables.sides)
    profiles: list[IdentifierProfiles] = [
        [column_profile(table, getattr(pair, role)) for role, table in tables.sides] for pair in corrected
    ]
    has_text = any(columns[0].kind == CellType.CATEGORY for columns in profiles)
    if has_text:
        profiles = [_years_as_dates(columns) for columns in profiles]
    for pair, of_pair in zip(corrected, profiles, strict=True):
        notes += _check_pair(tables, pair, of_pair, gaps_allowed=has_text and len(corrected) > 1)
    for role, table in tables.sides:
        notes += map(str, _doubtful_columns(table, [getattr(pair, role) for pair in corrected]))
    notes += _ambiguity_notes(tables.sides, corrected)
    k = propose_k(tables, requested_k, TEXT_K if has_text else DEFAULT_K)
    if SHARES.detail(share, "direct"):
        level: ShareLevel = SHARES[share]
        tokens = TokenSchema(tuple(_propose_tokens(corrected, profiles, level)))
        level.check(tokens)
        return LinkageProposal(tuple(corrected), k, tuple(notes), tokens=tokens)
    encoding = _propose_encoding(tables, corrected, profiles, k)
    if encoding.quality:
        notes += [f"linkage, {row.name}: {row.value}; {row.fix}" for row in encoding.quality.rows() if row.fix]
    return LinkageProposal(tuple(corrected), k, tuple(notes), encoding=encoding)


def _propose_encoding(
    tables: TableProfiles, pairs: Sequence[IdentifierPair], profiles: Sequence[IdentifierProfiles], k: int
) -> EncodingProposal:
    has_text = any(columns[0].kind == CellType.CATEGORY for columns in profiles)
    if has_text:
        schema, metric = Schema(list(_propose_filters(pairs, profiles))), "dice"
    else:
        schema, metric = Schema(list(_propose_positions(pairs, profiles))), "position"
    if len(tables.sides) < 2:
        return EncodingProposal(schema, metric)
    frames, quality = [_complete_records(pairs, role, table) for role, table in tables.sides], None
    if min(frame.n_unique() for frame in frames) > 1:  # the first of equal records says nothing about an encoding
        quality = measure_linkage(schema, metric, *frames, k=k, rng=np.random.default_rng(0))
    return EncodingProposal(schema, metric, quality)


def _years_as_dates(columns: IdentifierProfiles) -> IdentifierProfiles:
    """Return columns of years as dates, so that they compare with the dates of another table."""
    years = [column.kind == CellType.NUMBER and profile.holds_years(column) for column in columns]
    dates = [column.kind == CellType.DATE for column in columns]
    named = all(column_names.is_year_column(column.name) for column in columns)
    if not any(years) or not all(map(max, years, dates)) or not (named or any(dates)):
        return columns
    return [replace(column, kind=CellType.DATE, cells=_read_days(column)) for column in columns]


def _read_days(column: ColumnProfile) -> pl.Series:
    return read_cells(column.cells, CellType.DATE).values.dt.date()


def _complete_records(pairs: Sequence[IdentifierPair], role: str, table: TableProfile) -> pl.DataFrame:
    """Return the identifiers of a table under their agreed names, without records that lack one."""
    cells = [table.columns[getattr(pair, role)].cells.alias(pair.agreed) for pair in pairs]
    return pl.DataFrame(cells).drop_nulls()


# Swapped latitude and longitude


def _fix_swapped_coordinates(
    pairs: Sequence[IdentifierPair], sides: Sequence[TableSide]
) -> tuple[list[IdentifierPair], list[str]]:
    """Return the identifiers with swapped columns corrected, and notes for the owners."""
    lat = next((pair for pair in pairs if is_latitude_column(pair.agreed)), None)
    lon = next((pair for pair in pairs if is_longitude_column(pair.agreed)), None)
    if not (lat and lon):
        return list(pairs), []
    place: CoordinatePair = (lat, lon)
    for side in sides:
        if any(column.kind != CellType.NUMBER or not column.distinct for column in _coordinates(place, side)):
            return list(pairs), []
    notes = []
    for side in sides:
        lats, lons = _coordinates(place, side)
        if not profile.are_coordinates(lats, lons) and profile.are_coordinates(lons, lats):
            reason = "because a latitude is at most 90 degrees"
            notes.append(f"{side[1].name}: columns '{lats.name}' and '{lons.name}' were swapped, {reason}; check them")
            place = _swap(place, side)
    if len(sides) == 2 and profile.are_coordinates_swapped(*(_coordinates(place, side) for side in sides)):
        # The values do not show which of the two tables is wrong.
        (_, first), (_, second) = sides
        columns = " and ".join(f"'{column.name}'" for column in _coordinates(place, sides[1]))
        notes.append(
            f"{first.name} or {second.name} has latitude and longitude swapped: columns {columns} of {second.name} "
            "were swapped, because only then are both in the same area; correct the table that is wrong"
        )
        place = _swap(place, sides[1])
    corrected = dict(zip((lat, lon), place, strict=True))
    return [corrected.get(pair, pair) for pair in pairs], notes


def _coordinates(place: CoordinatePair, side: TableSide) -> tuple[ColumnProfile, ColumnProfile]:
    (lat, lon), (role, table) = place, side
    return table.columns[getattr(lat, role)], table.columns[getattr(lon, role)]


def _swap(place: CoordinatePair, side: TableSide) -> CoordinatePair:
    (lat, lon), role = place, side[0]
    return replace(lat, **{role: getattr(lon, role)}), replace(lon, **{role: getattr(lat, role)})


# Columns that link badly: a few cells of another kind than the rest, or values that many records share

MIN_DISTINCT_SHARE = 0.5  # of the records; with fewer, names and dates hardly distinguish persons
OTHER_DATE = r"^[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}$"


def _check_pair(
    tables: TableProfiles, pair: IdentifierPair, profiles: IdentifierProfiles, *, gaps_allowed: bool
) -> list[str]:
    """Return warnings about an identifier; one that cannot be linked is an error."""
    notes = []
    gap_advice = "fill in the values or drop those rows, because they cannot be linked"
    if gaps_allowed:
        gap_advice = "those records are compared by their other identifiers"
    for (_, table), column in zip(tables.sides, profiles, strict=True):
        if not column.distinct:
            raise _useless_column_error(table, column)
        if column.gaps:
            notes.append(f"{table.name}: column '{column.name}' {describe_gaps(column)}; {gap_advice}")
    kinds = {str(column.kind) for column in profiles}
    if len(kinds) > 1 or OTHER_KIND in kinds:
        raise _kind_mismatch_error(tables, pair, profiles)
    for (_, table), column in zip(tables.sides, profiles, strict=True):
        intended, where = _intended_kind(column), f"{table.name}: column '{column.name}'"
        if intended == CellType.NUMBER:
            row, fault = _describe_odd_cell(column, intended)
            raise InputError(f"{where}, {fault}", code="not-a-number", table=table.name, column=column.name, row=row)
        if intended == CellType.DATE:
            notes.append(f"{where} is compared as text, because {_describe_odd_cell(column, intended)[1]}")
        notes += _check_values(pair, table, column)
    if len(profiles) == 2 and CellType.CATEGORY not in kinds and profile.have_disjoint_ranges(*profiles):
        notes.append(f"'{pair.agreed}': the values of the two tables do not overlap; check that the units are equal")
    return notes


def _check_values(pair: IdentifierPair, table: TableProfile, column: ColumnProfile) -> Iterator[str]:
    """Warn about a single value and coordinates that are not degrees; a few outside their range are an error."""
    where, limit = f"{table.name}: column '{column.name}'", _degree_limit(pair, [column])
    if column.distinct == 1:
        yield f"{where} has only one value, so it does not distinguish records; use another identifier"
    if limit is not None:
        outside = (column.cells.abs() > limit).fill_null(value=False).arg_true()
        if len(outside):
            row = int(outside[0]) + 1
            message = f"{where}, row {row:,} is outside -{limit:g} to {limit:g} degrees; correct it or drop the row"
            raise InputError(message, code="outside-range", table=table.name, column=column.name, row=row)
    elif _is_coordinate(pair, column):
        yield f"{where} is not in degrees, so it is compared as a number, not as part of a place"


def _kind_mismatch_error(tables: TableProfiles, pair: IdentifierPair, profiles: IdentifierProfiles) -> InputError:
    """Return the error for an identifier of two kinds, with the first text cell that does not fit the other table."""
    sides = list(zip(tables.sides, profiles, strict=True))
    rule = "use columns of one kind: numbers, text or dates"
    for ((_, table), column), ((_, other), partner) in zip(sides, reversed(sides), strict=True):
        if column.kind == CellType.CATEGORY and partner.kind in (CellType.NUMBER, CellType.DATE):
            row, odd = _describe_odd_cell(column, CellType(partner.kind))
            where, found = f"{table.name}: column '{column.name}'", f"{other.name} has {_KIND_NAMES[partner.kind]}"
            message = f"{where}, {odd}: {found}; or {rule}"
            return InputError(message, code="different-kinds", table=table.name, column=column.name, row=row)
    kinds = " and ".join(f"{_KIND_NAMES[column.kind]} in {table.name}" for (_, table), column in sides)
    return InputError(f"'{pair.agreed}' has {kinds}; {rule}", code="different-kinds", column=pair.agreed)


def _describe_odd_cell(column: ColumnProfile, kind: CellType) -> tuple[int, str]:
    """Return the first row of a text column that does not fit a kind, and how to fix it."""
    rules = {
        CellType.NUMBER: "is not a number; correct it",
        CellType.DATE: "is not a date like 1984-07-31; write year-month-day",
    }
    odd = (column.cells.is_not_null() & ~_cells_of_kind(column.cells, kind)).arg_true()
    return (odd[0] + 1, f"row {odd[0] + 1:,} {rules[kind]}") if len(odd) else (0, "")


def _doubtful_columns(table: TableProfile, linked: Sequence[str]) -> Iterator[InputError]:
    """Yield an error for each column that cannot be an identifier because of a few cells or its date format."""
    for column in table.columns.values():
        kind = _intended_kind(column)
        if kind and column.name not in linked:
            row, odd = _describe_odd_cell(column, kind)
            message = f"{table.name}: column '{column.name}' cannot be an identifier, because {odd}"
            yield InputError(message, code="no-identifiers", table=table.name, column=column.name, row=row)


def _intended_kind(column: ColumnProfile) -> CellType | None:
    """Return the kind that a text column should have by its name and nearly all of its cells; None if text is right."""
    if column.kind != CellType.CATEGORY or not column.distinct:
        return None
    if is_latitude_column(column.name) or is_longitude_column(column.name):
        kind, fitting = CellType.NUMBER, _cells_of_kind(column.filled, CellType.NUMBER)
    elif column_names.is_birth_date_column(column.name):
        dates = _cells_of_kind(column.filled, CellType.DATE)
        kind, fitting = CellType.DATE, dates | column.filled.str.contains(OTHER_DATE)
    else:
        return None
    return kind if float(fitting.mean() or 0.0) >= profile.MIN_FITTING_SHARE else None  # type: ignore[arg-type]


def _cells_of_kind(cells: pl.Series, kind: CellType) -> pl.Series:
    return read_cells(cells, kind).values.is_not_null()


def _ambiguity_notes(sides: Sequence[TableSide], pairs: Sequence[IdentifierPair]) -> Iterator[str]:
    """Warn about names and dates of birth that distinguish few records in both tables.

    If one table has every person once, many records of the other may mean the same person.
    """
    if not all(column_names.identifies_person(pair.agreed) for pair in pairs):
        return
    counts = []
    for role, table in sides:
        identifiers = pl.DataFrame([table.columns[getattr(pair, role)].cells for pair in pairs])
        counts.append((identifiers.n_unique(), table))
    if all(distinct < MIN_DISTINCT_SHARE * table.rows for distinct, table in counts):
        few = " and ".join(f"{distinct:,} of {table.rows:,} records of {table.name}" for distinct, table in counts)
        names = ", ".join(f"'{pair.agreed}'" for pair in pairs)
        yield f"only {few} differ in {names}; others are linked at random: add columns with --on and --on-secondary"


def _no_identifiers_error(tables: TableProfiles) -> InputError:
    hints = column_names.LATITUDE_WORDS | column_names.LONGITUDE_WORDS | column_names.NAME_WORDS
    for _, table in tables.sides:
        for column in table.columns.values():
            if column.distinct < 2 and set(name_words(column.name)) & hints:
                return _useless_column_error(table, column)
        for error in _doubtful_columns(table, ()):
            return error
    what = f"no column of {' and '.join(table.name for _, table in tables.sides)} looks like a common identifier"
    fix = "name the identifiers with --on, and with --on-secondary if the secondary uses other names"
    return InputError(f"{what} (a place, a name, a date of birth); {fix}", code="no-identifiers")


def _useless_column_error(table: TableProfile, column: ColumnProfile) -> InputError:
    fault = "has only one value" if column.distinct else f"is missing in all {len(column):,} rows"
    message = f"{table.name}: column '{column.name}' {fault}; use another identifier"
    code = "constant-column" if column.distinct else "empty-column"
    return InputError(message, code=code, table=table.name, column=column.name)


# Encodings. Without text, positions: exact at any density, with all places in metres. Beside text, filters of numbers
# and dates, whose thresholds depend on their range, because the text decides who is near.

RESOLUTION = 20_000  # units in the spread of a place, a number or a date: about a metre in a city
# Against the defaults, which averages need: a quarter of the tokens, fewer rows opened, recall@20 .91 for .92.
CELLS_OF_ROWS = {"narrowest": 1, "cap": 128, "reach": 1}
MIN_CELL_METRES, CELLS_TO_PARTNERS = (
    100.0,
    10,
)  # finest cells; their number to the last of K partners, if places were even
BINS = 50  # narrowest bins of tokens in a typical difference of numbers
MARGIN, MARGIN_ALONE = 0.1, 0.5  # of the span; larger if the other table is not available
THRESHOLD_SHARE = 1 / 50  # of the span; with smaller thresholds, filters have too few ones
MIN_SHRINKAGE = 0.01  # of a degree of longitude towards the poles
YEAR_THRESHOLD, YEAR_ONES = 730.0, 40  # days, and ones in the filter of a year
EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (date(1, 1, 1) - EPOCH).days, (date(9999, 12, 31) - EPOCH).days


def _propose_positions(
    pairs: Sequence[IdentifierPair], profiles: Sequence[IdentifierProfiles]
) -> Iterator[SchemaField]:
    """Yield a field per place and per other number or date; units make a typical difference of each count the same."""
    columns_of, places = dict(zip(pairs, profiles, strict=True)), dict(_find_places(pairs, profiles))
    for pair, columns in columns_of.items():
        if pair in places:
            metres = max(round_down(_spread(columns, columns_of[places[pair]]) / RESOLUTION), MIN_METRES)
            yield SchemaField(pair.agreed, PlacePosition(metres), longitude=places[pair].agreed)
        elif pair not in places.values():
            numbers = _numbers(columns)
            spread = float(np.median(np.abs(numbers - np.median(numbers)))) or float(np.ptp(numbers)) or 1.0
            unit = round_down(max(spread / RESOLUTION, np.abs(numbers).max() / MAX_POSITION))
            dated = columns[0].kind == CellType.DATE
            yield SchemaField(pair.agreed, DatePosition(unit) if dated else NumberPosition(unit))


def _propose_tokens(
    pairs: Sequence[IdentifierPair], profiles: Sequence[IdentifierProfiles], level: ShareLevel
) -> Iterator[TokenField]:
    """Yield a field of tokens per text, place, and other number or date."""
    cells = CELLS_OF_ROWS if level.LISTS_ROWS else {}
    columns_of = dict(zip(pairs, profiles, strict=True))
    places = dict(_find_places(pairs, profiles))
    for pair, columns in columns_of.items():
        if columns[0].kind == CellType.CATEGORY:
            yield TokenField((pair.agreed,), TextTokens())
        elif pair in places:
            near = _spread(columns, columns_of[places[pair]]) * math.sqrt(DEFAULT_K / max(map(len, columns)))
            metres = max(MIN_CELL_METRES, round_down(near / CELLS_TO_PARTNERS))
            yield TokenField((pair.agreed, places[pair].agreed), PlaceTokens(metres, **cells))
        elif columns[0].kind == CellType.DATE:
            yield TokenField((pair.agreed,), DateTokens())
        elif pair not in places.values():
            numbers = _numbers(columns)
            spread = float(np.median(np.abs(numbers - np.median(numbers)))) or float(np.ptp(numbers)) or 1.0
            yield TokenField((pair.agreed,), NumberTokens(width=round_down(spread / BINS)))


def _spread(latitude: IdentifierProfiles, longitude: IdentifierProfiles) -> float:
    """Return the median distance of places from their middle in metres, at least 1."""
    latitudes, longitudes = _numbers(latitude), _numbers(longitude)
    degrees = np.column_stack([latitudes[: len(longitudes)], longitudes[: len(latitudes)]])
    return max(1.0, float(np.median(great_circle_metres(degrees, np.broadcast_to(mean_place(degrees), degrees.shape)))))


def _numbers(columns: IdentifierProfiles) -> Floats:
    return np.concatenate([column.numbers.to_numpy() for column in columns])


def _find_places(pairs: Sequence[IdentifierPair], profiles: Sequence[IdentifierProfiles]) -> Iterator[CoordinatePair]:
    """Yield latitude and longitude of every place: columns of degrees whose names agree in all other words."""
    axes: tuple[dict[frozenset[str], IdentifierPair], ...] = ({}, {})
    for pair, columns in zip(pairs, profiles, strict=True):
        if _degree_limit(pair, columns) is not None:
            words = frozenset(name_words(pair.agreed)) - column_names.LATITUDE_WORDS - column_names.LONGITUDE_WORDS
            axes[is_longitude_column(pair.agreed)][words] = pair
    latitudes, longitudes = axes
    if len(latitudes) == len(longitudes) == 1:
        yield next(iter(latitudes.values())), next(iter(longitudes.values()))
        return
    yield from ((latitudes[words], longitudes[words]) for words in latitudes if words in longitudes)


def _propose_filters(pairs: Sequence[IdentifierPair], profiles: Sequence[IdentifierProfiles]) -> Iterator[SchemaField]:
    columns_of = dict(zip(pairs, profiles, strict=True))
    filters: dict[IdentifierPair, Any] = {}
    for pair, columns in columns_of.items():
        if columns[0].kind == CellType.CATEGORY:
            filters[pair] = StringFilter()
        else:
            filters[pair] = _numeric_filter(columns, _degree_limit(pair, columns))
    for lat, lon in _find_places(pairs, profiles):  # as many metres along both axes
        shrinkage = max(math.cos(math.radians(float(np.median(_numbers(columns_of[lat]))))), MIN_SHRINKAGE)
        threshold = max(filters[lat].threshold, filters[lon].threshold * shrinkage)
        filters[lat] = replace(filters[lat], threshold=float(f"{threshold:.3g}"))
        filters[lon] = replace(filters[lon], threshold=float(f"{threshold / shrinkage:.3g}"))
    yield from (SchemaField(pair.agreed, encoding) for pair, encoding in filters.items())


def _numeric_filter(columns: IdentifierProfiles, limit: float | None) -> FieldEncoding:
    """Return an encoding whose range is from a round number below all values to one above, to reveal no value."""
    numbers = _numbers(columns)
    low, high = float(numbers.min()), float(numbers.max())
    span = (high - low) or max(1.0, abs(high))
    margin = span * (MARGIN if len(columns) > 1 else MARGIN_ALONE)
    step = round_up(span / 20)
    low = float(f"{math.floor((low - margin) / step) * step:.9g}")
    high = float(f"{math.ceil((high + margin) / step) * step:.9g}")
    threshold = round_up(THRESHOLD_SHARE * (high - low))
    if columns[0].kind == CellType.NUMBER:
        if limit is not None:
            low, high = max(low, -limit), min(high, limit)
        return NumericFilter(low, high, threshold)
    first, last = (EPOCH + timedelta(days=min(max(day, FIRST_DAY), LAST_DAY)) for day in (low, high))
    first, last = date(first.year, 1, 1), date(last.year, 12, 31)
    if all(column.filled.dt.month().n_unique() > 1 for column in columns):
        return DateFilter(first, last, threshold)
    # Years of one thing differ by one in two tables. As few ones as a precise date sets, and a quarter of a title's:
    # with more, another title of the same year comes before the same title with a slip.
    threshold = max(threshold, YEAR_THRESHOLD)
    bits = YEAR_ONES * ((last - first).days + 2 * threshold) / (2 * threshold)
    return DateFilter(first, last, threshold, bits=8 * math.ceil(bits / 8))


def round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20...

    >>> round_up(0.013), round_up(730.0)
    (0.02, 1000.0)
    """
    power = 10.0 ** math.floor(math.log10(value))
    step = next(step for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))
    return float(f"{step * power:.6g}")


def round_down(value: float) -> float:
    """Return the one of 1, 2, 5, 10, 20... before or at a value.

    >>> round_down(0.013), round_down(730.0)
    (0.01, 500.0)
    """
    return float(f"{1 / round_up(1 / value):.6g}")


def _is_coordinate(pair: IdentifierPair, column: ColumnProfile) -> bool:
    return column.kind == CellType.NUMBER and (is_latitude_column(pair.agreed) or is_longitude_column(pair.agreed))


def _degree_limit(pair: IdentifierPair, columns: IdentifierProfiles) -> float | None:
    """Return the largest valid latitude or longitude if the identifier is one and nearly all values are degrees."""
    if not _is_coordinate(pair, columns[0]):
        return None
    limit = profile.MAX_LATITUDE if is_latitude_column(pair.agreed) else profile.MAX_LONGITUDE
    return (
        limit if min(profile.share_within(column, limit) for column in columns) >= profile.MIN_FITTING_SHARE else None
    )


# Label, task, split and features

# Words in the names of labels, the most likely first, and in the names of row numbers.
LABEL_WORDS = (
    *("label", "target", "price", "outcome", "class", "sales"),
    *("rent", "income", "default", "churn", "value", "y"),
)
ROW_NUMBER_WORDS = column_names.KEY_WORDS | {"index", "row", "column", "unnamed"}
MAX_KEY_SPAN, MIN_KEY_ROWS = 1.05, 50  # row numbers are dense: their range is hardly larger than their count
MIN_ACCOUNT_ROWS = 20  # in shorter tables, unique integers need not be account numbers
MAX_INTEGER_CLASSES, MAX_TEXT_CLASSES, MAX_ONE_HOT = 10, 100, 16
MAX_ALONE = 0.4  # share of training rows with a category of their own; training refuses 0.5
MIN_DUPLICATE_SHARE, MIN_GROUPS = 0.2, 30
MIN_SKEW, MIN_SKEW_ROWS = 2.0, 50  # an exponential distribution has skewness 2


@dataclass(frozen=True)
class Guess:
    """A proposed value and the reason for it."""

    word: str
    reason: str


@dataclass(frozen=True)
class FeatureProposal:
    """Feature columns with their kinds, and columns left out with the reason.

    ``linking`` are identifiers that are features, too; ``codes`` are the numbers that are categories.
    """

    columns: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]
    kinds: dict[str, str]
    codes: frozenset[str]
    linking: tuple[str, ...] = ()

    @property
    def declared(self) -> dict[str, str]:
        """The kinds that a party file must state, because the cells do not show them."""
        return {name: kind for name, kind in self.kinds.items() if name in self.codes or kind == CellType.DATE}

    def by_kind(self) -> list[tuple[str, list[str]]]:
        """Return the columns of every kind that occurs: numbers, categories, dates."""
        names = {kind: [name for name, own in self.kinds.items() if own == kind] for kind in FEATURE_TYPES}
        return [(kind, of_kind) for kind, of_kind in names.items() if of_kind]


def column_profile(table: TableProfile, name: str) -> ColumnProfile:
    """Return the profile of a column, or raise an error that suggests the nearest name."""
    if name not in table.columns:
        message = f"{table.name}: {column_names.missing_column_message(name, list(table.columns))}"
        raise InputError(message, code="missing-column", column=name)
    return table.columns[name]


def possible_labels(table: TableProfile, taken: Sequence[str]) -> list[str]:
    """Return the columns that may be the label: those with the name of one, if there are any, else all."""
    possible = [column.name for column in _possible_labels(table, taken)]
    return [name for name in possible if {*LABEL_WORDS} & {*name_words(name)}] or possible


def _possible_labels(table: TableProfile, taken: Sequence[str]) -> list[ColumnProfile]:
    return [
        column
        for column in table.columns.values()
        if column.name not in taken
        and not column.code
        and (
            column.kind == CellType.NUMBER or (column.kind == CellType.CATEGORY and column.distinct <= MAX_TEXT_CLASSES)
        )
        and not (_uninformative_reason(column) or _is_personal(column))
    ]


def guess_label(table: TableProfile, taken: Sequence[str]) -> Guess | None:
    """Return the column that is probably the label: by its name, else the last one that is possible."""
    possible = _possible_labels(table, taken)
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
        values = "only one value" if column.distinct else "no values"
        raise InputError(f"{where} has {values}; choose another label", code="constant-label", column=name)
    if row := _first_odd_row(column, CellType.NUMBER):
        message = f"{where}, row {row:,} is not a number, but nearly all others are; correct it or leave it empty"
        raise InputError(message, code="not-a-number", table=table.name, column=name, row=row)
    return [f"{where} {describe_gaps(column)}; those records are predicted after training"] if column.gaps else []


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


def guess_label_scale(column: ColumnProfile) -> Guess | None:
    """Propose the logarithm of a label that is always positive and strongly skewed, such as a price or a duration."""
    numbers = column.numbers.to_numpy() if column.kind == CellType.NUMBER else np.zeros(0)
    if len(numbers) < MIN_SKEW_ROWS or numbers.min() <= 0:
        return None
    skew, of_log = (float(pl.Series(values).skew() or 0.0) for values in (numbers, np.log(numbers)))
    if skew < MIN_SKEW or abs(of_log) > skew / 2:
        return None
    return Guess("log", f"all labels are positive, and strongly skewed (skewness {skew:.1f}); or linear")


def guess_split(table: TableProfile, identifiers: Sequence[str]) -> Guess:
    """Propose a group split if many records share their identifiers: a random split would test on training places."""
    frame = pl.DataFrame([table.columns[name].cells for name in identifiers])
    share = float(frame.is_duplicated().mean() or 0.0)  # type: ignore[arg-type]
    groups = frame.n_unique()
    if share < MIN_DUPLICATE_SHARE:
        return Guess("random", "few records share identifiers; or group, which keeps those together")
    if groups < MIN_GROUPS:
        return Guess("random", f"{groups:,} different identifiers are too few for a group split")
    return Guess("group", f"{100 * share:.0f} % of the records share identifiers with others; or random")


LABEL_TWIN_REASON = "has the name of the label, which it may give away"


def propose_features(
    table: TableProfile, taken: Sequence[str], also: Sequence[str] = (), label: str | None = None
) -> FeatureProposal:
    """Propose the feature columns, without those that carry no information or identify persons.

    ``taken`` are columns with another use, of which numbers and dates in ``also`` are features as well. A column with
    the name of another party's ``label`` is left out.
    """
    profiles = [column for column in table.columns.values() if column.name not in taken]
    reasons = {column.name: _uninformative_reason(column) or identifying_reason(column) for column in profiles}
    twins = [name for name in reasons if label and column_names.have_same_name(name, label)]
    reasons |= dict.fromkeys(twins, LABEL_TWIN_REASON)
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
    used = features + linking
    return FeatureProposal(
        tuple(column.name for column in features),
        dropped,
        {column.name: str(CellType.CATEGORY if column.code else column.kind) for column in used},
        frozenset(column.name for column in used if column.code),
        tuple(column.name for column in linking),
    )


def describe_gaps(column: ColumnProfile) -> str:
    """Return how many values are missing, and the first row without one."""
    row = int(column.cells.is_null().arg_true()[0]) + 1
    return f"is missing in {column.gaps:,} of {len(column):,} rows, first in row {row:,}"


def _first_odd_row(column: ColumnProfile, kind: CellType) -> int:
    """Return the row of the first cell that keeps a text column from being of a kind, from 1; 0 if many cells do."""
    if column.kind != CellType.CATEGORY or not column.distinct:
        return 0
    fitting = _cells_of_kind(column.cells, kind)
    if float(fitting.sum()) < profile.MIN_FITTING_SHARE * len(column.filled):
        return 0
    return int((~fitting & column.cells.is_not_null()).arg_true()[0]) + 1


def _uninformative_reason(column: ColumnProfile) -> str:
    """Return why a column is useless as a feature; empty if it is not."""
    n_filled = len(column) - column.gaps
    if column.kind == OTHER_KIND:
        return f"has the type {column.cells.dtype}"
    if column.distinct < 2:
        return "only one value" if column.distinct else "no values"
    if column.distinct > MAX_ONE_HOT and column.alone > MAX_ALONE:
        if column.kind == CellType.CATEGORY:
            odd = ((kind, _first_odd_row(column, kind)) for kind in (CellType.NUMBER, CellType.DATE))
            reasons = (f"{kind}s, but not in row {row:,}: correct it" for kind, row in odd if row)
            return next(reasons, "a different text in most rows")
        if column.code:
            return "a different code in most rows"
    if not column.whole or column.distinct != n_filled:
        return ""
    # Unique integers are row numbers if they are dense or named like a key.
    span = float(np.ptp(column.numbers.to_numpy()))
    dense = column.distinct >= MIN_KEY_ROWS and span < MAX_KEY_SPAN * column.distinct
    is_key = any(word in ROW_NUMBER_WORDS or word.endswith("id") for word in name_words(column.name))
    return "a different number in every row" if dense or is_key else ""


def identifying_reason(column: ColumnProfile) -> str:
    """Return why a column identifies a record; labels may be such integers, because prices often all differ."""
    if form := profile.personal_form(column):
        return f"{form}, by their form"
    if _is_personal(column):
        return "personal data, by its name"
    if column.whole and column.distinct == len(column.filled) >= MIN_ACCOUNT_ROWS:
        return "a different integer in every row, perhaps an account number"
    return ""


def _is_personal(column: ColumnProfile) -> bool:
    is_name = column.kind == CellType.CATEGORY and column_names.is_name_part_column(column.name)
    return is_name or column_names.is_personal_column(column.name)
