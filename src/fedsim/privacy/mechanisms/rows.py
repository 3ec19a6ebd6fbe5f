"""Clipped and noisy rows: what crosses the cut, activations one way and gradients the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsim.errors import SettingError
from fedsim.privacy.accountant import Accountant
from fedsim.privacy.bounds import check_sigma
from fedsim.privacy.checks import check_positive
from fedsim.types import Floats
from fedsim.whole import whole_number


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
        sensitivity = 2.0 * self.clip * math.sqrt(whole_number(rows, "rows", least=1))
        return Accountant().after(sigma=self.sigma, sensitivity=sensitivity, steps=steps)

    def apply(self, values: Floats, rng: np.random.Generator) -> Floats:
        """Rows as they may leave."""
        return clip_rows(values, self.clip) + rng.normal(0.0, self.sigma, size=values.shape)
