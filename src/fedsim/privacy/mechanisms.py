"""Privacy mechanisms that a party applies to the data it discloses, each with its guarantee in one sentence."""

import math
from dataclasses import dataclass

import numpy as np

from fedsim.errors import SettingError
from fedsim.privacy.geodesy import to_degrees, validate_places
from fedsim.types import AnyArray, Floats, Integers
from fedsim.validation import validate_integer, validate_positive

CLIP_DEVIATIONS = 3.0  # numbers further than this from the column's mean are clipped
NO_PARTNER = -1
DELTA = 1e-5
SUPPRESSED_SHARE = 0.1  # of the rare partners are suppressed in one round


def gaussian_delta(*, epsilon: float, sigma: float, sensitivity: float) -> float:
    """Return the exact delta for which noise at this scale is (epsilon, delta)-private."""
    from scipy.special import log_ndtr, ndtr  # noqa: PLC0415 - as long as all other imports of `fedsim check`

    validate_positive(sigma=sigma, sensitivity=sensitivity)
    half, tilt = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return float(ndtr(half - tilt) - math.exp(epsilon + float(log_ndtr(-half - tilt))))


def gaussian_epsilon(*, sigma: float, delta: float, sensitivity: float) -> float:
    """Return the smallest epsilon for which noise at this scale is (epsilon, delta)-private.

    >>> round(gaussian_epsilon(sigma=3.73063, delta=1e-5, sensitivity=1.0), 4)
    1.0
    """
    from scipy.optimize import brentq  # noqa: PLC0415 - it loads a third of SciPy, and few need it

    validate_positive(sigma=sigma, sensitivity=sensitivity)
    if not 0 < delta < 1:
        raise SettingError(f"delta={delta}; choose a probability between 0 and 1", code="bad-delta")

    def excess(epsilon: float) -> float:
        return gaussian_delta(epsilon=epsilon, sigma=sigma, sensitivity=sensitivity) - delta

    if excess(0.0) <= 0:
        return 0.0
    ratio = sensitivity / sigma
    highest = ratio**2 / 2 + ratio * math.sqrt(2 * math.log(1 / delta))  # enough by the classic tail bound
    return float(brentq(excess, 0.0, highest, xtol=1e-12))


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
        sensitivity = 2.0 * CLIP_DEVIATIONS
        epsilon, mu = gaussian_epsilon(sigma=self.noise, delta=DELTA, sensitivity=sensitivity), sensitivity / self.noise
        two, ten, hundred = (f"{self.category_epsilon(values):.3g}" for values in (2, 10, 100))
        return (
            "Given the mean and standard deviation of its column, and whatever is computed from a record, one number "
            f"is ({epsilon:.3g}, {DELTA:g})-private ({mu:.3g}-GDP), d numbers together "
            f"{mu:.3g} * sqrt(d)-GDP; a category is kept with a probability of "
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

    def radius(self, share: Floats | float) -> Floats:
        """Return the radius that contains this share of all steps: the inverse of 1 - (1 + epsilon r) e^(-epsilon r).

        >>> PlanarLaplace(epsilon=0.01).radius(0.5).round(2)
        np.float64(167.83)
        """
        from scipy.special import gammaincinv  # noqa: PLC0415 - as above

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
