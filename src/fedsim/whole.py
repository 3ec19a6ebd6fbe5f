"""Settings that are whole numbers, whatever kind of whole number they come as; K is one of them."""

from __future__ import annotations

import operator
from typing import Any

from fedsim.errors import SettingError


def whole_number(value: Any, name: str, *, least: int | None = None) -> int:
    """A plain int, and at least ``least`` if that is given; true, 1.0 and "1" are none.

    >>> whole_number(3, "k", least=1)
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


def partners_wanted(k: Any, n_candidates: int, holder: str) -> int:
    """K as a plain int; too few candidates is an error with a way out, never padding."""
    whole = whole_number(k, "k")
    if not 1 <= whole <= n_candidates:
        raise SettingError(
            f"k={whole} partners asked for, but {holder} has {n_candidates} records; "
            f"choose k between 1 and {n_candidates}"
        )
    return whole
