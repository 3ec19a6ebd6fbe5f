"""Privacy mechanisms that a party applies to the data it discloses, each with its guarantee in one sentence."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv

from fedsim.errors import SettingError
from fedsim.privacy.bounds import check_sigma
from fedsim.privacy.differential_privacy import Accountant
from fedsim.privacy.geodesy import to_degrees, validate_places
from fedsim.types import AnyArray, Flags, Floats, Integers
from fedsim.validation import validate_integer, validate_k, validate_positive, validate_share

CLIP_DEVIATIONS = 3.0  # numbers further than this from the column's mean are clipped
NO_PARTNER = -1
MAX_REDRAWS = 1_000
SUPPRESSED_SHARE = 0.1  # of the rare partners are suppressed in one round


@dataclass(frozen=True)
class NoisyFeatures:
    """Adds noise to features before any network sees them, drawn once per table and job.

    Numbers are clipped to three standard deviations around the mean of their column and get Gaussian noise. A category
    is kept with a probability chosen to preserve as much information as the noise leaves in a number, and is replaced
    at random otherwise. Because the noise is drawn only once, repeated use of a record does not average it away.

    Parameters
    ----------
    noise
        Standard deviation of the noise as a multiple of the column's standard deviation.
    """

    noise: float

    def __post_init__(self) -> None:
        validate_positive(noise=self.noise)

    @property
    def keep_probability(self) -> float:
        """The probability that a category is kept.

        >>> round(NoisyFeatures(noise=3.0).keep_probability, 4)
        0.3162
        """
        return 1.0 / math.sqrt(1.0 + self.noise**2)

    @property
    def budget(self) -> Accountant:
        """The total privacy budget spent on one number of one record."""
        return Accountant().after(sigma=self.noise, sensitivity=2.0 * CLIP_DEVIATIONS)

    def category_epsilon(self, values: int) -> float:
        """Return the differential privacy of a category; the more possible values, the less is hidden.

        >>> round(NoisyFeatures(noise=4.0).category_epsilon(2), 3)
        0.495
        """
        keep = self.keep_probability
        return math.log1p(validate_integer(values, "values", least=2) * keep / (1.0 - keep)) if keep < 1 else math.inf

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        two, ten, hundred = (f"{self.category_epsilon(values):.3g}" for values in (2, 10, 100))
        return (
            "Given the mean and standard deviation of its column, and whatever is computed from a record, one number "
            f"is ({self.budget.epsilon(delta=1e-5):.3g}, 1e-5)-private ({self.budget.mu:.3g}-GDP), d numbers together "
            f"{self.budget.mu:.3g} * sqrt(d)-GDP; a category is kept with a probability of "
            f"{100 * self.keep_probability:.0f} % and random otherwise, which is {two}-private with 2 possible "
            f"values, {ten} with 10 and {hundred} with 100; "
            "drawing new noise spends the same again."
        )

    def add_noise(self, values: AnyArray, standard_noise: Floats) -> Floats:
        """Return clipped columns plus the given standard normal noise times ``noise`` standard deviations."""
        numbers = np.asarray(values, dtype=np.float64)
        mean, deviation = numbers.mean(axis=0), numbers.std(axis=0)
        scaled = (numbers - mean) / np.where(deviation > 0, deviation, 1.0)
        clipped = np.clip(scaled, -CLIP_DEVIATIONS, CLIP_DEVIATIONS)
        return np.asarray(mean + deviation * (clipped + self.noise * standard_noise))

    def randomise_categories(self, codes: Integers, cardinalities: tuple[int, ...], uniforms: Floats) -> Integers:
        """Return noisy categories from two uniform numbers each, (n, e) and (n, e, 2) -> (n, e)."""
        drawn = (uniforms[..., 1] * np.asarray(cardinalities, dtype=np.int64)).astype(np.int64)
        return np.where(uniforms[..., 0] < self.keep_probability, codes, drawn)


def group_neighbours(places: Floats, size: int) -> Integers:
    """Assign every place to a group of ``size`` to ``2 * size - 1`` neighbours, (n, 2) -> (n,).

    The places are halved along their wider axis until the halves would become too small.

    >>> group_neighbours(np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 1.0], [9.0, 1.0]]), size=2).tolist()
    [1, 0, 1, 0]
    """
    group, waiting, count = np.zeros(len(places), dtype=np.int64), [np.arange(len(places))], 0
    while waiting:
        rows = waiting.pop()
        if len(rows) < 2 * size:
            group[rows], count = count, count + 1
            continue
        axis = int(np.ptp(places[rows], axis=0).argmax())
        ordered = rows[np.argsort(places[rows, axis], kind="stable")]
        waiting += [ordered[: len(rows) // 2], ordered[len(rows) // 2 :]]
    return group


@dataclass(frozen=True)
class GroupedFeatures:
    """Features that are protected within groups of neighbours.

    Parameters
    ----------
    size
        The smallest number of records in a group.
    """

    size: int

    def __post_init__(self) -> None:
        validate_integer(self.size, "size", least=2)


@dataclass(frozen=True)
class AveragedFeatures(GroupedFeatures):
    """Replaces the features of each record with the averages of its group of neighbours.

    Numbers become the mean of the group, categories its most common category. Nothing is random: the same places form
    the same groups, so longer training reveals nothing more. A model that uses the average of an area anyway loses
    little.
    """

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        return (
            f"Every number that leaves is computed from the mean of at least {self.size} records that are neighbours, "
            "every category from their most common one; what is common to the neighbours is not hidden, and groups of "
            "another size or by other places together reveal more."
        )

    def average(self, values: AnyArray, group: Integers) -> Floats:
        """Return the mean of every record's group, (n, e) -> (n, e)."""
        total = np.zeros((int(group.max(initial=-1)) + 1, values.shape[1]))
        np.add.at(total, group, values)
        return np.asarray((total / np.bincount(group)[:, None])[group])

    def most_common(self, codes: Integers, cardinalities: tuple[int, ...], group: Integers) -> Integers:
        """Return the most common category of every record's group, the lowest in a tie, (n, e) -> (n, e)."""
        found, n_groups = np.empty_like(codes), int(group.max(initial=-1)) + 1
        for column, cardinality in enumerate(cardinalities):
            times = np.bincount(group * cardinality + codes[:, column], minlength=n_groups * cardinality)
            found[:, column] = times.reshape(n_groups, cardinality).argmax(axis=1)[group]
        return found


@dataclass(frozen=True)
class ExchangedFeatures(GroupedFeatures):
    """Exchanges features at random among the records of a group of neighbours.

    The features of an area as a whole do not change, so a model that sees many neighbours of a record loses little;
    which neighbour has which features is hidden.
    """

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        return (
            f"At least {self.size} records that are neighbours exchange their features at random, so that anyone who "
            "has the features of a group can only guess whose they are; that one of its records has them is not "
            "hidden, and another exchange, of groups of another size or of a changed table, reveals more."
        )

    def sources(self, group: Integers, uniforms: Floats) -> Integers:
        """Return the record whose features each record gets, from one uniform number each, (n,) and (n,) -> (n,).

        >>> ExchangedFeatures(size=2).sources(np.array([0, 1, 0, 1]), np.array([0.9, 0.2, 0.1, 0.7])).tolist()
        [2, 1, 0, 3]
        """
        found = np.empty_like(group)
        found[np.argsort(group, kind="stable")] = np.lexsort((uniforms, group))
        return found


# Lists of partners that disclose less. Letters: n records, K partners, L >= K columns of a list with spare partners.


@dataclass(frozen=True)
class MinimumDegree:
    """Removes partners that fewer than ``degree`` records list; the next best partners take their places."""

    degree: int
    k: int

    def __post_init__(self) -> None:
        validate_integer(self.degree, "degree", least=1)
        validate_integer(self.k, "k", least=1)

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        return (
            f"Every partner row that the primary sees in training is listed by at least {self.degree} of its training "
            "records; records close together still reveal where the partner is, and a new record at prediction may "
            "list a row alone."
        )

    def apply(self, lists: Integers) -> Integers:
        """Shorten lists of L partners to K, (n, L) -> (n, K); -1 where no partner is left.

        >>> MinimumDegree(degree=2, k=1).apply(np.array([[0, 2], [1, 2], [2, 0]])).tolist()
        [[2], [2], [2]]
        """
        if lists.shape[1] < self.k:
            message = f"k={self.k}, but the lists have {lists.shape[1]} partners; link with a larger k"
            raise SettingError(message, code="k-too-large", limit=lists.shape[1])
        allowed = np.ones(int(lists.max(initial=0)) + 1, dtype=bool)
        spare = np.bincount(lists[lists != NO_PARTNER], minlength=len(allowed))
        while True:
            valid = (lists != NO_PARTNER) & allowed[lists]
            order = np.argsort(~valid, axis=1, kind="stable")[:, : self.k]
            best = np.take_along_axis(np.where(valid, lists, NO_PARTNER), order, axis=1)
            degree = np.bincount(best[best != NO_PARTNER], minlength=len(allowed))
            rare = (degree > 0) & (degree < self.degree)
            if not rare.any():
                return best
            # Suppress the rarest first: others may take their places and are then no longer rare.
            rank = degree * (lists.size + 1) + spare
            allowed &= ~(rare & (rank <= np.quantile(rank[rare], SUPPRESSED_SHARE, method="lower")))


def add_dummy_links(lists: Integers, share: float, n_candidates: int, rng: np.random.Generator) -> Integers:
    """Replace each link with probability ``share`` by a random candidate, (n, K) -> (n, K).

    No record lists a partner twice. Similarities are unchanged, because a dummy must carry a plausible one. On average
    this share of the links is random, so a single link proves nothing; what many links of one partner reveal together
    is not bounded.
    """
    validate_share(share=share)
    validate_k(lists.shape[1], n_candidates, "the secondary table")
    replaced = (rng.random(lists.shape) < share) & (lists != NO_PARTNER)
    mixed = np.where(replaced, rng.integers(0, n_candidates, lists.shape), lists)
    for _ in range(MAX_REDRAWS):
        again = _duplicate_mask(mixed) & replaced
        if not again.any():
            return mixed
        mixed[again] = rng.integers(0, n_candidates, int(again.sum()))
    # If lists contain nearly every candidate, draw the dummies of a record from those that it does not list.
    for record in np.flatnonzero((_duplicate_mask(mixed) & replaced).any(axis=1)):
        free = np.setdiff1d(np.arange(n_candidates), mixed[record][~replaced[record]])
        mixed[record, replaced[record]] = rng.permutation(free)[: int(replaced[record].sum())]
    return mixed


def _duplicate_mask(lists: Integers) -> Flags:
    """Mark every partner of a record that also occurs in another column."""
    order = np.argsort(lists, axis=1, kind="stable")
    ordered = np.take_along_axis(lists, order, axis=1)
    equal = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_PARTNER)
    marked = np.zeros(lists.shape, dtype=bool)
    marked[:, 1:] |= equal
    marked[:, :-1] |= equal
    duplicates = np.empty_like(marked)
    np.put_along_axis(duplicates, order, marked, axis=1)
    return duplicates


@dataclass(frozen=True)
class PlanarLaplace:
    """Geo-indistinguishability: moves every place by its own random step (Andrés et al., CCS 2013).

    The noise is added to a place before it is encoded. All links, similarities and filters follow from the displaced
    place, so what they disclose together is bounded, however many there are. In contrast, noise on similarities
    averages out over the links of one record.

    Parameters
    ----------
    epsilon
        Privacy budget per metre; the step r has a density proportional to r e^(-epsilon r).
    """

    epsilon: float

    def __post_init__(self) -> None:
        validate_positive(epsilon=self.epsilon)

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        return (
            "Whatever is computed from a displaced place, and however often, the odds between two true places d metres "
            f"apart change by a factor of at most e^({self.epsilon:g} d), "
            f"{math.exp(min(100 * self.epsilon, 700)):.3g} for 100 m; displacing the same record again, with another "
            "epsilon, spends the same again."
        )

    @property
    def mean_step(self) -> float:
        """The mean displacement in metres.

        >>> PlanarLaplace(epsilon=0.01).mean_step
        200.0
        """
        return 2.0 / self.epsilon

    def radius(self, share: Floats | float) -> Floats:
        """Return the radius that contains this share of all steps: the inverse of 1 - (1 + epsilon r) e^(-epsilon r).

        >>> PlanarLaplace(epsilon=0.01).radius(0.5).round(2)
        np.float64(167.83)
        """
        # Radii have a gamma distribution. Lambert's W, the usual formula, loses all digits for the smallest shares.
        return np.asarray(gammaincinv(2.0, share) / self.epsilon)[()]

    def apply(self, places: Floats, rng: np.random.Generator) -> Floats:
        """Return displaced places; input and output are latitude and longitude in degrees."""
        return self.displace(places, rng.random((len(places), 2)))

    def displace(self, places: Floats, uniforms: Floats) -> Floats:
        """Return displaced places; two uniform numbers per place determine the direction and the step."""
        places = validate_places(places)
        direction = 2.0 * math.pi * uniforms[:, 0]
        step = np.minimum(self.radius(uniforms[:, 1]), 1e7)  # at most a quarter of the way around the Earth
        return to_degrees(step[:, None] * np.column_stack([np.cos(direction), np.sin(direction)]), places)


@dataclass(frozen=True)
class ClipAndNoise:
    """The guarantee for clipped and noisy rows: activations, which reveal features, or gradients, which reveal labels.

    It holds per row, given the weights: replacing the secret behind a row moves the row by at most 2 x clip. Weights
    also depend on other rows, so what one record or label discloses through *all* rows of a step is bounded by
    ``after(rows=...)`` with the number of rows sent.

    Parameters
    ----------
    clip
        Maximum norm of a row.
    noise
        Standard deviation of the Gaussian noise on every number, as a multiple of ``clip``.
    """

    clip: float
    noise: float

    def __post_init__(self) -> None:
        validate_positive(clip=self.clip)
        check_sigma(self.noise)

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        if self.noise == 0:
            return f"Rows have a length of at most {self.clip:g}; without noise this guarantees nothing."
        once = self.after(steps=1).epsilon(delta=1e-5)
        return (
            f"Given the weights, a row sent once is ({once:.3g}, 1e-5)-private against its receiver, and a row sent T "
            f"times is {2 / self.noise:.3g} * sqrt(T)-GDP; this is per row and step, and every step spends more."
        )

    def after(self, *, steps: int, rows: int = 1) -> Accountant:
        """Return the budget that ``steps`` steps spend on ``rows`` rows that depend on one secret."""
        if self.noise == 0:
            raise SettingError("noise=0 gives no guarantee; choose noise above 0", code="no-noise")
        sensitivity = 2.0 * self.clip * math.sqrt(validate_integer(rows, "rows", least=1))
        return Accountant().after(sigma=self.noise * self.clip, sensitivity=sensitivity, steps=steps)
