"""Digests of arrays, and the first difference between two configurations."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def arrays_digest(*arrays: NDArray[Any]) -> str:
    """Return the SHA-256 of types, shapes and values, in hexadecimal digits.

    >>> arrays_digest(np.arange(3)) == arrays_digest(np.arange(4))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def named_arrays_digest(kind: str, facts: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of a kind, its facts, and its arrays by name, whatever their order."""
    shapes = {name: [array.dtype.str, *array.shape] for name, array in arrays.items()}
    digest = hashlib.sha256(json.dumps([kind, facts, shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


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
