"""The paper's mechanism: Gaussian noise on scaled similarities (section 5, equation 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.privacy.bounds import check_sigma, noise_for, success_bound
from fedsim.types import Floats


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
        return cls(noise_for(tau, spread), spread)

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
