"""The questions every setting of an encoding answers when it is made."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fedsim.errors import SettingError

# Twice what the paper's formula gives for its largest table; more is a slip of the pen, and would fill the memory.
MAX_BITS = 1 << 26
# Sums and differences of a few such numbers are still finite.
_LARGE = 1e300


def check_whole(name: str, value: object, *, low: int, high: int) -> None:
    """``value`` is a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise SettingError(f"{name}={value!r} is not a whole number from {low} to {high}")


def check_bits(value: object) -> None:
    """``value`` is a filter size: a multiple of 8, so that filters lie side by side in whole bytes."""
    check_whole("bits", value, low=8, high=MAX_BITS)
    if isinstance(value, int | np.integer) and value % 8:
        raise SettingError(f"bits={value} is not a multiple of 8; take {value + -value % 8}")


def check_real(name: str, value: object, *, above: float = -_LARGE, below: float = _LARGE) -> None:
    """``value`` is a number strictly between the two."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise SettingError(f"{name}={value!r} is not a number above {above:g} and below {below:g}")
    if not above < value < below:
        raise SettingError(f"{name}={value!r} is not a number above {above:g} and below {below:g}")


def check_flag(name: str, value: object) -> None:
    """``value`` is true or false."""
    if not isinstance(value, bool):
        raise SettingError(f"{name}={value!r} is neither true nor false")


def settle(part: Any) -> None:
    """Turn a part's settings that are NumPy scalars into Python's own: a float32 would be computed with otherwise."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        plain = tuple(_plain(item) for item in value) if isinstance(value, tuple) else _plain(value)
        object.__setattr__(part, field.name, plain)


def _plain(value: Any) -> Any:
    for kind, plain in ((np.bool_, bool), (np.integer, int), (np.floating, float)):
        if isinstance(value, kind):
            return plain(value)
    return value
