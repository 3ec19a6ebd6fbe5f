"""Settings and data in a form that two runs can compare: plain values, and twelve digits for arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.digest import arrays_digest


def describe(value: Any) -> Any:
    """A setting as plain JSON values, so that two can be compared.

    >>> from fedsim.splitnn.schedule import WarmCosine
    >>> describe(WarmCosine())
    {'kind': 'WarmCosine', 'warm': 0.05, 'floor': 0.01}
    """
    if is_dataclass(value):
        inside = {entry.name: describe(getattr(value, entry.name)) for entry in fields(value)}
        return {"kind": type(value).__name__, **inside}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    return [describe(entry) for entry in value] if isinstance(value, tuple) else value


def fingerprint(arrays: Iterable[NDArray[Any]]) -> str:
    """Twelve digits that stand for these arrays; they stay with the party that holds them."""
    return arrays_digest(*arrays)[:12]
