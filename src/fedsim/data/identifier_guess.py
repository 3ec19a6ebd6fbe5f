"""Which columns could link two tables: places by name and range, names by their words, dates of birth.

A guess is told and may be corrected; it looks at values, and shows none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from fedsim.data.column_words import LATITUDE, LONGITUDE, NAMES, part_of_name, says_birth, says_name, words_of
from fedsim.data.kinds import Kind
from fedsim.data.looks import ColumnLook, TableLook

NORTH, EAST = 90.0, 180.0
FEWEST, SHARE, SHORTEST = 10, 0.2, 3.0  # a name: so many, so different, so long
ALIKE, FURTHER = 0.3, 0.5  # share of the words of one column that the other has, too; of a pair beside others
SAMPLE = 5_000
MOST = 0.5

Columns = dict[str, ColumnLook]
Fits = Callable[[ColumnLook], bool]
Two = tuple[ColumnLook, ColumnLook]


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
    """Fitting columns of equal names, and of the others those that are alike, each with one."""
    here, there = ([look for look in (columns or {}).values() if fits(look)] for columns in (ours, theirs))
    if ours is None or theirs is None:
        told = [look for look in here + there if _told(look)] or (here + there)[:1]
        yield from (Pair(look.name, look.name if ours else None, look.name if theirs else None) for look in told)
        return
    both = list(product(here, there))
    equal = [(one, other) for one, other in both if words_of(one.name) == words_of(other.name)]
    yield from (_pair(one.name, one.name, other.name) for one, other in _one_to_one(equal, both))


def _one_to_one(equal: Iterable[Two], both: Sequence[Two]) -> list[Two]:
    """The equal ones, or else the two most alike; beside them names that are plainly alike. In the primary's order."""
    found = list(equal)
    likeness = {two: _likeness(*two) for two in both}
    named = {two: all(says_name(look.name) for look in two) for two in both}
    for two in sorted(both, key=lambda two: (not named[two], -likeness[two])):
        free = not set(two) & {look for pair in found for look in pair}
        if free and (named[two] and likeness[two] >= FURTHER if found else likeness[two] >= ALIKE):
            found.append(two)
    return [two for two in both if two in found]


def _told(look: ColumnLook) -> bool:
    return bool(NAMES & set(words_of(look.name))) or says_name(look.name) or says_birth(look.name)


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
    return look.kind == Kind.DATE and says_birth(look.name)


def _likeness(one: ColumnLook, other: ColumnLook) -> float:
    """Share of the words in the smaller set that the larger has, too; a word of the name in common counts as much.

    First names are never family names. Of dates only those of birth come here, and they are all alike.
    """
    parts = part_of_name(one.name), part_of_name(other.name)
    if all(parts) and parts[0] != parts[1]:
        return 0.0
    said = ALIKE * bool(set(words_of(one.name)) & set(words_of(other.name)))
    if one.kind != Kind.CATEGORY:
        return ALIKE + said
    ours, theirs = (set(look.filled.head(SAMPLE).str.to_lowercase().str.split(" ").explode()) for look in (one, other))
    shared = len(ours & theirs) / max(1, min(len(ours), len(theirs)))
    return shared + (FURTHER if all(parts) else said)
