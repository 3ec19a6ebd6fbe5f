"""Generated tables with known truth, for the demo, examples and tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from fedsim.types import Floats, Integers

# Company names, and how a second register would have spelled them


SYLLABLES = (
    "al an ar bel bor cal cor dan del dor el en fal gan gor hal har il ka kel lan lin lor mar mel mir nor or pal "
    "per ran ros sal sen sol tan tor ul val ver vin wes zan"
)
TRADES = (
    "Logistics Foods Textiles Engineering Marine Motors Pharma Timber Software Energy Packaging Optics Travel "
    "Printing Chemicals Robotics Catering Security Paper Glass"
)
PLACES = "North South East West Pacific Central United General National Royal"
LEGAL_FORMS = {
    "Ltd": ("Limited", "Ltd.", ""),
    "GmbH": ("Gesellschaft mbH", "G.m.b.H.", ""),
    "Inc": ("Incorporated", "Inc.", ""),
    "SA": ("S.A.", "Societe Anonyme", ""),
    "Pte Ltd": ("Private Limited", "Pte. Ltd.", ""),
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def random_firm_name(rng: np.random.Generator) -> str:
    """A name nobody owns, such as ``Belgor Marine Ltd``."""
    root = "".join(rng.choice(SYLLABLES.split(), size=int(rng.integers(2, 4)))).capitalize()
    place = [_random_word(rng, PLACES)] if rng.random() < 0.25 else []
    return " ".join([*place, root, _random_word(rng, TRADES), str(rng.choice(list(LEGAL_FORMS)))])


def _random_word(rng: np.random.Generator, words: str) -> str:
    return str(rng.choice(words.split()))


@dataclass(frozen=True, eq=False)
class SpellingVariation:
    """Another clerk's hand: legal form, word order, case and typing errors, each now and then."""

    rng: np.random.Generator

    def of(self, name: str) -> str:
        """The name as the other register has it."""
        name = self._form(name) if self.rng.random() < 0.5 else name
        name = self._turned(name) if self.rng.random() < 0.08 else name
        for _ in range(int(self.rng.choice(4, p=[0.45, 0.3, 0.15, 0.1]))):
            name = self._typo(name)
        return name.upper() if self.rng.random() < 0.05 else name

    def _form(self, name: str) -> str:
        form = next(form for form in sorted(LEGAL_FORMS, key=len, reverse=True) if name.endswith(f" {form}"))
        return f"{name.removesuffix(form)}{self.rng.choice(LEGAL_FORMS[form])}".rstrip()

    def _turned(self, name: str) -> str:
        first, *rest = name.split()
        return f"{' '.join(rest)}, {first}"

    def _typo(self, name: str) -> str:
        """One letter lost, doubled, mistaken, or swapped with the next one."""
        place = int(self.rng.integers(1, max(2, len(name) - 1)))
        head, letter, tail = name[:place], name[place], name[place + 1 :]
        wrong = str(self.rng.choice(list(LETTERS)))
        swapped = f"{head}{tail[:1]}{letter}{tail[1:]}"
        return str(self.rng.choice([head + tail, head + letter + letter + tail, head + wrong + tail, swapped]))


# Generated tables with known truth, for the demo, examples and tests
#
# ``city``: flats and rentals share no key, only places; what a place is worth shows in both.
# ``firms``: two registers spell the same companies differently.


CITY_CENTRE = np.array([1.34, 103.83])
KILOMETRES_PER_DEGREE = 111.2


@dataclass(frozen=True, eq=False)
class City:
    """``flats`` (lat, lon, area, storey, age, price) of the primary, ``rentals`` (lat, lon, rooms, rating, rent)."""

    flats: pl.DataFrame
    rentals: pl.DataFrame


@dataclass(frozen=True, eq=False)
class Firms:
    """Two registers; ``truth[i]`` is the row in ``theirs`` of our firm ``i``, or -1 where they do not have it."""

    ours: pl.DataFrame
    theirs: pl.DataFrame
    truth: Integers


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """District centres (kilometres from the city's), how wide each spreads and how dear it is."""

    centre: Floats
    width: Floats
    worth: Floats

    @classmethod
    def draw(cls, rng: np.random.Generator, count: int = 14) -> Neighbourhoods:
        """Districts thin out and grow wider away from the middle."""
        centre = rng.normal(0.0, [5.0, 9.0], size=(count, 2))
        width = 0.5 + 0.12 * np.linalg.norm(centre, axis=1)
        return cls(centre, width, rng.normal(0.0, 1.0, count))

    def places(self, rng: np.random.Generator, count: int) -> Floats:
        """``count`` places, most of them in some district, a tenth anywhere."""
        home = rng.integers(0, len(self.worth), count)
        inside = self.centre[home] + self.width[home, None] * rng.normal(size=(count, 2))
        anywhere = rng.uniform([-12.0, -20.0], [12.0, 20.0], size=(count, 2))
        return np.where(rng.random((count, 1)) < 0.1, anywhere, inside)

    def value(self, places: Floats) -> Floats:
        """What nobody writes down: how dear it is here, falling off smoothly around each district."""
        apart = ((places[:, None, :] - self.centre[None, :, :]) ** 2).sum(axis=2)
        near = np.exp(-apart / (2.0 * (2.0 * self.width) ** 2))
        return np.asarray(near @ self.worth, dtype=np.float64)


def city(rng: np.random.Generator, *, flats: int = 4_000, rentals: int = 3_000) -> City:
    """Flats stand several to a building, so many records share their exact place, as in real registers.

    >>> city(np.random.default_rng(7), flats=5, rentals=3).flats.columns
    ['lat', 'lon', 'area', 'storey', 'age', 'price']
    """
    districts = Neighbourhoods.draw(rng)
    buildings = districts.places(rng, max(1, flats // 6))
    return City(
        flats=_flats(rng, districts, buildings[rng.integers(0, len(buildings), flats)]),
        rentals=_rentals(rng, districts, districts.places(rng, rentals)),
    )


def _flats(rng: np.random.Generator, districts: Neighbourhoods, places: Floats) -> pl.DataFrame:
    area = rng.gamma(9.0, 10.0, len(places)) + 20.0
    storey = rng.integers(1, 26, len(places))
    age = rng.integers(0, 50, len(places))
    value = 4_500.0 + 900.0 * districts.value(places) + 35.0 * storey - 22.0 * age
    price = area * value * np.exp(rng.normal(0.0, 0.06, len(places)))
    features = {"area": area.round(1), "storey": storey, "age": age, "price": price.round(-2)}
    return pl.DataFrame(kilometres_to_degrees(places) | features)


def _rentals(rng: np.random.Generator, districts: Neighbourhoods, places: Floats) -> pl.DataFrame:
    rooms = rng.integers(1, 6, len(places))
    value = districts.value(places)
    rating = np.clip(3.9 + 0.3 * value + rng.normal(0.0, 0.4, len(places)), 1.0, 5.0)
    rent = (600.0 + 420.0 * rooms) * np.exp(0.18 * value + rng.normal(0.0, 0.08, len(places)))
    features = {"rooms": rooms, "rating": rating.round(2), "rent": rent.round(0)}
    return pl.DataFrame(kilometres_to_degrees(places) | features)


def kilometres_to_degrees(places: Floats) -> dict[str, Floats]:
    """Kilometres to degrees; near the equator one degree is as long both ways."""
    degrees = CITY_CENTRE + places / KILOMETRES_PER_DEGREE
    return {"lat": degrees[:, 0].round(6), "lon": degrees[:, 1].round(6)}


def firms(rng: np.random.Generator, *, ours: int = 1_500, theirs: int = 4_000, shared: float = 0.7) -> Firms:
    """Their copy of a shared firm has typing errors, other legal forms, other word order.

    >>> register = firms(np.random.default_rng(7), ours=40, theirs=100)
    >>> len(register.theirs), int((register.truth >= 0).sum())
    (100, 28)
    """
    names = [random_firm_name(rng) for _ in range(ours)]
    count = min(round(shared * ours), theirs)
    known = rng.permutation(ours)[:count]
    spelling = SpellingVariation(rng)
    spelled = [spelling.of(names[row]) for row in known] + [random_firm_name(rng) for _ in range(theirs - count)]
    order = rng.permutation(theirs)
    truth = np.full(ours, -1, dtype=np.int64)
    truth[known] = np.argsort(order)[:count]
    return Firms(
        ours=pl.DataFrame({"name": names, "staff": rng.lognormal(3.5, 1.2, ours).astype(np.int64) + 1}),
        theirs=pl.DataFrame({"name": [spelled[row] for row in order], "turnover": _turnover(rng, theirs)}),
        truth=truth,
    )


def _turnover(rng: np.random.Generator, count: int) -> Floats:
    return rng.lognormal(13.0, 1.3, count).round(-3)
