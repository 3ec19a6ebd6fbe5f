"""Profile a table's columns, use hints in their names, and guess which columns link two tables."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import polars as pl

from fedsim.cells import DECIMAL_COMMA, CellType, FaultKind, parse_iso_datetime, read_cells, rewrite_cells
from fedsim.data import column_names
from fedsim.data.column_names import is_birth_date_column, is_name_column, name_words, person_name_part
from fedsim.data.table_reader import infer_numbers
from fedsim.errors import InputError
from fedsim.types import DATE_FORMATS, NUMBER_FORMATS, CellFormat

# Column types, missing and distinct values; for proposals, never for training


MISSING_WORDS = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "-", "?")
INTEGER_PATTERN = r"^[+-]?[0-9]+$"
PADDED_PATTERN = r"^0[0-9]+$"
MIN_LONG_CODE = 1e9  # whole numbers of at least ten digits, all of the same length
OTHER_KIND = "other"  # lists, bytes and other types that cannot be features
TRAINING_SHARE = 0.7  # of a table's rows


@dataclass(frozen=True, eq=False)
class ColumnProfile:
    """The profile of one column; ``cells`` are Float64, Date or stripped String.

    ``kind`` is a value of :class:`CellType`, or ``other``. ``alone`` is the expected share of training rows with a
    value that no other training row has; ``padded`` tells whether whole numbers are written with leading zeros.
    """

    name: str
    kind: str
    cells: pl.Series
    distinct: int
    alone: float
    padded: bool = False

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        return f"ColumnProfile({self.name}: {self.kind}, {len(self)} rows)"

    @property
    def filled(self) -> pl.Series:
        """The cells that are not missing."""
        return self.cells.drop_nulls()

    @property
    def gaps(self) -> int:
        """The number of missing cells."""
        return self.cells.null_count()

    @property
    def numbers(self) -> pl.Series:
        """The numbers, or dates as days, without missing cells."""
        return self.filled.to_physical().cast(pl.Float64)

    @property
    def whole(self) -> bool:
        """Whether all cells are whole numbers."""
        return self.kind == CellType.NUMBER and bool((self.filled == self.filled.round()).all())

    @property
    def code(self) -> bool:
        """Whether the column holds codes; see :func:`holds_codes`."""
        return self.kind == CellType.NUMBER and holds_codes(self.filled, padded=self.padded)

    @property
    def length(self) -> float:
        """The mean text length."""
        mean = self.filled.str.len_chars().mean() if self.kind == CellType.CATEGORY else 0.0
        return float(mean or 0.0)  # type: ignore[arg-type]


def holds_codes(numbers: pl.Series, *, padded: bool = False) -> bool:
    """Return whether whole numbers are codes: named as codes, ``padded`` with zeros, or as long as account numbers.

    >>> holds_codes(pl.Series("zip", [10115.0, 10117.0, 20095.0])), holds_codes(pl.Series("rooms", [1, 2, 3]))
    (True, False)
    """
    filled = numbers.drop_nulls()
    # With two values there is nothing to decide: a category with two values is a number, too.
    if filled.n_unique() < 3 or not bool(((filled >= 0) & (filled == filled.round())).all()):
        return False
    least, most = float(filled.min()), float(filled.max())  # type: ignore[arg-type]
    long = least >= MIN_LONG_CODE and len(f"{least:.0f}") == len(f"{most:.0f}")
    by_data = (padded or long) and not column_names.is_quantity_column(numbers.name)
    return by_data or column_names.is_code_column(numbers.name)


@dataclass(frozen=True, eq=False)
class TableProfile:
    """The column profiles of a table; ``name`` is for messages, ``gap_words`` are the :data:`MISSING_WORDS` found."""

    name: str
    rows: int
    columns: dict[str, ColumnProfile]
    gap_words: tuple[str, ...]

    def __repr__(self) -> str:
        return f"TableProfile({self.name}: {self.rows} records, {len(self.columns)} columns)"


def profile_table(frame: pl.DataFrame, name: str) -> TableProfile:
    """Profile every column; decimal commas and numbers that cannot be meant are errors."""
    bare = frame.with_columns(pl.col(pl.String).str.strip_chars())
    words: dict[str, None] = {}  # in order
    for column in bare.select(pl.col(pl.String)).iter_columns():
        cells = column.replace([*MISSING_WORDS, ""], None)
        commas = cells.str.contains(DECIMAL_COMMA).fill_null(value=False)
        if commas.any() and cells.filter(~commas).drop_nulls().str.contains(INTEGER_PATTERN).all():
            row = int(commas.arg_true()[0]) + 1
            message = f"{name}: column '{column.name}', row {row} has a decimal comma; write decimals with a point"
            raise InputError(message, code="decimal-comma", table=name, column=column.name, row=row)
        # Words for missing cells are recognised only if the rest of the column is numeric.
        used = [word for word in MISSING_WORDS if (column == word).any()]
        if used and infer_numbers(pl.DataFrame([column]), used).dtypes[0] == pl.Float64:
            words |= dict.fromkeys(used)
    columns = {}
    for column in infer_numbers(bare, list(words)).iter_columns():
        kind, cells = _detect_kind(column)
        for fault in read_cells(cells, CellType.NUMBER).faults if kind == CellType.NUMBER else ():
            if fault.kind is not FaultKind.MISSING:
                raise fault.error(name, column.name)
        counts = cells.drop_nulls().value_counts()["count"] if kind != OTHER_KIND else pl.Series([], dtype=pl.UInt32)
        # One of c equal rows is alone in training if the c - 1 others are not in the training set.
        rows = counts.cast(pl.Float64).to_numpy()
        alone = float((rows * (1 - TRAINING_SHARE) ** (rows - 1)).sum() / max(1, rows.sum()))
        written = bare[column.name]
        padded = written.dtype == pl.String and bool(written.str.contains(PADDED_PATTERN).any())
        columns[column.name] = ColumnProfile(column.name, kind, cells, len(counts), alone, padded)
    return TableProfile(name, len(frame), columns, tuple(words))


# How numbers and dates of text columns are written

ISO_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
THREE_DECIMALS = r"[.][0-9]{3}$"
GROUPED = r"^[+-]?[0-9]{1,3}([.][0-9]{3})+$"


@dataclass(frozen=True)
class FormatGuess:
    """The formats in which most cells of a text column can be read, and the shape of one with 9 for every digit."""

    column: str
    formats: tuple[CellFormat, ...]
    shape: str


def guess_formats(frame: pl.DataFrame) -> list[FormatGuess]:
    """Return the text columns that hold numbers or dates in another form than 1234.56 and 2020-12-31.

    >>> guess_formats(pl.DataFrame({"price": ["$512,345", "$7"], "town": ["Bonn", "Ulm"]}))[0].shape
    '$999,999'
    """
    found = []
    for column in frame.select(pl.col(pl.String)).iter_columns():
        cells = column.str.strip_chars().replace([*MISSING_WORDS, ""], None).drop_nulls().unique(maintain_order=True)
        for family, is_read in ((NUMBER_FORMATS, _are_numbers), (DATE_FORMATS, _are_dates)):
            plain = is_read(cells)
            read = {written: rewrite_cells(cells, written) for written in family}
            shares = {written: is_read(read[written]) for written in family}
            most = max(shares.values())
            if most < MIN_FITTING_SHARE or most <= plain:
                continue
            fitting = [written for written in family if shares[written] == most]
            shape = re.sub("[0-9]", "9", cells.filter(read[fitting[0]] != cells)[0])
            if not shape.isascii() or re.search("[A-Z$]", shape):  # an amount of money has no three decimals
                fitting = [each for each in fitting if not read[each].str.contains(THREE_DECIMALS).any()] or fitting
            found.append(FormatGuess(column.name, tuple(fitting), shape))
    return found


def _are_numbers(cells: pl.Series) -> float:
    return float(cells.cast(pl.Float64, strict=False).is_not_null().mean() or 0.0)  # type: ignore[arg-type]


def _are_dates(cells: pl.Series) -> float:
    return float(cells.str.contains(ISO_DATE).mean() or 0.0)  # type: ignore[arg-type]


def grouped_columns(frame: pl.DataFrame) -> list[str]:
    """Return the text columns of numbers whose points could separate thousands: in 1.234 but not in 12.5.

    Coordinates are not among them, which are often rounded to three decimals.
    """
    found = []
    for column in frame.select(pl.col(pl.String)).iter_columns():
        points = column.str.strip_chars().drop_nulls()
        points = points.filter(points.str.contains(".", literal=True))
        place = column_names.is_latitude_column(column.name) or column_names.is_longitude_column(column.name)
        if len(points) and not place and points.str.contains(GROUPED).all():
            found.append(column.name)
    return found


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


def guess_metrics(identifiers: pl.DataFrame) -> dict[tuple[str, ...], str]:
    """Return the metric for each place and each other identifier column; other numeric columns form one point.

    Latitude and longitude are compared by distance on the ground, never as degrees of equal length.

    >>> guess_metrics(pl.DataFrame({"lon": [103.8], "lat": [1.3], "name": ["Ann"], "born": ["1984-07-31"]}))
    {('lat', 'lon'): 'great-circle', ('name',): 'qgram-dice', ('born',): 'days'}
    """
    kinds = {column.name: _detect_kind(column)[0] for column in identifiers.iter_columns()}
    # One coordinate may look like text because of a mistake in one row; reading the column then reports that row.
    pairs = column_names.coordinate_pairs(list(kinds))
    places = [(lat, lon) for lat, lon, _ in pairs if CellType.NUMBER in (kinds[lat], kinds[lon])]
    rest = {name: kind for name, kind in kinds.items() if not any(name in place for place in places)}
    numbers = tuple(name for name, kind in rest.items() if kind == CellType.NUMBER)
    metrics: dict[tuple[str, ...], str] = dict.fromkeys(places, "great-circle")
    metrics |= {numbers: "euclidean"} if numbers else {}
    texts_and_dates = {name: kind for name, kind in rest.items() if kind != CellType.NUMBER}
    return metrics | {
        (name,): "days" if kind == CellType.DATE else "qgram-dice" for name, kind in texts_and_dates.items()
    }


# Formats of text that identify people whatever the column is called; phone numbers must have a prefix.
PERSONAL_FORMS = {
    "e-mail addresses": r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
    "phone numbers": r"^(\+|00|\()[0-9 ()/.-]{7,}$",
    "bank accounts": r"^[A-Z]{2}[0-9]{2}( ?[A-Z0-9]{4}){3,7}( ?[A-Z0-9]{1,3})?$",
    "network addresses": r"^([0-9]{1,3}\.){3}[0-9]{1,3}$",
}


def personal_form(look: ColumnProfile) -> str:
    """Return what most cells of a column look like, if that identifies people, or an empty string.

    >>> frame = pl.DataFrame({"contact": ["ann@example.org", "bob@example.org"], "town": ["Bonn", "Ulm"]})
    >>> [personal_form(column) for column in profile_table(frame, "clients").columns.values()]
    ['e-mail addresses', '']
    """
    if look.kind != CellType.CATEGORY or not look.distinct:
        return ""
    shares = {name: look.filled.str.contains(form).mean() for name, form in PERSONAL_FORMS.items()}
    return next((name for name, share in shares.items() if float(share or 0.0) > MAJORITY), "")  # type: ignore[arg-type]


# Which columns could link two tables: locations by name and range, names by their words, dates of birth
#
# The user sees every guess and can correct it; guessing reads values but never shows them.


MAX_LATITUDE, MAX_LONGITUDE = 90.0, 180.0
MIN_FITTING_SHARE = 0.9  # of the cells; the others are mistakes
MIN_DISTINCT_NAMES, MIN_DISTINCT_SHARE, MIN_NAME_LENGTH = 10, 0.2, 3.0  # of a column of names
# Minimum share of one column's words that occur in the other: for the first pair, and for further pairs.
MIN_SIMILARITY, MIN_FURTHER_SIMILARITY = 0.3, 0.5
SAMPLE_ROWS = 5_000
MAJORITY = 0.5
MIN_EQUAL_NAMES, MAX_EQUAL_NAMES, MIN_YEAR_LIFT = 20, 100_000, 1.5  # pairs of equal names; agreement over chance

ColumnProfiles = dict[str, ColumnProfile]
MAX_GAP_SHARE = 0.2  # a column with more missing cells is not proposed as an identifier
CoordinateColumns = tuple[str, str, tuple[str, ...]]  # latitude, longitude, and the other words of their names


@dataclass(frozen=True)
class IdentifierPair:
    """One identifier: its agreed name and its column in each table (``None`` if that table is not available)."""

    agreed: str
    primary: str | None
    secondary: str | None


def guess_identifiers(primary: TableProfile | None, secondary: TableProfile | None) -> list[IdentifierPair]:
    """Guess the columns that link two tables: a location, or names, dates of birth and years, or nothing."""
    ours, theirs = (table.columns if table else None for table in (primary, secondary))
    sides = [[None] if columns is None else _find_coordinates(columns) for columns in (ours, theirs)]
    pairs = sorted(product(*sides), key=lambda pair: bool(pair[0] and pair[1] and pair[0][2] != pair[1][2]))
    if not pairs:
        names = _match_columns(ours, theirs, _could_be_name)
        births = _match_columns(ours, theirs, _could_be_birth)
        return [*names, *births, *(_match_years(ours, theirs, names[0]) if ours and theirs and names else [])]
    if primary and secondary and len(sides[0]) == len(sides[1]) > 1:
        # Both have several places, such as the start and end of a trip: assume that they are in the same order.
        places = [(here, there) for here, there in zip(*sides, strict=True) if here and there]
        return [_identifier_pair(here[axis], here[axis], there[axis]) for here, there in places for axis in (0, 1)]
    here, there = (place or ("", "", ()) for place in pairs[0])
    return [_identifier_pair("lat", here[0], there[0]), _identifier_pair("lon", here[1], there[1])]


def _find_coordinates(columns: ColumnProfiles) -> list[CoordinateColumns]:
    """Return latitude and longitude columns with otherwise equal names; their values may be swapped."""
    numbers = [name for name, look in columns.items() if look.kind == CellType.NUMBER and look.distinct > 1]
    return [
        (lat, lon, about)
        for lat, lon, about in column_names.coordinate_pairs(numbers)
        if any(are_coordinates(columns[one], columns[two]) for one, two in ((lat, lon), (lon, lat)))
    ]


def are_coordinates(lat: ColumnProfile, lon: ColumnProfile) -> bool:
    """Return whether nearly all values are valid latitudes and longitudes; a few may be mistakes."""
    return all(
        share_within(look, most) >= MIN_FITTING_SHARE for look, most in ((lat, MAX_LATITUDE), (lon, MAX_LONGITUDE))
    )


def share_within(look: ColumnProfile, most: float) -> float:
    """Return the share of a column's numbers whose absolute value is at most ``most``."""
    return float((look.numbers.abs() <= most).mean() or 0.0)  # type: ignore[arg-type]


def are_coordinates_swapped(
    ours: tuple[ColumnProfile, ColumnProfile], theirs: tuple[ColumnProfile, ColumnProfile]
) -> bool:
    """Return whether their two columns match our ranges only when swapped."""
    as_named = min(share_in_range(here, there) for here, there in zip(ours, theirs, strict=True))
    swapped = min(share_in_range(here, there) for here, there in zip(ours, reversed(theirs), strict=True))
    return as_named < MAJORITY < swapped


def have_disjoint_ranges(ours: ColumnProfile, theirs: ColumnProfile) -> bool:
    """Return whether the ranges of two columns do not overlap."""
    return share_in_range(ours, theirs) == 0.0 and share_in_range(theirs, ours) == 0.0


def share_in_range(here: ColumnProfile, there: ColumnProfile) -> float:
    """Return the share of the numbers in ``there`` that are within the range of ``here``."""
    known = here.numbers
    share = there.numbers.is_between(known.min(), known.max()).mean()
    return float(share or 0.0)  # type: ignore[arg-type]


def _match_columns(
    ours: ColumnProfiles | None, theirs: ColumnProfiles | None, fits: Callable[[ColumnProfile], bool]
) -> list[IdentifierPair]:
    """Pair suitable columns with equal names, or else the two most similar, then further similar ones; in our order."""
    here, there = ([look for look in (columns or {}).values() if fits(look)] for columns in (ours, theirs))
    if ours is None or theirs is None:
        names = [look.name for look in here + there]
        known = column_names.NAME_WORDS | column_names.BIRTH_WORDS
        likely = [name for name in names if known & set(name_words(name)) or is_name_column(name)]
        return [IdentifierPair(name, name if ours else None, name if theirs else None) for name in likely or names[:1]]
    pairs = list(product(here, there))
    found = [(one, other) for one, other in pairs if name_words(one.name) == name_words(other.name)]
    similarity = {pair: _column_similarity(*pair) for pair in pairs}
    named = {pair: all(is_name_column(look.name) for look in pair) for pair in pairs}
    for pair in sorted(pairs, key=lambda pair: (not named[pair], -similarity[pair])):
        similar = similarity[pair] >= (MIN_FURTHER_SIMILARITY if found else MIN_SIMILARITY)
        taken = {look for used in found for look in used}
        if similar and (named[pair] or not found) and not taken & set(pair):
            found.append(pair)
    return [_identifier_pair(one.name, one.name, other.name) for one, other in pairs if (one, other) in found]


def _match_years(ours: ColumnProfiles, theirs: ColumnProfiles, name: IdentifierPair) -> list[IdentifierPair]:
    """Return the two year or date columns that agree best where names are equal, if they agree far above chance.

    A year makes a name more specific: of all films with the same title, it picks the one released that year.
    """
    sides = [(ours, name.primary or ""), (theirs, name.secondary or "")]
    keys = [columns[own].cells.str.to_lowercase() for columns, own in sides]
    rows = [pl.DataFrame({"key": key}).with_row_index(f"row{side}") for side, key in enumerate(keys)]
    equal = rows[0].join(rows[1], on="key", nulls_equal=False).head(MAX_EQUAL_NAMES)
    if len(equal) < MIN_EQUAL_NAMES:
        return []
    found = []
    years = [[look for look in columns.values() if _could_be_year(look)] for columns, _ in sides]
    for here, there in product(*years):
        pair = year_cells(here)[equal["row0"]], year_cells(there)[equal["row1"]]
        agree = _share_of_equal_years(*pair)
        chance = _share_of_equal_years(pair[0], pair[1].shuffle(seed=0))
        if agree > MAJORITY and agree > MIN_YEAR_LIFT * chance:
            found.append((agree - chance, here.name, there.name))
    return [_identifier_pair(here, here, there) for _, here, there in sorted(found, reverse=True)[:1]]


def _could_be_year(look: ColumnProfile) -> bool:
    if look.gaps > MAX_GAP_SHARE * len(look) or look.distinct < 2 or is_birth_date_column(look.name):
        return False
    return look.kind == CellType.DATE or (column_names.is_year_column(look.name) and holds_years(look))


def holds_years(look: ColumnProfile) -> bool:
    """Return whether all cells are whole numbers that could be years."""
    return look.whole and bool(look.filled.is_between(1000, 2200).all())


def year_cells(look: ColumnProfile) -> pl.Series:
    """Return the years of a column of dates or years."""
    return look.cells.dt.year().cast(pl.Float64) if look.kind == CellType.DATE else look.cells


def _share_of_equal_years(ours: pl.Series, theirs: pl.Series) -> float:
    return float(((ours - theirs).abs() <= 1).mean() or 0.0)  # type: ignore[arg-type]


def _identifier_pair(agreed: str, primary: str, secondary: str) -> IdentifierPair:
    """Return a pair under the name both tables use, or else ``agreed``; an empty name means that a table is missing."""
    names = {name for name in (primary, secondary) if name}
    return IdentifierPair(names.pop() if len(names) == 1 else agreed, primary or None, secondary or None)


def _could_be_name(look: ColumnProfile) -> bool:
    if look.gaps > MAX_GAP_SHARE * len(look):
        return False
    if look.kind == CellType.CATEGORY and look.distinct > 1 and is_name_column(look.name):
        return True
    if look.kind != CellType.CATEGORY or look.distinct < max(MIN_DISTINCT_NAMES, MIN_DISTINCT_SHARE * len(look.filled)):
        return False
    letters = look.filled.head(SAMPLE_ROWS).str.contains(r"\pL{2}").mean()
    return look.length >= MIN_NAME_LENGTH and float(letters or 0.0) > MAJORITY  # type: ignore[arg-type]


def _could_be_birth(look: ColumnProfile) -> bool:
    return look.kind == CellType.DATE and is_birth_date_column(look.name)


def _column_similarity(one: ColumnProfile, other: ColumnProfile) -> float:
    """Return the share of words in the smaller set that the larger also has, raised if the names share a word.

    First names never match family names. All dates are taken to be dates of birth, and match.
    """
    parts = person_name_part(one.name), person_name_part(other.name)
    if all(parts) and parts[0] != parts[1]:
        return 0.0
    bonus = MIN_SIMILARITY * bool(set(name_words(one.name)) & set(name_words(other.name)))
    if one.kind != CellType.CATEGORY:
        return MIN_SIMILARITY + bonus
    samples = (look.filled.head(SAMPLE_ROWS) for look in (one, other))
    ours, theirs = (set(cells.str.to_lowercase().str.split(" ").explode()) for cells in samples)
    shared = len(ours & theirs) / max(1, min(len(ours), len(theirs)))
    return shared + (MIN_FURTHER_SIMILARITY if all(parts) else bonus)
