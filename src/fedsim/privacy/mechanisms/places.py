"""Geo-indistinguishability: blurred places (Andrés, Bordenabe, Chatzikokolakis, Palamidessi, CCS 2013).

The noise is laid on a place before it is encoded. All links, similarities and filters then follow from the blurred
place, so what they give away together is bounded however many there are: noise on the similarities averages out over
the links of one record, this does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import lambertw

from fedsim.privacy.checks import check_positive
from fedsim.privacy.plane import checked_places, to_places
from fedsim.types import Floats


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
        places = checked_places(values)
        direction = 2.0 * math.pi * chance[:, 0]
        step = np.minimum(self.reach(chance[:, 1]), 1e7)  # no step leads round the Earth
        moved = to_places(step[:, None] * np.column_stack([np.cos(direction), np.sin(direction)]), places)
        return moved if self.cell is None else _on_grid(moved, self.cell)


def _on_grid(places: Floats, cell: float) -> Floats:
    """Nearest crossing of a grid laid by latitude, columns as wide as rows are high."""
    height = cell / 111_195.0
    latitude = np.clip(np.rint(places[:, 0] / height) * height, -90.0, 90.0)
    width = height / np.maximum(np.cos(np.radians(latitude)), 1e-6)
    return np.column_stack([latitude, np.rint(places[:, 1] / width) * width])
