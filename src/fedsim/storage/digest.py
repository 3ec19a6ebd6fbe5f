"""Digests of arrays, and the first difference between two configurations."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A digest of arrays: types, shapes and values


def arrays_digest(*arrays: NDArray[Any]) -> str:
    """SHA-256 over types, shapes and values, in hexadecimal digits.

    >>> arrays_digest(np.arange(3)) == arrays_digest(np.arange(4))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


# Where two descriptions of one thing part


def first_difference(here: Any, there: Any, name: str = "job") -> str:
    """The first setting in which two descriptions differ, in words; empty if they agree.

    >>> first_difference({"batch": 128, "seed": 1}, {"batch": 512, "seed": 1})
    'job.batch is 128 here, 512 there'
    """
    if isinstance(here, dict) and isinstance(there, dict):
        keys = [*here, *(key for key in there if key not in here)]
        found = (first_difference(here.get(key), there.get(key), f"{name}.{key}") for key in keys)
        return next(filter(None, found), "")
    return "" if here == there else f"{name} is {json.dumps(here)} here, {json.dumps(there)} there"
