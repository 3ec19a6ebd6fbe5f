"""A generated city for the demo, examples and tests.

Flats and rentals share no key, only locations; how expensive a location is shows in both.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fedsim.types import Floats

CITY_CENTRE = np.array([1.34, 103.83])
KILOMETRES_PER_DEGREE = 111.2
DISTRICTS = 14


@dataclass(frozen=True, eq=False)
class City:
    """``flats`` (lat, lon, area, storey, age, price) of the primary, ``rentals`` (lat, lon, rooms, rating, rent)."""

    flats: pl.DataFrame
    rentals: pl.DataFrame


@dataclass(frozen=True, eq=False)
class _Districts:
    """District centres (kilometres from the city centre), how far each extends, and its price level."""

    centre: Floats
    width: Floats
    level: Floats

    def draw_locations(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw locations, 90 % of them in a district and 10 % anywhere."""
        home = rng.integers(0, DISTRICTS, count)
        inside = self.centre[home] + self.width[home, None] * rng.normal(size=(count, 2))
        anywhere = rng.uniform([-12.0, -20.0], [12.0, 20.0], size=(count, 2))
        return np.where(rng.random((count, 1)) < 0.1, anywhere, inside)

    def value(self, locations: Floats) -> Floats:
        """Return the hidden price level, which falls off smoothly around each district."""
        squared = ((locations[:, None, :] - self.centre[None, :, :]) ** 2).sum(axis=2)
        weight = np.exp(-squared / (2.0 * (2.0 * self.width) ** 2))
        return np.asarray(weight @ self.level, dtype=np.float64)


def city(rng: np.random.Generator, *, flats: int = 4_000, rentals: int = 3_000) -> City:
    """Generate a city; several flats share a building and so an exact location, as in real registers.

    Parameters
    ----------
    rng
        Source of all randomness.
    flats, rentals
        Number of records of the primary and of the secondary.

    Examples
    --------
    >>> city(np.random.default_rng(7), flats=5, rentals=3).flats.columns
    ['lat', 'lon', 'area', 'storey', 'age', 'price']
    """
    centre = rng.normal(0.0, [5.0, 9.0], size=(DISTRICTS, 2))
    width = 0.5 + 0.12 * np.linalg.norm(centre, axis=1)  # districts grow wider away from the centre
    districts = _Districts(centre, width, rng.normal(0.0, 1.0, DISTRICTS))

    buildings = districts.draw_locations(rng, max(1, flats // 6))
    homes = buildings[rng.integers(0, len(buildings), flats)]
    area = rng.gamma(9.0, 10.0, flats) + 20.0
    storey, age = rng.integers(1, 26, flats), rng.integers(0, 50, flats)
    value = 4_500.0 + 900.0 * districts.value(homes) + 35.0 * storey - 22.0 * age
    price = area * value * np.exp(rng.normal(0.0, 0.06, flats))
    owned = {"area": area.round(1), "storey": storey, "age": age, "price": price.round(-2)}

    offers = districts.draw_locations(rng, rentals)
    rooms, value = rng.integers(1, 6, rentals), districts.value(offers)
    rating = np.clip(3.9 + 0.3 * value + rng.normal(0.0, 0.4, rentals), 1.0, 5.0)
    rent = (600.0 + 420.0 * rooms) * np.exp(0.18 * value + rng.normal(0.0, 0.08, rentals))
    let = {"rooms": rooms, "rating": rating.round(2), "rent": rent.round(0)}
    return City(pl.DataFrame(kilometres_to_degrees(homes) | owned), pl.DataFrame(kilometres_to_degrees(offers) | let))


def kilometres_to_degrees(places: Floats) -> dict[str, Floats]:
    """Convert kilometres to degrees; near the equator a degree of latitude is as long as one of longitude."""
    degrees = CITY_CENTRE + places / KILOMETRES_PER_DEGREE
    return {"lat": degrees[:, 0].round(6), "lon": degrees[:, 1].round(6)}
