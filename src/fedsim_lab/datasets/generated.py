"""Generated datasets in which the true contribution of each partner is known: two registers of firms, and the city."""

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from fedsim.data import synthetic
from fedsim.data.synthetic import LOCATION, GroundTruth, KnownCity
from fedsim.errors import SettingError
from fedsim.types import Floats, Integers
from fedsim_lab.datasets.dataset import (
    TITLE_FILTERS,
    Dataset,
    DatasetInfo,
    DatasetTask,
    LinkSpec,
    PartyTable,
    SecondaryTable,
)

# Two registers of company names, which spell the same companies differently


SYLLABLES = (
    "al an ar bel bor cal cor dan del dor el en fal gan gor hal har il ka kel lan lin lor mar mel mir nor or "
    "pal per ran ros sal sen sol tan tor ul val ver vin wes zan"
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


@dataclass(frozen=True, eq=False)
class Firms:
    """Two registers; ``truth[i]`` is the row in ``theirs`` of our firm ``i``, or -1 if it is not there."""

    ours: pl.DataFrame
    theirs: pl.DataFrame
    truth: Integers


def random_firm_name(rng: np.random.Generator) -> str:
    """Return a made-up name, such as ``Belgor Marine Ltd``."""
    root = "".join(rng.choice(SYLLABLES.split(), size=int(rng.integers(2, 4)))).capitalize()
    place = [str(rng.choice(PLACES.split()))] if rng.random() < 0.25 else []
    return " ".join([*place, root, str(rng.choice(TRADES.split())), str(rng.choice(list(LEGAL_FORMS)))])


def vary_spelling(name: str, rng: np.random.Generator) -> str:
    """Return the name as another register may spell it: other legal form, word order or case, and typing errors."""
    if rng.random() < 0.5:
        form = next(form for form in sorted(LEGAL_FORMS, key=len, reverse=True) if name.endswith(f" {form}"))
        name = f"{name.removesuffix(form)}{rng.choice(LEGAL_FORMS[form])}".rstrip()
    if rng.random() < 0.08:
        first, *rest = name.split()
        name = f"{' '.join(rest)}, {first}"
    for _ in range(int(rng.choice(4, p=[0.45, 0.3, 0.15, 0.1]))):
        place = int(rng.integers(1, max(2, len(name) - 1)))
        head, letter, tail = name[:place], name[place], name[place + 1 :]
        wrong = str(rng.choice(list(LETTERS)))
        swapped = f"{head}{tail[:1]}{letter}{tail[1:]}"
        name = str(rng.choice([head + tail, head + letter + letter + tail, head + wrong + tail, swapped]))
    return name.upper() if rng.random() < 0.05 else name


def firms(rng: np.random.Generator, *, ours: int = 1_500, theirs: int = 4_000, shared: float = 0.7) -> Firms:
    """Generate two registers that spell shared firms differently: typing errors, other legal forms and word order.

    >>> register = firms(np.random.default_rng(7), ours=40, theirs=100)
    >>> len(register.theirs), int((register.truth >= 0).sum())
    (100, 28)
    """
    names = [random_firm_name(rng) for _ in range(ours)]
    count = min(round(shared * ours), theirs)
    known = rng.permutation(ours)[:count]
    spelled = [vary_spelling(names[row], rng) for row in known]
    spelled += [random_firm_name(rng) for _ in range(theirs - count)]
    order = rng.permutation(theirs)
    truth = np.full(ours, -1, dtype=np.int64)
    truth[known] = np.argsort(order)[:count]
    staff = rng.lognormal(3.5, 1.2, ours).astype(np.int64) + 1
    turnover = rng.lognormal(13.0, 1.3, theirs).round(-3)
    return Firms(
        ours=pl.DataFrame({"name": names, "staff": staff}),
        theirs=pl.DataFrame({"name": [spelled[row] for row in order], "turnover": turnover}),
        truth=truth,
    )


# Two generated registers of firms; the contribution of the second to the first is known


FIRMS_LABEL = "credit"
FIRMS_FEATURES = ("staff", "founded")
CREDIT_OF_HEALTH, CREDIT_NOISE = 40.0, 20.0  # 1000 $: standard deviations
MARGIN_ERROR, DELAY_ERROR = 0.5, 0.8
BLUR = 1.0 / (MARGIN_ERROR**-2 + DELAY_ERROR**-2)  # variance of their mean, each weighed by its precision
FIRMS_K = 10

FIRMS_INFO = DatasetInfo(
    name="firms",
    title="generated: two registers of firms",
    task=DatasetTask.REGRESSION,
    measure="rmse",
    unit="1000 $",
    records=(3_000, 6_000),
    note="not in the paper",
)


@dataclass(frozen=True, eq=False)
class KnownFirms:
    """``ours`` (name, staff, founded, credit), ``theirs`` (name, turnover, margin, delay) and the ground truth.

    ``match[i]`` is the row in ``theirs`` of our firm ``i``, or -1. ``hidden`` has one row per firm of ours: ``own`` is
    the part of the credit that follows from staff and age, and ``register`` the best estimate of the firm's health from
    its match. ``truth`` assumes that every match is recognised, however it is spelled; see :meth:`truth_of`.
    """

    ours: pl.DataFrame
    theirs: pl.DataFrame
    match: Integers
    hidden: pl.DataFrame
    truth: GroundTruth

    def truth_of(self, partner: Integers) -> GroundTruth:
        """Return the truth if only these partners of each firm are seen; a match outside them contributes nothing.

        The match must still be recognised within its list by its distance; the better the metric, the less is lost.
        """
        known = self.match >= 0
        listed = (partner[known] == self.match[known, np.newaxis]).any(axis=1).mean()
        explained = {name: variance * float(listed) for name, variance in self.truth.explained.items()}
        return replace(self.truth, explained=explained)

    def dataset(self) -> Dataset:
        """Return the registers as a dataset."""
        name, metric = ("name",), "levenshtein-normalised"
        link = LinkSpec(name, name, metric, FIRMS_K, casefold=True, filters=TITLE_FILTERS)
        theirs = PartyTable(self.theirs, ("turnover", "margin", "delay"))
        return Dataset(
            FIRMS_INFO,
            PartyTable(self.ours, FIRMS_FEATURES),
            FIRMS_LABEL,
            (SecondaryTable("register", theirs, link),),
            truth=self.truth,
        )


def generate_firms(
    rng: np.random.Generator, *, ours: int = 3_000, theirs: int = 6_000, shared: float = 0.7, value: float = 0.8
) -> KnownFirms:
    """Generate credits that depend on a firm's size, age and health; the other register reveals the health of some.

    ``value`` is the share of the health that it reveals; with 0, its columns look the same but carry no information.

    >>> generate_firms(np.random.default_rng(7), ours=200, theirs=400, value=0.0).truth.contribution("register")
    0.0
    """
    if not 0.0 <= value <= 1.0:
        message = f"value={value} is not a share; choose a number from 0 to 1"
        raise SettingError(message, code="out-of-range", name="value")
    return add_credits(rng, firms(rng, ours=ours, theirs=theirs, shared=shared), value)


def add_credits(rng: np.random.Generator, registers: Firms, value: float = 0.8) -> KnownFirms:
    """Return two registers of names with the columns of :func:`generate_firms`."""
    ours = len(registers.ours)
    health = rng.normal(size=ours)
    columns, seen = _register_columns(rng, registers, health, value)
    features = {"staff": rng.gamma(4.0, 15.0, ours).astype(np.int64) + 1, "founded": rng.integers(1950, 2021, ours)}
    own = 200.0 + 1.2 * features["staff"] - 0.5 * (features["founded"] - 1985)
    credit = own + CREDIT_OF_HEALTH * health + rng.normal(0.0, CREDIT_NOISE, ours)
    known = registers.truth >= 0
    explained = CREDIT_OF_HEALTH**2 * value * (1.0 - BLUR / (1.0 + BLUR)) * float(known.mean())
    return KnownFirms(
        ours=pl.DataFrame({"name": registers.ours["name"]} | features | {FIRMS_LABEL: credit.round(2)}),
        theirs=registers.theirs.with_columns(**columns),
        match=registers.truth,
        hidden=pl.DataFrame({"own": own, "register": np.where(known, seen[registers.truth], 0.0)}),
        truth=GroundTruth(total=CREDIT_OF_HEALTH**2 + CREDIT_NOISE**2, explained={"register": explained}),
    )


def _register_columns(
    rng: np.random.Generator, registers: Firms, health: Floats, value: float
) -> tuple[dict[str, pl.Series], Floats]:
    """Return the other register's columns, and the best estimate of the credit from each of its rows."""
    known = np.flatnonzero(registers.truth >= 0)
    signal = rng.normal(size=len(registers.theirs))
    rest = math.sqrt(1.0 - value) * rng.normal(size=len(known))
    signal[registers.truth[known]] = math.sqrt(value) * health[known] + rest
    margin, delay = (signal + error * rng.normal(size=len(signal)) for error in (MARGIN_ERROR, DELAY_ERROR))
    seen = BLUR * (margin / MARGIN_ERROR**2 + delay / DELAY_ERROR**2)
    columns = {"margin": pl.Series((8.0 + 4.0 * margin).round(2)), "delay": pl.Series((40.0 - 12.0 * delay).round(1))}
    return columns, CREDIT_OF_HEALTH * math.sqrt(value) * seen / (1.0 + BLUR)


# The generated city as a dataset


CITY_INFO = DatasetInfo(
    name="city",
    title="generated: flats, rentals, schools",
    task=DatasetTask.REGRESSION,
    measure="rmse",
    unit="1000 S$",
    records=(4_000, synthetic.RENTALS_EACH * 4_000, 4_000),
    note="not in the paper",
)


def city_dataset(city: KnownCity) -> Dataset:
    """Return the generated city as a dataset, with the rentals as the first secondary."""
    parties = {"rentals": (city.rentals, synthetic.RENTALS_K), "schools": (city.schools, synthetic.SCHOOLS_K)}
    return Dataset(
        about=CITY_INFO,
        primary=PartyTable(city.flats, synthetic.OWN_FEATURES),
        label=synthetic.LABEL,
        secondaries=tuple(
            SecondaryTable(
                name,
                PartyTable.excluding(LOCATION, frame),
                LinkSpec(LOCATION, LOCATION, "great-circle", k),
            )
            for name, (frame, k) in parties.items()
        ),
        truth=city.truth,
    )
