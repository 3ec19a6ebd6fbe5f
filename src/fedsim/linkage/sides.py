"""May these two tables be compared at all?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsim.errors import FingerprintError, InputError
from fedsim.linkage.identifiers import columns_of, is_row
from fedsim.types import EncodedTable

Header = tuple[int, list[str] | None]  # how many columns, and their names where the records have names of their own


def check_sides(primary: Any, secondary: Any, names: tuple[str, str]) -> None:
    """Both tables must name the same columns and, if encoded, carry the same fingerprint and size."""
    if isinstance(primary, EncodedTable) and isinstance(secondary, EncodedTable):
        _check_encoded(primary, secondary)
    elif isinstance(primary, EncodedTable) or isinstance(secondary, EncodedTable):
        raise InputError("one table is encoded and the other is not; encode both with the same schema and key")
    else:
        _check_columns(_header(primary, names[0]), _header(secondary, names[1]), names)


def _check_encoded(primary: EncodedTable, secondary: EncodedTable) -> None:
    if primary.fingerprint != secondary.fingerprint:
        raise FingerprintError(
            f"the tables carry fingerprints {primary.fingerprint[:12]} and {secondary.fingerprint[:12]}: they were "
            "encoded with different schemas or keys; encode both with the same"
        )
    if primary.n_bits != secondary.n_bits:
        raise FingerprintError(
            f"the tables have filters of {primary.n_bits} and {secondary.n_bits} bits; encode both with the same schema"
        )


def _header(records: Any, table: str) -> Header:
    if isinstance(records, np.ndarray) and records.ndim == 2:
        return records.shape[1], None
    if isinstance(records, Sequence) and not isinstance(records, str | bytes):
        return (len(records[0]) if records and is_row(records[0]) else 1), None
    columns = list(columns_of(records, table))
    return len(columns), None if isinstance(records, np.ndarray) else columns


def _check_columns(left: Header, right: Header, names: tuple[str, str]) -> None:
    if left[0] != right[0]:
        raise InputError(
            f"the {names[0]} table has {left[0]} identifier columns and the {names[1]} table {right[0]}; both sides "
            "need the same columns, or filters of the same size"
        )
    if left[0] > 1 and left[1] is not None and right[1] is not None and left[1] != right[1]:
        raise InputError(
            f"the {names[0]} table's columns are {', '.join(left[1])}, those of the {names[1]} table "
            f"{', '.join(right[1])}; rename them so that both sides agree"
        )
