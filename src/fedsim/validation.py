"""Validate and compare settings; a validating function returns a plain Python value or raises a SettingError.

The error has the code ``invalid-type`` or ``out-of-range`` and the setting's ``name`` and ``value`` as details.
"""

import dataclasses
import json
import operator
from typing import Any

import numpy as np

from fedsim.errors import SettingError

# Twice what the paper's formula gives for its largest table; a larger value is a mistake and would exhaust memory.
MAX_FILTER_BITS = 1 << 26
# Sums and differences of a few such numbers are still finite.
MAX_NUMBER = 1e300


def validate_integer(value: Any, name: str, *, least: int | None = None, most: int | None = None) -> int:
    """Return a whole number within limits; true, 1.0 and "1" are rejected.

    >>> validate_integer(np.int8(3), "k", least=1)
    3
    """
    limits = {"least": least, "most": most}
    try:
        number = operator.index(value)
    except TypeError:
        raise _error(name, value, "a whole number", "invalid-type", limits) from None
    if isinstance(value, bool):
        raise _error(name, value, "a whole number", "invalid-type", limits)
    if (least is not None and number < least) or (most is not None and number > most):
        raise _error(name, value, "a whole number", "out-of-range", limits)
    return number


def validate_number(
    value: Any,
    name: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """Return a finite number within limits; ``above`` and ``below`` are exclusive.

    >>> validate_number(0.5, "share", above=0, most=1)
    0.5
    """
    limits = {"least": least, "above": above, "most": most, "below": below}
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise _error(name, value, "a number", "invalid-type", limits)
    inside = bool(
        abs(float(value) if isinstance(value, np.number) else value) <= MAX_NUMBER  # false for NaN, too
        and (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
        and (below is None or value < below)
    )
    if not inside:
        raise _error(name, value, "a number", "out-of-range", limits)
    return float(value)


def validate_positive(**settings: Any) -> None:
    """Check that every setting is a number above zero."""
    for name, value in settings.items():
        validate_number(value, name, above=0)


def validate_flag(value: Any, name: str) -> bool:
    """Return a setting that must be true or false."""
    if not isinstance(value, bool):
        raise _error(name, value, "true or false", "invalid-type", {})
    return value


def validate_k(k: Any, n_candidates: int, holder: str) -> int:
    """Return K; more partners than candidates is an error, never padding."""
    number = validate_integer(k, "k")
    if not 1 <= number <= n_candidates:
        message = f"k={number}, but {holder} has {n_candidates} records; choose k between 1 and {n_candidates}"
        code = "k-too-large" if number > 0 else "out-of-range"
        raise SettingError(message, code=code, name="k", value=number, limit=n_candidates)
    return number


def validate_filter_bits(value: Any) -> int:
    """Return the size of a filter: a multiple of 8, so that concatenated filters fill whole bytes."""
    bits = validate_integer(value, "bits", least=8, most=MAX_FILTER_BITS)
    if bits % 8:
        message = f"bits={bits}; it must be a multiple of 8, such as {bits + -bits % 8}"
        raise SettingError(message, code="out-of-range", name="bits", value=bits)
    return bits


def convert_scalars(part: Any) -> None:
    """Replace NumPy scalars among a dataclass's settings with Python numbers: a float32 would change results."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        plain = tuple(map(_to_python, value)) if isinstance(value, tuple) else _to_python(value)
        object.__setattr__(part, field.name, plain)


def _to_python(value: Any) -> Any:
    return value.item() if isinstance(value, np.bool_ | np.integer | np.floating) else value


def first_difference(here: Any, there: Any, name: str = "job") -> str:
    """Describe the first setting in which two configurations differ; empty if they are equal.

    >>> first_difference({"batch": 128, "seed": 1}, {"batch": 512, "seed": 1})
    'job.batch is 128 here, 512 there'
    """
    if isinstance(here, dict) and isinstance(there, dict):
        keys = [*here, *(key for key in there if key not in here)]
        differences = (first_difference(here.get(key), there.get(key), f"{name}.{key}") for key in keys)
        return next(filter(None, differences), "")
    return "" if here == there else f"{name} is {json.dumps(here)} here, {json.dumps(there)} there"


def _error(name: str, value: object, wanted: str, code: str, limits: dict[str, Any]) -> SettingError:
    words = {"least": "at least", "above": "above", "most": "at most", "below": "below"}
    given = [f"{words[limit]} {bound:g}" for limit, bound in limits.items() if bound is not None]
    shown = repr(value) if isinstance(value, str | int | float | np.generic | None) else f"<{type(value).__name__}>"
    message = f"{name}={shown}; it must be {wanted}{' ' * bool(given)}{' and '.join(given)}"
    return SettingError(message, code=code, name=name, value=value)
