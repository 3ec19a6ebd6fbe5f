"""Column names: found, unique, or the nearest one that exists."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.errors import InputError, nearest_word


def choose(source: object, header: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """Places of the wanted columns in the header, each present exactly once; ``source`` is named in errors.

    >>> choose("flats.csv", ["id", "lat", "lon"], ["lon", "lat"])
    [2, 1]
    """
    wanted = list(header) if columns is None else list(columns)
    for name in wanted:
        if name not in header:
            raise InputError(f"{source}: {absent(name, header)}")
        if header.count(name) > 1:
            times = header.count(name)
            raise InputError(f"{source}: the column {name!r} stands {times} times in the header; rename all but one")
    return [list(header).index(name) for name in wanted]


def absent(name: str, header: Sequence[str]) -> str:
    """What to say about a column that is not there.

    Only the nearest name is shown, not the whole header: in a file without one it is the first record.

    >>> absent("latt", ["id", "lat", "lon"])
    "there is no column 'latt' among its 3; did you mean 'lat'?"
    """
    same = {_plain(column): column for column in header}
    near = nearest_word(_plain(name), same)
    advice = (
        f"did you mean {same[near]!r}?" if near in same else "check the name and that the first line holds the names"
    )
    return f"there is no column {name!r} among its {len(header)}; {advice}"


def _plain(name: str) -> str:
    return name.strip().casefold()
