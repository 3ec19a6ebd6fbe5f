"""A short name for identifiers that were sent before, so that they need not be sent again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.digest import arrays_digest
from fedsim.types import EncodedTable


def table_digest(table: EncodedTable, *beside: NDArray[Any]) -> str:
    """That of an encoded table, and of what is sent beside it."""
    return arrays_digest(np.frombuffer(table.fingerprint.encode(), np.uint8), table.bits, *beside)
