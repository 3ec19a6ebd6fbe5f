"""Short names for what was sent before, so that it need not be sent again."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.types import EncodedTable


def arrays_digest(*arrays: NDArray[Any]) -> str:
    """SHA-256 over types, shapes and values.

    >>> arrays_digest(np.arange(3))[:12] == arrays_digest(np.arange(4))[:12]
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def table_digest(table: EncodedTable, *beside: NDArray[Any]) -> str:
    """That of an encoded table, and of what is sent beside it."""
    return arrays_digest(np.frombuffer(table.fingerprint.encode(), np.uint8), table.bits, *beside)
