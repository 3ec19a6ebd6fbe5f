"""Which columns could link two tables: places by name and range, names by their words, dates of birth.

A guess is told and may be corrected; it looks at values, and shows none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from fedsim.data.kinds import Kind
from fedsim.data.looks import ColumnLook, TableLook

LATITUDE, LONGITUDE = {"lat", "latitude"}, {"lon", "lng", "long", "longitude"}
NAMES = {"name", "names", "surname", "title", "company", "firm", "street", "address", "author"}
GIVEN = {"first", "last", "middle", "given", "family", "full"}  # beside a word of NAMES, or alone: a person's name
SALUTATION = {"title"}  # of few values it is Mr and Ms, and tells nobody apart
BIRTH = {"birth", "birthday", "birthdate", "born", "dob", "founded", "founding"}
PERSONAL = re.compile(
    r"(name|names|phone|phones|mail|mails|address|street|birth)$"
    r"|^(e?mail(?!ing)|birth|born$|dob$|phone|address|street)"
)
PARTS = {"first", "last"}  # of a name, or of anything else
NORTH, EAST = 90.0, 180.0
FEWEST, SHARE, SHORTEST = 10, 0.2, 3.0  # a name: so many, so different, so long
ALIKE = 0.3  # share of the words of one column that the other has, too
SAMPLE = 5_000
MOST = 0.5

Columns = dict[str, ColumnLook]
Fits = Callable[[ColumnLook], bool]


@dataclass(frozen=True)
class Place:
    """Two columns named latitude and longitude; ``about`` are the other words of their names."""

    lat: str
    lon: str
    about: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """One identifier: its agreed name, and what each table calls it (``None``: that table is not at hand)."""

    agreed: str
    primary: str | None
    secondary: str | None


def words_of(name: str) -> tuple[str, ...]:
    """The words a column's name is made of.

    >>> words_of("startLat_2"), words_of("Company name")
    (('start', 'lat', '2'), ('company', 'name'))
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return tuple(re.findall(r"[^\W\d_]+|\d+", apart.lower()))


def common_identifiers(primary: TableLook | None, secondary: TableLook | None) -> list[Pair]:
    """The columns that probably link: a place, else names and dates of birth; none where nothing looks like it."""
    ours, theirs = (table.columns if table else None for table in (primary, secondary))
    places = _places(ours, theirs)
    return places or [*_matches(ours, theirs, _could_be_name), *_matches(ours, theirs, _could_be_birth)]


def places_in(columns: Columns) -> list[Place]:
    """Pairs of columns whose names say latitude and longitude and differ in nothing else; degrees, either way round."""
    named = {name: words_of(name) for name, look in columns.items() if look.kind == Kind.NUMBER and look.distinct > 1}
    found = []
    for (lat, ours), (lon, theirs) in product(named.items(), repeat=2):
        about = tuple(word for word in ours if word not in LATITUDE)
        rest = tuple(word for word in theirs if word not in LONGITUDE)
        if about == rest and about != ours and rest != theirs:
            found.append(Place(lat, lon, about))
    both = [(place, columns[place.lat], columns[place.lon]) for place in found]
    return [place for place, lat, lon in both if on_earth(lat, lon) or on_earth(lon, lat)]


def says_latitude(column: str) -> bool:
    """Whether a column's name says latitude."""
    return bool(LATITUDE & set(words_of(column)))


def says_longitude(column: str) -> bool:
    """Whether a column's name says longitude."""
    return bool(LONGITUDE & set(words_of(column)))


def says_name(column: str) -> bool:
    """Whether a column's name says nothing but a name or an address; such a column links, however few its values.

    >>> [says_name(column) for column in ("first_name", "lastName", "street", "company size", "title")]
    [True, True, True, False, False]
    """
    words = [word for word in words_of(column) if not word.isdecimal()]
    known = (NAMES | GIVEN) - SALUTATION
    return bool(words) and all(word in known or word.endswith("name") for word in words)


def says_person(column: str) -> bool:
    """Whether a column's name says name, birth, phone, mail or address.

    >>> [says_person(column) for column in ("lastName", "e-mail", "DateOfBirth", "mailings", "tournaments", "first")]
    [True, True, True, False, False, False]
    """
    return any(PERSONAL.search(word) for word in words_of(column))


def says_part_of_name(column: str) -> bool:
    """Whether a column's name says first or last, which are names of people where it holds text."""
    return bool(PARTS & set(words_of(column)))


def on_earth(lat: ColumnLook, lon: ColumnLook) -> bool:
    """Whether all of these can be latitudes and longitudes."""
    return all(bool((look.numbers.abs() <= most).all()) for look, most in ((lat, NORTH), (lon, EAST)))


def look_exchanged(ours: tuple[ColumnLook, ColumnLook], theirs: tuple[ColumnLook, ColumnLook]) -> bool:
    """Whether two columns of theirs lie in the ranges of ours only the other way round."""
    as_named = min(_inside(here, there) for here, there in zip(ours, theirs, strict=True))
    turned = min(_inside(here, there) for here, there in zip(ours, reversed(theirs), strict=True))
    return as_named < MOST < turned


def lie_apart(ours: ColumnLook, theirs: ColumnLook) -> bool:
    """Whether the ranges of two columns have nothing in common."""
    return _inside(ours, theirs) == 0.0 and _inside(theirs, ours) == 0.0


def _places(ours: Columns | None, theirs: Columns | None) -> list[Pair]:
    sides = [[None] if columns is None else places_in(columns) for columns in (ours, theirs)]
    both = sorted(product(*sides), key=lambda pair: bool(pair[0] and pair[1] and pair[0].about != pair[1].about))
    if not both:
        return []
    here, there = (place or Place("", "", ()) for place in both[0])
    return [_pair("lat", here.lat, there.lat), _pair("lon", here.lon, there.lon)]


def _inside(here: ColumnLook, there: ColumnLook) -> float:
    """Share of the numbers there that lie in the range of those here."""
    known = here.numbers
    share = there.numbers.is_between(known.min(), known.max()).mean()
    return float(share or 0.0)  # type: ignore[arg-type]


def _matches(ours: Columns | None, theirs: Columns | None, fits: Fits) -> Iterator[Pair]:
    """Fitting columns of equal names; where there are none, the two that are most alike."""
    here, there = ([look for look in (columns or {}).values() if fits(look)] for columns in (ours, theirs))
    if ours is None or theirs is None:
        told = [look for look in here + there if (NAMES | BIRTH) & set(words_of(look.name))] or (here + there)[:1]
        yield from (Pair(look.name, look.name if ours else None, look.name if theirs else None) for look in told)
        return
    both = list(product(here, there))
    equal = [(one, other) for one, other in both if words_of(one.name) == words_of(other.name)]
    alike = sorted((pair for pair in both if _likeness(*pair) >= ALIKE), key=lambda pair: -_likeness(*pair))
    for one, other in equal or alike[:1]:
        yield _pair(one.name, one.name, other.name)


def _pair(agreed: str, primary: str, secondary: str) -> Pair:
    """Where both tables use one name, that is agreed on; an empty name stands for a table that is not at hand."""
    names = {name for name in (primary, secondary) if name}
    return Pair(names.pop() if len(names) == 1 else agreed, primary or None, secondary or None)


def _could_be_name(look: ColumnLook) -> bool:
    if look.kind == Kind.CATEGORY and look.distinct > 1 and says_name(look.name):
        return True
    if look.kind != Kind.CATEGORY or look.distinct < max(FEWEST, SHARE * len(look.filled)):
        return False
    letters = look.filled.head(SAMPLE).str.contains(r"\pL{2}").mean()
    return look.length >= SHORTEST and float(letters or 0.0) > MOST  # type: ignore[arg-type]


def _could_be_birth(look: ColumnLook) -> bool:
    return look.kind == Kind.DATE and bool(BIRTH & set(words_of(look.name)))


def _likeness(one: ColumnLook, other: ColumnLook) -> float:
    """Share of the words in the smaller set that the larger has, too; a word of the name in common counts as much."""
    if one.kind != Kind.CATEGORY:
        return ALIKE * bool(set(words_of(one.name)) & set(words_of(other.name)))
    ours, theirs = (set(look.filled.head(SAMPLE).str.to_lowercase().str.split(" ").explode()) for look in (one, other))
    shared = len(ours & theirs) / max(1, min(len(ours), len(theirs)))
    return shared + ALIKE * bool(set(words_of(one.name)) & set(words_of(other.name)))
