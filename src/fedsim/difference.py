"""Where two descriptions of one thing part."""

from __future__ import annotations

import json
from typing import Any


def difference(here: Any, there: Any, name: str = "job") -> str:
    """The first setting in which two descriptions differ, in words; empty if they agree.

    >>> difference({"batch": 128, "seed": 1}, {"batch": 512, "seed": 1})
    'job.batch is 128 here, 512 there'
    """
    if isinstance(here, dict) and isinstance(there, dict):
        keys = [*here, *(key for key in there if key not in here)]
        found = (difference(here.get(key), there.get(key), f"{name}.{key}") for key in keys)
        return next(filter(None, found), "")
    return "" if here == there else f"{name} is {json.dumps(here)} here, {json.dumps(there)} there"
