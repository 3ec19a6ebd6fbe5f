"""Generate cities for the demo, examples and tests; for one kind, the true contribution of each partner is known."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy.spatial import KDTree

from fedsim.errors import SettingError
from fedsim.types import Floats, Integers

__all__ = ["City", "CitySettings", "GroundTruth", "KnownCity", "city", "generate_city"]

# A simple city: flats and rentals share no key, only locations; the price level of a location shows in both.

CITY_CENTRE = np.array([1.34, 103.83])
KILOMETRES_PER_DEGREE = 111.2
DISTRICTS = 14


@dataclass(frozen=True, eq=False)
class City:
    """The primary's ``flats`` (lat, lon, area, storey, age, price) and ``rentals`` (lat, lon, rooms, rating, rent)."""

    flats: pl.DataFrame
    rentals: pl.DataFrame


@dataclass(frozen=True, eq=False)
class _Districts:
    """The centre of each district (in kilometres from the city centre), its extent and its price level."""

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
    """Generate a city; several flats share a building, and therefore an exact location, as in real registers.

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
    """Convert kilometres to degrees; near the equator, degrees of latitude and longitude have the same length."""
    degrees = CITY_CENTRE + places / KILOMETRES_PER_DEGREE
    return {"lat": degrees[:, 0].round(6), "lon": degrees[:, 1].round(6)}


# The variance of a generated label, part by part
#
# Every part is independent of the others and of the primary's features, so variances add up. The best possible error
# then follows from which parts are known, and a partner's contribution is the reduction of that error.


@dataclass(frozen=True)
class GroundTruth:
    """The exact decomposition of the label's variance.

    ``total`` is the variance that the primary's features leave unexplained, ``explained`` how much of it each part
    explains, and ``own`` names the parts that the primary's own identifiers explain. A partner's entry in ``explained``
    already accounts for the partner's own noise and for missed links.

    >>> truth = GroundTruth(total=100.0, explained={"place": 19.0, "rentals": 32.0}, own=("place",))
    >>> truth.error(), truth.error("place"), truth.error("place", "rentals"), truth.contribution("rentals")
    (10.0, 9.0, 7.0, 2.0)
    """

    total: float
    explained: Mapping[str, float]
    own: tuple[str, ...] = ()

    def error(self, *known: str) -> float:
        """Return the RMSE of the best prediction from the primary's features and the ``known`` parts."""
        for part in known:
            if part not in self.explained:
                message = f"part '{part}' is unknown; the parts are {', '.join(self.explained)}"
                raise SettingError(message, code="unknown-part", value=part)
        return math.sqrt(self.total - sum(self.explained[part] for part in set(known)))

    def contribution(self, *partners: str) -> float:
        """Return by how much these partners lower the best error of a primary that also uses its own identifiers."""
        return self.error(*self.own) - self.error(*self.own, *partners)


# The best estimate of a neighbourhood's signal from a partner's records
#
# Every neighbourhood has a signal, a standard normal number. The partner's records lie around their neighbourhood and
# show its signal with errors; the links reveal distances and features, but not to which neighbourhood a record belongs.
# Bayes' rule gives the best estimate of the signal; nothing is trained, so there is no training error.


SIGNAL_GRID = np.linspace(-4.5, 4.5, 91)
PAIRS_PER_BIN = 400


@dataclass(frozen=True, eq=False)
class PartnerObservations:
    """A partner's records: neighbourhood (``home``), ``place``, observed signal (``seen``), its variance (``blur``)."""

    home: Integers
    place: Floats
    seen: Floats
    blur: float


def best_estimate(centres: Floats, sights: PartnerObservations, k: int) -> Floats:
    """Return each neighbourhood's expected signal, given distance and observation of the K records nearest its centre.

    The probability that a record at some distance belongs to the neighbourhood is estimated over the whole city.
    Records of other neighbourhoods are treated as independent, although some share a neighbourhood.
    """
    distance, near = KDTree(sights.place).query(centres, k=range(1, k + 1))
    belongs = (sights.home[near] == np.arange(len(centres))[:, np.newaxis]).ravel()
    probability = np.empty(distance.size)
    for pairs in np.array_split(np.argsort(distance, axis=None), max(1, distance.size // PAIRS_PER_BIN)):
        probability[pairs] = belongs[pairs].mean()
    probability = probability.reshape(distance.shape)
    weight = np.tile(_log_normal_density(SIGNAL_GRID, 1.0), (len(centres), 1))
    for column in range(k):
        seen, own = sights.seen[near[:, column], np.newaxis], probability[:, column, np.newaxis]
        here = np.exp(_log_normal_density(seen - SIGNAL_GRID, sights.blur))
        elsewhere = np.exp(_log_normal_density(seen, 1.0 + sights.blur))
        weight += np.log(own * here + (1.0 - own) * elsewhere + 1e-300)
    weight = np.exp(weight - weight.max(axis=1, keepdims=True))
    return np.asarray(weight @ SIGNAL_GRID / weight.sum(axis=1), dtype=np.float64)


def explained_variance(signal: Floats, estimate: Floats) -> float:
    """Return the share of the signal's unit variance that the estimate explains."""
    return max(0.0, 1.0 - float(np.mean((signal - estimate) ** 2)))


def _log_normal_density(deviation: Floats, variance: float) -> Floats:
    return np.asarray(-0.5 * deviation**2 / variance - 0.5 * np.log(variance))


# The city of known contributions
#
# There is one flat per neighbourhood. The value of a neighbourhood has a part that follows from its location (a wave
# over the city, easy to learn), a part that only the rentals around it show, and a part that only its school shows. The
# last two are drawn independently for every neighbourhood, so neither other flats nor the location reveal them. Rentals
# and schools are equally dense everywhere and their features do not depend on the location, so links without features
# reveal nothing. The rest is noise.


LOCATION = ("lat", "lon")
LABEL = "price"
OWN_FEATURES = ("area", "storey", "age")
SPACING = 0.4  # kilometres between neighbourhoods
OFF_GRID = 0.15  # of the spacing
PRICE_OF_VALUE, NOISE = 60.0, 25.0  # 1000 S$: standard deviations
SCHOOLS_SHARE = 0.25  # of the value that does not follow from the location
RENTALS_EACH = 4
RENT_ERROR, SCORE_ERROR, RANK_ERROR = 0.6, 1.0, 0.5
RENTALS_K, SCHOOLS_K = 8, 3


@dataclass(frozen=True)
class CitySettings:
    """The adjustable properties of a city.

    ``noise`` is the error of the partners' locations in metres along each axis. ``value`` and ``school_value`` are the
    shares of their parts of the hidden value that rentals and schools reveal; with 0, their features look the same but
    carry no information. ``leak`` is the share of a neighbourhood's value that follows from the location alone.
    """

    noise: float = 0.0
    value: float = 0.8
    school_value: float = 0.8
    leak: float = 0.3

    def __post_init__(self) -> None:
        for name in ("value", "school_value", "leak"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                message = f"{name}={getattr(self, name)} is not a share; choose a number from 0 to 1"
                raise SettingError(message, code="out-of-range", name=name)
        if not 0.0 <= self.noise < float("inf"):
            message = f"noise={self.noise} metres; choose a number of at least 0"
            raise SettingError(message, code="out-of-range", name="noise")


@dataclass(frozen=True, eq=False)
class KnownCity:
    """The primary's ``flats``, the ``rentals`` and ``schools`` of two secondaries, and the ground truth.

    ``hidden`` has one row per flat: ``own`` is the part of the price that follows from area, storey and age, ``place``
    the part that follows from the location. ``rentals`` and ``schools`` are the best estimates of these partners' parts
    from the features and distances of linked records. The sum is the best prediction, and ``truth.error`` is its error.
    """

    flats: pl.DataFrame
    rentals: pl.DataFrame
    schools: pl.DataFrame
    hidden: pl.DataFrame
    truth: GroundTruth


def generate_city(rng: np.random.Generator, knobs: CitySettings | None = None, *, flats: int = 4_000) -> KnownCity:
    """Generate a city with flats, as many schools, and four times as many rentals.

    Parameters
    ----------
    rng
        Source of all randomness.
    knobs
        The properties of the city; defaults if None.
    flats
        Number of flats.

    Examples
    --------
    >>> town = generate_city(np.random.default_rng(7), CitySettings(value=0.0), flats=400)
    >>> town.truth.contribution("rentals"), round(town.truth.contribution("schools"), 1)
    (0.0, 3.6)
    """
    if flats < SCHOOLS_K:
        message = f"flats={flats} is too few for {SCHOOLS_K} schools each; choose at least {SCHOOLS_K}"
        raise SettingError(message, code="out-of-range", name="flats")
    knobs = knobs or CitySettings()
    side = math.ceil(math.sqrt(flats))
    cells = np.stack(np.divmod(rng.permutation(side * side)[:flats], side), axis=1)
    places = SPACING * (cells - side / 2.0 + rng.uniform(-OFF_GRID, OFF_GRID, (flats, 2)))  # kilometres
    # The price of one standard deviation of each part; their squares add up to the square of the value's price.
    hidden = 1.0 - knobs.leak
    shares = {"place": knobs.leak, "rentals": hidden * (1.0 - SCHOOLS_SHARE), "schools": hidden * SCHOOLS_SHARE}
    scale = {name: PRICE_OF_VALUE * math.sqrt(share) for name, share in shares.items()}
    # One wave along each axis over the whole city, together of variance one.
    phase = 2.0 * np.pi * places / (SPACING * side) + rng.uniform(0.0, 2.0 * np.pi, 2)
    parts = dict(zip(scale, [np.sin(phase).sum(axis=1), *rng.normal(size=(2, flats))], strict=True))
    rentals, rentals_part, rentals_share = _generate_rentals(rng, knobs, places, parts["rentals"])
    schools, schools_part, schools_share = _generate_schools(rng, knobs, places, parts["schools"])
    area = rng.gamma(9.0, 10.0, flats).round(1) + 20.0
    storey, age = (rng.integers(low, high, flats).astype(np.float64) for low, high in ((1, 26), (0, 50)))
    own = 500.0 + 3.2 * (area - 110.0) + 1.5 * storey - 1.2 * age
    price = own + sum(scale[name] * part for name, part in parts.items()) + rng.normal(0.0, NOISE, flats)
    explained = {"place": 1.0, "rentals": rentals_share, "schools": schools_share}
    known = {"place": parts["place"], "rentals": rentals_part, "schools": schools_part}
    columns = {"area": area, "storey": storey, "age": age, LABEL: price.round(2)}
    return KnownCity(
        flats=pl.DataFrame(kilometres_to_degrees(places) | columns),
        rentals=rentals,
        schools=schools,
        hidden=pl.DataFrame({"own": own} | {name: scale[name] * part for name, part in known.items()}),
        truth=GroundTruth(
            total=PRICE_OF_VALUE**2 + NOISE**2,
            explained={name: scale[name] ** 2 * share for name, share in explained.items()},
            own=("place",),
        ),
    )


_PartnerTable = tuple[pl.DataFrame, Floats, float]  # table, best estimate of its part, share of the part it explains


def _generate_rentals(rng: np.random.Generator, knobs: CitySettings, places: Floats, part: Floats) -> _PartnerTable:
    signal = _signal(rng, part, knobs.value)
    home = rng.permutation(np.repeat(np.arange(len(places)), RENTALS_EACH))
    rent, score = (signal[home] + error * rng.normal(size=len(home)) for error in (RENT_ERROR, SCORE_ERROR))
    where = _noisy_locations(rng, places[home], 0.04, knobs)
    blur = 1.0 / (RENT_ERROR**-2 + SCORE_ERROR**-2)
    sights = PartnerObservations(home, where, blur * (rent / RENT_ERROR**2 + score / SCORE_ERROR**2), blur)
    rooms = rng.integers(1, 6, len(home))
    features = {"rooms": rooms, "rent": (30.0 + 6.0 * rent).round(2), "score": (60.0 + 10.0 * score).round(1)}
    return _partner_table(places, signal, sights, knobs.value, RENTALS_K, features)


def _generate_schools(rng: np.random.Generator, knobs: CitySettings, places: Floats, part: Floats) -> _PartnerTable:
    signal = _signal(rng, part, knobs.school_value)
    home = rng.permutation(len(places))
    seen = signal[home] + RANK_ERROR * rng.normal(size=len(home))
    sights = PartnerObservations(home, _noisy_locations(rng, places[home], 0.06, knobs), seen, RANK_ERROR**2)
    features = {"pupils": rng.integers(80, 900, len(home)), "rank": (50.0 + 15.0 * seen).round(1)}
    return _partner_table(places, signal, sights, knobs.school_value, SCHOOLS_K, features)


def _signal(rng: np.random.Generator, part: Floats, value: float) -> Floats:
    """Return what a partner observes of its part: all of it if ``value`` is 1, unrelated numbers if it is 0."""
    return math.sqrt(value) * part + math.sqrt(1.0 - value) * rng.normal(size=len(part))


def _noisy_locations(rng: np.random.Generator, centres: Floats, width: float, knobs: CitySettings) -> Floats:
    return centres + rng.normal(0.0, width, centres.shape) + rng.normal(0.0, knobs.noise / 1000.0, centres.shape)


def _partner_table(
    places: Floats, signal: Floats, sights: PartnerObservations, value: float, k: int, features: dict[str, Any]
) -> _PartnerTable:
    estimate = best_estimate(places, sights, k)
    frame = pl.DataFrame(kilometres_to_degrees(sights.place) | features)
    return frame, math.sqrt(value) * estimate, value * explained_variance(signal, estimate)
