"""Latitude and longitude, the right way round in both tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedsim.data.column_words import says_latitude, says_longitude
from fedsim.data.identifier_guess import Pair, look_exchanged, on_earth
from fedsim.data.kinds import Kind
from fedsim.data.looks import ColumnLook, TableLook

Side = tuple[str, TableLook]  # "primary" or "secondary", and its table
Place = tuple[Pair, Pair]  # latitude and longitude


def straightened(pairs: Sequence[Pair], sides: Sequence[Side]) -> tuple[list[Pair], list[str]]:
    """The identifiers with exchanged columns turned round, and what their owners should check."""
    lat = next((pair for pair in pairs if says_latitude(pair.agreed)), None)
    lon = next((pair for pair in pairs if says_longitude(pair.agreed)), None)
    if not (lat and lon) or not all(_numbers((lat, lon), side) for side in sides):
        return list(pairs), []
    place: Place = (lat, lon)
    notes = []
    for side in sides:
        lats, lons = _looks(place, side)
        if not on_earth(lats, lons) and on_earth(lons, lats):
            notes.append(_note(place, side, "no latitude is beyond 90 degrees"))
            place = _turned(place, side)
    if len(sides) == 2 and look_exchanged(*(_looks(place, side) for side in sides)):
        notes.append(_opposite(place, sides))
        place = _turned(place, sides[1])
    straight = dict(zip((lat, lon), place, strict=True))
    return [straight.get(pair, pair) for pair in pairs], notes


def _looks(place: Place, side: Side) -> tuple[ColumnLook, ColumnLook]:
    (lat, lon), (role, table) = place, side
    return table.columns[getattr(lat, role)], table.columns[getattr(lon, role)]


def _numbers(place: Place, side: Side) -> bool:
    return all(look.kind == Kind.NUMBER and look.distinct for look in _looks(place, side))


def _turned(place: Place, side: Side) -> Place:
    lat, lon = place
    role = side[0]
    return replace(lat, **{role: getattr(lon, role)}), replace(lon, **{role: getattr(lat, role)})


def _note(place: Place, side: Side, reason: str) -> str:
    lat, lon = (look.name for look in _looks(place, side))
    return f"{side[1].name}: columns '{lat}' and '{lon}' are taken the other way round, for {reason}; check them"


def _opposite(place: Place, sides: Sequence[Side]) -> str:
    """Nobody can tell from the values which of the two is wrong."""
    (_, ours), (_, theirs) = sides
    lat, lon = (look.name for look in _looks(place, sides[1]))
    return (
        f"{ours.name} or {theirs.name} has latitude and longitude exchanged: columns '{lat}' and '{lon}' of "
        f"{theirs.name} are taken the other way round, for only so do both lie in one place; correct the one that is "
        "wrong"
    )
