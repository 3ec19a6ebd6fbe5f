"""What every mechanism answers."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

Values = TypeVar("Values", bound="np.ndarray[Any, Any]")


class Mechanism(Protocol[Values]):
    """Changes values before they are given away.

    ``guarantee`` is one sentence: against whom, how much, and what spends it again.
    """

    @property
    def guarantee(self) -> str: ...

    def apply(self, values: Values, rng: np.random.Generator) -> Values: ...
