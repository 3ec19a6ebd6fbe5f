"""Places, numbers and dates as positions in a secret coordinate system, at any resolution in 12 or 4 bytes.

A filter needs more bits for a finer resolution; a position is one integer per axis whatever the resolution. The
coordinator compares positions by straight-line distance, so it sees an unlabelled map: which records are near each
other and how far apart, but not where on Earth, on which axis or in which direction. Numeric filters reveal the same
order and distances (:class:`fedsim.linkage.encoding.NumericFilter`). If the map itself must not leak, blur places
before they are encoded.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.encoding.filters import IdentifierColumn
from fedsim.privacy.geodesy import EARTH_RADIUS, on_unit_sphere
from fedsim.privacy.keyed_prng import shake_uniforms
from fedsim.types import POSITION_DTYPE, Bits, Floats
from fedsim.validation import convert_scalars, validate_number

POSITION_BYTES = POSITION_DTYPE.itemsize
MAX_POSITION = 2**30  # before the secret shift, which is at most as large, so the sum fits four bytes
MIN_METRES = EARTH_RADIUS / MAX_POSITION


def pack_positions(positions: Floats) -> Bits:
    """Return rounded positions, (records, axes), as four bytes per axis."""
    whole = np.ascontiguousarray(np.rint(positions), dtype=POSITION_DTYPE)
    return whole.view(np.uint8).reshape(len(positions), POSITION_BYTES * positions.shape[1])


@dataclass(frozen=True)
class PlacePosition:
    """Latitude and longitude as a point on the globe after a secret rotation.

    The straight-line distance between points orders places exactly as the distance on the ground does, everywhere on
    Earth. The schema field names the latitude column as ``column`` and the longitude column as ``longitude``.

    Parameters
    ----------
    metres
        Resolution: the unit of the distances.

    Examples
    --------
    >>> here, there = (IdentifierColumn([degrees]) for degrees in (1.3, 103.8))
    >>> PlacePosition().encode_place(here, there, bytes(32)).shape
    (1, 12)
    """

    KIND: ClassVar[str] = "place"
    CELLS: ClassVar[str] = "number"
    bits: ClassVar[int] = 3 * 8 * POSITION_BYTES

    metres: float = 1.0

    def __post_init__(self) -> None:
        convert_scalars(self)
        validate_number(self.metres, "metres", least=MIN_METRES)

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits:
        """Raise an error: a place needs both latitude and longitude."""
        message = f"field {column.name!r} is a place; set longitude to the name of its longitude column"
        raise SettingError(message, code="missing-longitude", column=column.name)

    def encode_place(self, latitude: IdentifierColumn, longitude: IdentifierColumn, subkey: bytes) -> Bits:
        """Return three packed coordinates per record."""
        on_globe = _on_globe(latitude, longitude)
        return pack_positions(on_globe @ _secret_rotation(subkey) * (EARTH_RADIUS / self.metres))

    def points(self, latitude: IdentifierColumn, longitude: IdentifierColumn) -> Floats:
        """Return the points before rotation, unrounded, in units from the centre of the Earth, (n, 3)."""
        return _on_globe(latitude, longitude) * (EARTH_RADIUS / self.metres)


def _on_globe(latitude: IdentifierColumn, longitude: IdentifierColumn) -> Floats:
    degrees = []
    for column, limit in ((latitude, 90), (longitude, 180)):
        values = column.numbers()
        rule = f"is outside -{limit} to {limit} degrees; correct it, or swap latitude and longitude"
        column.refuse(np.abs(values) > limit, rule, "outside-range")
        degrees.append(values)
    return on_unit_sphere(np.radians(np.column_stack(degrees)))


def _secret_rotation(subkey: bytes) -> Floats:
    """Return a uniformly random rotation of space, from a random unit quaternion (Shoemake 1992)."""
    share, one, other = shake_uniforms(subkey, 3)
    a, b = np.sqrt(1 - share), np.sqrt(share)
    x, y = a * np.sin(2 * np.pi * one), a * np.cos(2 * np.pi * one)
    z, w = b * np.sin(2 * np.pi * other), b * np.cos(2 * np.pi * other)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


@dataclass(frozen=True)
class NumberPosition:
    """A number as a position on an axis with a secret origin and direction.

    Parameters
    ----------
    unit
        Resolution; numbers this far apart have distance 1. Units of several fields weigh them against each other.

    Examples
    --------
    >>> NumberPosition(unit=0.5).encode(IdentifierColumn([36.5, 37.0]), bytes(32)).shape
    (2, 4)
    """

    KIND: ClassVar[str] = "number"
    CELLS: ClassVar[str] = "number"
    bits: ClassVar[int] = 8 * POSITION_BYTES

    unit: float

    def __post_init__(self) -> None:
        convert_scalars(self)
        validate_number(self.unit, "unit", above=0)

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits:
        """Return one packed coordinate per number."""
        return _shifted(self.points(column), column, self.unit, subkey)

    def points(self, column: IdentifierColumn) -> Floats:
        """Return the numbers in units, not rounded, (n, 1)."""
        return column.numbers()[:, None] / self.unit


def _shifted(points: Floats, column: IdentifierColumn, unit: float, subkey: bytes) -> Bits:
    """Return packed positions on an axis with a secret origin and direction."""
    rule = f"is more than {MAX_POSITION:,} units of {unit:g} from zero; agree on a larger unit"
    column.refuse(np.abs(points[:, 0]) > MAX_POSITION, rule, "outside-range")
    shift, direction = shake_uniforms(subkey, 2)
    origin = np.rint((2 * shift - 1) * (MAX_POSITION - 1))
    return pack_positions(origin + (1 if direction < 0.5 else -1) * np.rint(points))


@dataclass(frozen=True)
class DatePosition:
    """A date as a position on an axis with a secret origin and direction.

    Parameters
    ----------
    days
        Resolution; dates this far apart have distance 1.

    Examples
    --------
    >>> DatePosition().bits
    32
    """

    KIND: ClassVar[str] = "day"
    CELLS: ClassVar[str] = "date"
    bits: ClassVar[int] = 8 * POSITION_BYTES

    days: float = 1.0

    def __post_init__(self) -> None:
        NumberPosition(self.days)

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits:
        """Return one packed coordinate per date."""
        return _shifted(self.points(column), column, self.days, subkey)

    def points(self, column: IdentifierColumn) -> Floats:
        """Return the dates in units since 1970, not rounded, (n, 1)."""
        return column.days()[:, None] / self.days
