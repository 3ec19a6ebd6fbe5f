"""Validators for settings; each raises a SettingError that names the setting, the value and the valid range."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

import numpy as np

from fedsim.errors import SettingError

# Settings that are whole numbers, whatever kind of whole number they come as; K is one of them


def validate_integer(value: Any, name: str, *, least: int | None = None) -> int:
    """A plain int, and at least ``least`` if that is given; true, 1.0 and "1" are none.

    >>> validate_integer(3, "k", least=1)
    3
    """
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or isinstance(value, bool):
        raise SettingError(f"{name} is of type {type(value).__name__}; it is a whole number")
    if least is not None and whole < least:
        raise SettingError(f"{name}={value}; a whole number of at least {least} is needed")
    return whole


def validate_k(k: Any, n_candidates: int, holder: str) -> int:
    """K as a plain int; too few candidates is an error with a way out, never padding."""
    whole = validate_integer(k, "k")
    if not 1 <= whole <= n_candidates:
        raise SettingError(
            f"k={whole} partners asked for, but {holder} has {n_candidates} records; "
            f"choose k between 1 and {n_candidates}"
        )
    return whole


# The questions every setting of an encoding answers when it is made


# Twice what the paper's formula gives for its largest table; more is a slip of the pen, and would fill the memory.
MAX_FILTER_BITS = 1 << 26
# Sums and differences of a few such numbers are still finite.
_MAX_NUMBER = 1e300


def check_integer(name: str, value: object, *, low: int, high: int) -> None:
    """``value`` is a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise SettingError(f"{name}={value!r} is not a whole number from {low} to {high}")


def check_filter_bits(value: object) -> None:
    """``value`` is a filter size: a multiple of 8, so that filters lie side by side in whole bytes."""
    check_integer("bits", value, low=8, high=MAX_FILTER_BITS)
    if isinstance(value, int | np.integer) and value % 8:
        raise SettingError(f"bits={value} is not a multiple of 8; take {value + -value % 8}")


def check_number(name: str, value: object, *, above: float = -_MAX_NUMBER, below: float = _MAX_NUMBER) -> None:
    """``value`` is a number strictly between the two."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise SettingError(f"{name}={value!r} is not a number above {above:g} and below {below:g}")
    if not above < value < below:
        raise SettingError(f"{name}={value!r} is not a number above {above:g} and below {below:g}")


def check_flag(name: str, value: object) -> None:
    """``value`` is true or false."""
    if not isinstance(value, bool):
        raise SettingError(f"{name}={value!r} is neither true nor false")


def convert_numpy_scalars(part: Any) -> None:
    """Turn a part's settings that are NumPy scalars into Python's own: a float32 would be computed with otherwise."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        plain = (
            tuple(_to_python_scalar(item) for item in value) if isinstance(value, tuple) else _to_python_scalar(value)
        )
        object.__setattr__(part, field.name, plain)


def _to_python_scalar(value: Any) -> Any:
    for kind, plain in ((np.bool_, bool), (np.integer, int), (np.floating, float)):
        if isinstance(value, kind):
            return plain(value)
    return value


# Questions that settings of the mathematics answer before it begins


def check_positive(**settings: float) -> None:
    """Every setting is a finite number above zero."""
    for name, value in settings.items():
        if not (isinstance(value, int | float | np.number) and math.isfinite(value) and value > 0):
            raise SettingError(f"{name}={value}; a number above 0 is needed")


def check_fraction(**settings: float) -> None:
    """Every setting is a share from zero to one."""
    for name, value in settings.items():
        if not (isinstance(value, int | float | np.number) and 0 <= value <= 1):
            raise SettingError(f"{name}={value}; a share from 0 to 1 is needed")
