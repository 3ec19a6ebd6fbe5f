"""Profile a table's columns, read hints from their names, and guess which columns link two tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import polars as pl

from fedsim.cells import DECIMAL_COMMA, CellType, parse_iso_datetime, read_cells
from fedsim.data.column_names import (
    LATITUDE_WORDS,
    LONGITUDE_WORDS,
    NAME_WORDS,
    is_birth_date_column,
    is_name_column,
    name_words,
    person_name_part,
)
from fedsim.data.table_reader import infer_numbers
from fedsim.errors import InputError

# What a table looks like, column by column: kind, gaps, distinct values, range; for proposals, never for training


# Words that stand for nothing in tables of numbers.
MISSING_WORDS = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "-", "?")
INTEGER_PATTERN = r"^[+-]?[0-9]+$"
OTHER_KIND = "other"  # lists, bytes and whatever else cannot be learnt from


@dataclass(frozen=True, eq=False)
class ColumnProfile:
    """One column. ``cells`` are Float64, Date or String without blanks around; ``alone`` counts values of one row only.

    ``kind`` is a word of :class:`Kind`, or ``other``.
    """

    name: str
    kind: str
    cells: pl.Series
    distinct: int
    alone: int

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        return f"ColumnProfile({self.name}: {self.kind}, {len(self)} rows)"

    @property
    def filled(self) -> pl.Series:
        """The cells that are there."""
        return self.cells.drop_nulls()

    @property
    def gaps(self) -> int:
        """How many cells are missing."""
        return self.cells.null_count()

    @property
    def numbers(self) -> pl.Series:
        """Numbers, and dates as days; without gaps."""
        return self.filled.to_physical().cast(pl.Float64)

    @property
    def whole(self) -> bool:
        """Whether all its numbers are whole."""
        return self.kind == CellType.NUMBER and bool((self.filled == self.filled.round()).all())

    @property
    def length(self) -> float:
        """Letters of a text, on average."""
        mean = self.filled.str.len_chars().mean() if self.kind == CellType.CATEGORY else 0.0
        return float(mean or 0.0)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class TableProfile:
    """A table by its columns; ``name`` is for people, ``gap_words`` are those of :data:`GAP_WORDS` that it uses."""

    name: str
    rows: int
    columns: dict[str, ColumnProfile]
    gap_words: tuple[str, ...]

    def __repr__(self) -> str:
        return f"TableProfile({self.name}: {self.rows} records, {len(self.columns)} columns)"


def profile_table(frame: pl.DataFrame, name: str) -> TableProfile:
    """Look at every column; a table with decimal commas is refused, for its numbers would be taken for words."""
    bare = frame.with_columns(pl.col(pl.String).str.strip_chars())
    _refuse_decimal_commas(bare, name)
    words = _find_missing_words(bare)
    table = infer_numbers(bare, words)
    columns = {column.name: _profile_column(column) for column in table.iter_columns()}
    return TableProfile(name, len(frame), columns, tuple(words))


def _profile_column(column: pl.Series) -> ColumnProfile:
    kind, cells = _detect_kind(column)
    counts = cells.drop_nulls().value_counts()["count"] if kind != OTHER_KIND else pl.Series([], dtype=pl.UInt32)
    return ColumnProfile(column.name, kind, cells, len(counts), int((counts == 1).sum()))


def _detect_kind(column: pl.Series) -> tuple[str, pl.Series]:
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return CellType.NUMBER, column.cast(pl.Float64).fill_nan(None)
    if column.dtype in (pl.Date, pl.Datetime):
        return CellType.DATE, column.dt.date()
    if column.dtype not in (pl.String, pl.Categorical, pl.Enum):
        return OTHER_KIND, column
    text = column.cast(pl.String)
    first = text.drop_nulls().head(1)
    if len(first) and parse_iso_datetime(first[0]):
        days = read_cells(text, CellType.DATE, parse=False).values.dt.date()
        if days.null_count() == text.null_count():
            return CellType.DATE, days
    return CellType.CATEGORY, text


def _find_missing_words(frame: pl.DataFrame) -> list[str]:
    """The words for gaps that stand in columns which are numbers but for them."""
    found: dict[str, None] = {}
    for column in _text_columns(frame):
        used = [word for word in MISSING_WORDS if (column == word).any()]
        if used and infer_numbers(pl.DataFrame([column]), used).dtypes[0] == pl.Float64:
            found |= dict.fromkeys(used)
    return list(found)


def _refuse_decimal_commas(frame: pl.DataFrame, name: str) -> None:
    for column in _text_columns(frame):
        cells = column.replace([*MISSING_WORDS, ""], None)
        commas = cells.str.contains(DECIMAL_COMMA).fill_null(value=False)
        rest = cells.filter(~commas).drop_nulls()
        if commas.any() and rest.str.contains(INTEGER_PATTERN).all():
            row = int(commas.arg_true()[0]) + 1
            raise InputError(
                f"{name}: column '{column.name}', row {row} has a decimal comma; write decimals with a point"
            )


def _text_columns(frame: pl.DataFrame) -> Iterable[pl.Series]:
    return frame.select(pl.col(pl.String)).iter_columns()


# Which columns could link two tables: places by name and range, names by their words, dates of birth
#
# A guess is told and may be corrected; it looks at values, and shows none.


MAX_LATITUDE, MAX_LONGITUDE = 90.0, 180.0
MIN_DISTINCT_NAMES, MIN_DISTINCT_SHARE, MIN_NAME_LENGTH = 10, 0.2, 3.0  # a name: so many, so different, so long
MIN_SIMILARITY, MIN_FURTHER_SIMILARITY = (
    0.3,
    0.5,
)  # share of the words of one column that the other has, too; of a pair beside others
SAMPLE_ROWS = 5_000
MAJORITY = 0.5

ColumnProfiles = dict[str, ColumnProfile]
ColumnPredicate = Callable[[ColumnProfile], bool]
ProfilePair = tuple[ColumnProfile, ColumnProfile]


@dataclass(frozen=True)
class CoordinateColumns:
    """Two columns named latitude and longitude; ``about`` are the other words of their names."""

    lat: str
    lon: str
    about: tuple[str, ...]


@dataclass(frozen=True)
class IdentifierPair:
    """One identifier: its agreed name, and what each table calls it (``None``: that table is not at hand)."""

    agreed: str
    primary: str | None
    secondary: str | None


def guess_identifiers(primary: TableProfile | None, secondary: TableProfile | None) -> list[IdentifierPair]:
    """The columns that probably link: a place, else names and dates of birth; none where nothing looks like it."""
    ours, theirs = (table.columns if table else None for table in (primary, secondary))
    places = _match_coordinates(ours, theirs)
    return places or [*_match_columns(ours, theirs, _could_be_name), *_match_columns(ours, theirs, _could_be_birth)]


def find_coordinate_columns(columns: ColumnProfiles) -> list[CoordinateColumns]:
    """Pairs of columns whose names say latitude and longitude and differ in nothing else; degrees, either way round."""
    named = {
        name: name_words(name) for name, look in columns.items() if look.kind == CellType.NUMBER and look.distinct > 1
    }
    found = []
    for (lat, ours), (lon, theirs) in product(named.items(), repeat=2):
        about = tuple(word for word in ours if word not in LATITUDE_WORDS)
        rest = tuple(word for word in theirs if word not in LONGITUDE_WORDS)
        if about == rest and about != ours and rest != theirs:
            found.append(CoordinateColumns(lat, lon, about))
    both = [(place, columns[place.lat], columns[place.lon]) for place in found]
    return [place for place, lat, lon in both if are_valid_coordinates(lat, lon) or are_valid_coordinates(lon, lat)]


def are_valid_coordinates(lat: ColumnProfile, lon: ColumnProfile) -> bool:
    """Whether all of these can be latitudes and longitudes."""
    return all(bool((look.numbers.abs() <= most).all()) for look, most in ((lat, MAX_LATITUDE), (lon, MAX_LONGITUDE)))


def are_coordinates_swapped(
    ours: tuple[ColumnProfile, ColumnProfile], theirs: tuple[ColumnProfile, ColumnProfile]
) -> bool:
    """Whether two columns of theirs lie in the ranges of ours only the other way round."""
    as_named = min(_share_in_range(here, there) for here, there in zip(ours, theirs, strict=True))
    turned = min(_share_in_range(here, there) for here, there in zip(ours, reversed(theirs), strict=True))
    return as_named < MAJORITY < turned


def have_disjoint_ranges(ours: ColumnProfile, theirs: ColumnProfile) -> bool:
    """Whether the ranges of two columns have nothing in common."""
    return _share_in_range(ours, theirs) == 0.0 and _share_in_range(theirs, ours) == 0.0


def _match_coordinates(ours: ColumnProfiles | None, theirs: ColumnProfiles | None) -> list[IdentifierPair]:
    sides = [[None] if columns is None else find_coordinate_columns(columns) for columns in (ours, theirs)]
    both = sorted(product(*sides), key=lambda pair: bool(pair[0] and pair[1] and pair[0].about != pair[1].about))
    if not both:
        return []
    here, there = (place or CoordinateColumns("", "", ()) for place in both[0])
    return [_identifier_pair("lat", here.lat, there.lat), _identifier_pair("lon", here.lon, there.lon)]


def _share_in_range(here: ColumnProfile, there: ColumnProfile) -> float:
    """Share of the numbers there that lie in the range of those here."""
    known = here.numbers
    share = there.numbers.is_between(known.min(), known.max()).mean()
    return float(share or 0.0)  # type: ignore[arg-type]


def _match_columns(
    ours: ColumnProfiles | None, theirs: ColumnProfiles | None, fits: ColumnPredicate
) -> Iterator[IdentifierPair]:
    """Fitting columns of equal names, and of the others those that are alike, each with one."""
    here, there = ([look for look in (columns or {}).values() if fits(look)] for columns in (ours, theirs))
    if ours is None or theirs is None:
        told = [look for look in here + there if _has_identifier_name(look)] or (here + there)[:1]
        yield from (
            IdentifierPair(look.name, look.name if ours else None, look.name if theirs else None) for look in told
        )
        return
    both = list(product(here, there))
    equal = [(one, other) for one, other in both if name_words(one.name) == name_words(other.name)]
    yield from (_identifier_pair(one.name, one.name, other.name) for one, other in _assign_pairs(equal, both))


def _assign_pairs(equal: Iterable[ProfilePair], both: Sequence[ProfilePair]) -> list[ProfilePair]:
    """The equal ones, or else the two most alike; beside them names that are plainly alike. In the primary's order."""
    found = list(equal)
    likeness = {two: _column_similarity(*two) for two in both}
    named = {two: all(is_name_column(look.name) for look in two) for two in both}
    for two in sorted(both, key=lambda two: (not named[two], -likeness[two])):
        free = not set(two) & {look for pair in found for look in pair}
        if free and (
            named[two] and likeness[two] >= MIN_FURTHER_SIMILARITY if found else likeness[two] >= MIN_SIMILARITY
        ):
            found.append(two)
    return [two for two in both if two in found]


def _has_identifier_name(look: ColumnProfile) -> bool:
    return bool(NAME_WORDS & set(name_words(look.name))) or is_name_column(look.name) or is_birth_date_column(look.name)


def _identifier_pair(agreed: str, primary: str, secondary: str) -> IdentifierPair:
    """Where both tables use one name, that is agreed on; an empty name stands for a table that is not at hand."""
    names = {name for name in (primary, secondary) if name}
    return IdentifierPair(names.pop() if len(names) == 1 else agreed, primary or None, secondary or None)


def _could_be_name(look: ColumnProfile) -> bool:
    if look.kind == CellType.CATEGORY and look.distinct > 1 and is_name_column(look.name):
        return True
    if look.kind != CellType.CATEGORY or look.distinct < max(MIN_DISTINCT_NAMES, MIN_DISTINCT_SHARE * len(look.filled)):
        return False
    letters = look.filled.head(SAMPLE_ROWS).str.contains(r"\pL{2}").mean()
    return look.length >= MIN_NAME_LENGTH and float(letters or 0.0) > MAJORITY  # type: ignore[arg-type]


def _could_be_birth(look: ColumnProfile) -> bool:
    return look.kind == CellType.DATE and is_birth_date_column(look.name)


def _column_similarity(one: ColumnProfile, other: ColumnProfile) -> float:
    """Share of the words in the smaller set that the larger has, too; a word of the name in common counts as much.

    First names are never family names. Of dates only those of birth come here, and they are all alike.
    """
    parts = person_name_part(one.name), person_name_part(other.name)
    if all(parts) and parts[0] != parts[1]:
        return 0.0
    said = MIN_SIMILARITY * bool(set(name_words(one.name)) & set(name_words(other.name)))
    if one.kind != CellType.CATEGORY:
        return MIN_SIMILARITY + said
    ours, theirs = (
        set(look.filled.head(SAMPLE_ROWS).str.to_lowercase().str.split(" ").explode()) for look in (one, other)
    )
    shared = len(ours & theirs) / max(1, min(len(ours), len(theirs)))
    return shared + (MIN_FURTHER_SIMILARITY if all(parts) else said)
