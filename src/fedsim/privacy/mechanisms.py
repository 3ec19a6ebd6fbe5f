"""Privacy mechanisms a party applies to what it discloses, each with its guarantee in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import lambertw

from fedsim.errors import SettingError
from fedsim.privacy.bounds import check_sigma, sigma_for_bound, success_bound
from fedsim.privacy.differential_privacy import Accountant
from fedsim.privacy.geodesy import to_degrees, validate_places
from fedsim.types import Bits, Floats, Integers
from fedsim.validation import check_fraction, check_positive, validate_integer, validate_k

# What every mechanism answers


ArrayType = TypeVar("ArrayType", bound="np.ndarray[Any, Any]")


class Mechanism(Protocol[ArrayType]):
    """Changes values before they are given away.

    ``guarantee`` is one sentence: against whom, how much, and what spends it again.
    """

    @property
    def guarantee(self) -> str: ...

    def apply(self, values: ArrayType, rng: np.random.Generator) -> ArrayType: ...


# Randomised response on the bits of filters: local differential privacy against the coordinator


BITS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class FlippedBits:
    """Every bit of every record is flipped by its own coin, with probability 1 / (1 + e^epsilon).

    ``epsilon`` is that of one bit. ``changed_bits`` is the most bits in which the filters of two records differ that
    shall not be told apart: twice the ones of a filter for any two records, fewer for near ones.
    """

    epsilon: float
    changed_bits: int

    def __post_init__(self) -> None:
        check_positive(epsilon=self.epsilon)
        validate_integer(self.changed_bits, "changed_bits", least=1)

    @classmethod
    def for_record(cls, epsilon: float, changed_bits: int) -> FlippedBits:
        """The coin whose guarantee for a whole record is ``epsilon``.

        >>> FlippedBits.for_record(epsilon=20.0, changed_bits=400)
        FlippedBits(epsilon=0.05, changed_bits=400)
        """
        return cls(epsilon / validate_integer(changed_bits, "changed_bits", least=1), changed_bits)

    @property
    def flip_probability(self) -> float:
        """Chance that a bit is flipped.

        >>> round(FlippedBits(epsilon=3.0, changed_bits=400).flip_probability, 4)
        0.0474
        """
        return 1.0 / (1.0 + math.exp(self.epsilon))

    @property
    def record_epsilon(self) -> float:
        """Local differential privacy between two records whose filters differ in ``changed_bits`` bits."""
        return self.epsilon * self.changed_bits

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        return (
            f"Whoever sees one noisy filter moves its odds on any bit by at most e^{self.epsilon:g}, and between two "
            f"records whose filters differ in {self.changed_bits:,} bits before the flips by at most "
            f"e^{self.record_epsilon:g}; encoding a record afresh spends the same again."
        )

    def apply(self, values: Bits, rng: np.random.Generator) -> Bits:
        """Noisy filters, packed as they came."""
        noisy = np.empty_like(values)
        step = max(1, BITS_AT_ONCE // max(1, 8 * values.shape[1]))
        for first in range(0, len(values), step):
            tile = values[first : first + step]
            flips = rng.random((len(tile), 8 * values.shape[1])) < self.flip_probability
            noisy[first : first + step] = tile ^ np.packbits(flips, axis=1)
        return noisy


# Noise on features before any network sees them: whatever is learnt from them later can give no more away


CLIP_DEVIATIONS = 3.0  # deviations from the mean; what lies beyond counts as lying there


@dataclass(frozen=True)
class NoisyFeatures:
    """Numbers within three deviations of their column's mean, with Gaussian noise of ``noise`` deviations on each.

    A category stays with the chance that leaves as much of it as noise leaves of a number, and is any of them else.
    The noise is drawn once for a table in a job: nothing averages it away, however often a record is used there.
    """

    noise: float

    def __post_init__(self) -> None:
        check_positive(noise=self.noise)

    @property
    def kept(self) -> float:
        """Chance that a category stays.

        >>> round(NoisyFeatures(noise=3.0).kept, 4)
        0.3162
        """
        return 1.0 / math.sqrt(1.0 + self.noise**2)

    @property
    def spent(self) -> Accountant:
        """What one number of one record gives away, once and for all."""
        return Accountant().after(sigma=self.noise, sensitivity=2.0 * CLIP_DEVIATIONS)

    def category_epsilon(self, values: int) -> float:
        """Differential privacy of a category with so many possible values: the more there are, the less it hides.

        >>> round(NoisyFeatures(noise=4.0).category_epsilon(2), 3)
        0.495
        """
        drawn = 1.0 - self.kept
        return math.log1p(validate_integer(values, "values", least=2) * self.kept / drawn) if drawn > 0 else math.inf

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        few, some, many = (f"{self.category_epsilon(values):.3g}" for values in (2, 10, 100))
        return (
            "Given the mean and deviation of its column, whatever is computed from a record, and however often, one "
            f"of its numbers is ({self.spent.epsilon(delta=1e-5):.3g}, 1e-5)-private ({self.spent.mu:.3g}-GDP), d "
            f"numbers together {self.spent.mu:.3g} * sqrt(d)-GDP; a category is kept with a chance of {self.kept:.0%} "
            f"and drawn at random else, which is {few}-private with 2 possible values, {some} with 10 and {many} with "
            "100; drawing the noise afresh spends the same again."
        )

    def apply(self, values: Floats, rng: np.random.Generator) -> Floats:
        """Noisy numbers, a column each."""
        return self.add_noise(values, rng.normal(size=values.shape))

    def add_noise(self, values: NDArray[np.floating], standard: Floats) -> Floats:
        """The same with noise that was drawn before, of deviation 1."""
        numbers = np.asarray(values, dtype=np.float64)
        middle, deviation = numbers.mean(axis=0), numbers.std(axis=0)
        scaled = np.clip(
            (numbers - middle) / np.where(deviation > 0, deviation, 1.0), -CLIP_DEVIATIONS, CLIP_DEVIATIONS
        )
        return np.asarray(middle + deviation * (scaled + self.noise * standard))

    def replaced(self, codes: Integers, cardinalities: tuple[int, ...], coins: Floats) -> Integers:
        """Noisy categories, from two coins in [0, 1) for each, (n, e) and (n, e, 2)."""
        drawn = (coins[..., 1] * np.asarray(cardinalities, dtype=np.int64)).astype(np.int64)
        return np.where(coins[..., 0] < self.kept, codes, drawn)


# Lists of partners that say less: random partners among the true ones, and none that only a few records share
#
# Letters: n records, K partners, L >= K columns of a list with spare partners.


NO_PARTNER = -1
MAX_REDRAWS = 1_000
SUPPRESSED_SHARE = 0.1  # of the rare partners are suppressed in one round


@dataclass(frozen=True)
class DummyLinks:
    """Every link points, with probability ``share``, to any of ``n_candidates`` rows instead of its true partner.

    Similarities stay where they are: a dummy must carry a plausible one. No record names a partner twice.
    """

    share: float
    n_candidates: int

    def __post_init__(self) -> None:
        check_fraction(share=self.share)
        validate_integer(self.n_candidates, "n_candidates", least=1)

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        return (
            f"Of the links the primary sees, {self.share:.0%} on average are random, so that no single one is proof of "
            "anything; what many links of one partner say together is not bounded."
        )

    def apply(self, values: Integers, rng: np.random.Generator) -> Integers:
        """Lists with dummies, (n, K) -> (n, K)."""
        validate_k(values.shape[1], self.n_candidates, "the secondary table")
        replaced = (rng.random(values.shape) < self.share) & (values != NO_PARTNER)
        lists = np.where(replaced, rng.integers(0, self.n_candidates, values.shape), values)
        for _ in range(MAX_REDRAWS):
            again = _duplicate_mask(lists) & replaced
            if not again.any():
                return lists
            lists[again] = rng.integers(0, self.n_candidates, int(again.sum()))
        return _fill_dummies(lists, replaced, self.n_candidates, rng)


@dataclass(frozen=True)
class MinimumDegree:
    """Partners that fewer than ``degree`` records would name are named by none; -1 stands where nobody is left.

    Give lists longer than ``k`` and the next best partner takes the place.
    """

    degree: int
    k: int

    def __post_init__(self) -> None:
        validate_integer(self.degree, "degree", least=1)
        validate_integer(self.k, "k", least=1)

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        return (
            f"Every partner row the primary sees in training is named by at least {self.degree} of its training "
            "records; those are records and not places, so that where they stand together so does the partner, and "
            "a new record at prediction may name a row alone."
        )

    def apply(self, values: Integers, rng: np.random.Generator) -> Integers:
        """Lists of K partners from lists of L, (n, L) -> (n, K); nothing is drawn.

        >>> MinimumDegree(degree=2, k=1).apply(np.array([[0, 2], [1, 2], [2, 0]]), np.random.default_rng()).tolist()
        [[2], [2], [2]]
        """
        if values.shape[1] < self.k:
            raise SettingError(f"k={self.k} partners asked for from lists of {values.shape[1]}; link with a larger k")
        allowed = np.ones(int(values.max(initial=0)) + 1, dtype=bool)
        spare = np.bincount(values[values != NO_PARTNER], minlength=len(allowed))
        while True:
            lists = first_allowed_partners(values, allowed, self.k)
            degree = np.bincount(lists[lists != NO_PARTNER], minlength=len(allowed))
            rare = (degree > 0) & (degree < self.degree)
            if not rare.any():
                return lists
            # The rarest go first: their places may fall to others, who are then rare no longer.
            standing = degree * (values.size + 1) + spare
            allowed &= ~(rare & (standing <= np.quantile(standing[rare], SUPPRESSED_SHARE, method="lower")))


def first_allowed_partners(lists: Integers, allowed: np.ndarray[tuple[int], np.dtype[np.bool_]], k: int) -> Integers:
    """The first k allowed partners of each list, (n, L) -> (n, k); -1 where there are too few.

    >>> first_allowed_partners(np.array([[0, 1, 2]]), np.array([False, True, True]), 2).tolist()
    [[1, 2]]
    """
    kept = (lists != NO_PARTNER) & allowed[lists]
    order = np.argsort(~kept, axis=1, kind="stable")[:, :k]
    chosen = np.take_along_axis(np.where(kept, lists, NO_PARTNER), order, axis=1)
    return np.asarray(chosen)


def _duplicate_mask(lists: Integers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Marks every partner of a record that another column names too."""
    order = np.argsort(lists, axis=1, kind="stable")
    ordered = np.take_along_axis(lists, order, axis=1)
    equal = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_PARTNER)
    marked = np.zeros(lists.shape, dtype=bool)
    marked[:, 1:] |= equal
    marked[:, :-1] |= equal
    twice = np.empty_like(marked)
    np.put_along_axis(twice, order, marked, axis=1)
    return twice


def _fill_dummies(lists: Integers, replaced: Integers, n_candidates: int, rng: np.random.Generator) -> Integers:
    """Lists that nearly hold every candidate: draw the dummies of a record from those it does not name."""
    for record in np.flatnonzero((_duplicate_mask(lists) & replaced).any(axis=1)):
        free = np.setdiff1d(np.arange(n_candidates), lists[record][~replaced[record]])
        lists[record, replaced[record]] = rng.permutation(free)[: int(replaced[record].sum())]
    return lists


# Geo-indistinguishability: blurred places (Andrés, Bordenabe, Chatzikokolakis, Palamidessi, CCS 2013)
#
# The noise is laid on a place before it is encoded. All links, similarities and filters then follow from the blurred
# place, so what they give away together is bounded however many there are: noise on the similarities averages out over
# the links of one record, this does not.


@dataclass(frozen=True)
class PlanarLaplace:
    """Moves every place by its own random step, a distance r with density proportional to r e^(-epsilon r).

    ``epsilon`` is per metre. ``cell`` rounds the result to a grid of so many metres: it hides the last digits of the
    floating-point noise, and costs no privacy.
    """

    epsilon: float
    cell: float | None = None

    def __post_init__(self) -> None:
        check_positive(epsilon=self.epsilon)
        if self.cell is not None:
            check_positive(cell=self.cell)

    @classmethod
    def within(cls, metres: float, *, odds: float) -> PlanarLaplace:
        """The mechanism under which odds between two places ``metres`` apart grow at most ``odds`` times.

        >>> PlanarLaplace.within(200.0, odds=4.0)
        PlanarLaplace(epsilon=0.006931471805599453, cell=None)
        """
        check_positive(metres=metres, odds=odds - 1)
        return cls(math.log(odds) / metres)

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        return (
            f"Whatever is computed from a blurred place, and however often, nobody's odds between two true places d "
            f"metres apart grow by more than e^({self.epsilon:g} d) - {math.exp(min(100 * self.epsilon, 700)):.3g} "
            f"times for 100 m; blurring the same record afresh, in another job or with another epsilon, spends again."
        )

    @property
    def mean_step(self) -> float:
        """Mean distance a place is moved, in metres.

        >>> PlanarLaplace(epsilon=0.01).mean_step
        200.0
        """
        return 2.0 / self.epsilon

    def reach(self, share: Floats | float) -> Floats:
        """Radius within which this share of all steps ends: the inverse of 1 - (1 + epsilon r) e^(-epsilon r).

        >>> PlanarLaplace(epsilon=0.01).reach(0.5).round(2)
        np.float64(167.83)
        """
        branch = lambertw((np.asarray(share) - 1.0) / math.e, k=-1).real
        # At the very start of the branch rounding leaves it, and scipy has no number: the step is zero there.
        return np.asarray(np.fmax(-(branch + 1.0) / self.epsilon, 0.0))[()]

    def apply(self, values: Floats, rng: np.random.Generator) -> Floats:
        """Blurred places; latitude and longitude in degrees, in and out."""
        return self.moved(values, rng.random((len(values), 2)))

    def moved(self, values: Floats, chance: Floats) -> Floats:
        """The same by numbers from 0 to 1, two for every place."""
        places = validate_places(values)
        direction = 2.0 * math.pi * chance[:, 0]
        step = np.minimum(self.reach(chance[:, 1]), 1e7)  # no step leads round the Earth
        moved = to_degrees(step[:, None] * np.column_stack([np.cos(direction), np.sin(direction)]), places)
        return moved if self.cell is None else _snap_to_grid(moved, self.cell)


def _snap_to_grid(places: Floats, cell: float) -> Floats:
    """Nearest crossing of a grid laid by latitude, columns as wide as rows are high."""
    height = cell / 111_195.0
    latitude = np.clip(np.rint(places[:, 0] / height) * height, -90.0, 90.0)
    width = height / np.maximum(np.cos(np.radians(latitude)), 1e-6)
    return np.column_stack([latitude, np.rint(places[:, 1] / width) * width])


# Clipped and noisy rows: what crosses the cut, activations one way and gradients the other


def clip_rows(rows: Floats, clip: float) -> Floats:
    """Rows scaled down to a length of at most ``clip``; shorter ones stay.

    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), clip=1.0).round(6).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * np.minimum(1.0, clip / np.maximum(length, np.finfo(np.float64).tiny)))


@dataclass(frozen=True)
class ClipAndNoise:
    """Every row scaled down to length ``clip``, then Gaussian noise of deviation ``noise * clip`` on every number.

    On activations it protects the secondary's features from the primary; on gradients, the primary's labels from the
    secondary. The guarantee is of one row given the weights: replacing what stands behind a row moves it by at most
    2 x clip. Weights remember other rows too, so what one record or label gives away through *all* rows of a step is
    bounded by ``after(rows=...)`` with the number of rows sent, not by one row.
    """

    clip: float
    noise: float

    def __post_init__(self) -> None:
        check_positive(clip=self.clip)
        check_sigma(self.noise)

    @property
    def sigma(self) -> float:
        """Deviation of the noise on each number."""
        return self.noise * self.clip

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        if self.noise == 0:
            return f"Rows have a length of at most {self.clip:g}; without noise that promises nothing."
        once = self.after(steps=1).epsilon(delta=1e-5)
        return (
            f"Given the weights, a row sent once is ({once:.3g}, 1e-5)-private against whoever receives it, and a row "
            f"sent T times {2 / self.noise:.3g} * sqrt(T)-GDP: that is per row and step, and every step spends more."
        )

    def after(self, *, steps: int, rows: int = 1) -> Accountant:
        """What ``steps`` steps spend on ``rows`` rows that all depend on one secret; 1 is a row on its own."""
        if self.noise == 0:
            raise SettingError("noise=0 spends without bound; give noise above 0")
        sensitivity = 2.0 * self.clip * math.sqrt(validate_integer(rows, "rows", least=1))
        return Accountant().after(sigma=self.sigma, sensitivity=sensitivity, steps=steps)

    def apply(self, values: Floats, rng: np.random.Generator) -> Floats:
        """Rows as they may leave."""
        return clip_rows(values, self.clip) + rng.normal(0.0, self.sigma, size=values.shape)


# The paper's mechanism: Gaussian noise on scaled similarities (section 5, equation 2)


@dataclass(frozen=True)
class NoisySimilarities:
    """Noise of deviation ``sigma`` on every similarity; ``spread`` is the deviation of the (whole) distances."""

    sigma: float
    spread: float

    def __post_init__(self) -> None:
        check_sigma(self.sigma)
        success_bound(self.sigma, self.spread)  # refuses a spread without meaning

    @classmethod
    def for_bound(cls, tau: float, spread: float) -> NoisySimilarities:
        """The least noise whose bound is ``tau``.

        >>> round(NoisySimilarities.for_bound(0.01, 21178.86).sigma, 6)
        0.001884
        """
        return cls(sigma_for_bound(tau, spread), spread)

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        return (
            "A primary that follows the paper's greedy attack on whole (Hamming) distances guesses a filter with "
            f"probability at most {success_bound(self.sigma, self.spread):.3g}; one that weighs all links of a "
            "partner, or only looks at who is listed, is not bounded, and drawing the noise again spends it again."
        )

    def apply(self, values: Floats, rng: np.random.Generator) -> Floats:
        """Noisy similarities."""
        return values + rng.normal(0.0, self.sigma, size=values.shape)
