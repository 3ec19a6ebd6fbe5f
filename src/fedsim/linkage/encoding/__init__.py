"""Identifiers become keyed bit filters; runs at the data holder, never at the coordinator."""

from fedsim.linkage.encoding.columns import ColumnValues, IdentifierColumn
from fedsim.linkage.encoding.filters import DateFilter, NumericFilter, StringFilter, normalise_text
from fedsim.linkage.encoding.key import Key
from fedsim.linkage.encoding.record_filters import (
    Balance,
    BitFlip,
    Combination,
    Concatenate,
    Hardening,
    Sample,
    Shuffle,
    Union,
    XorFold,
)
from fedsim.linkage.encoding.schema import FieldEncoding, Schema, SchemaField, cell_type

__all__ = [
    "Balance",
    "BitFlip",
    "ColumnValues",
    "Combination",
    "Concatenate",
    "DateFilter",
    "FieldEncoding",
    "Hardening",
    "IdentifierColumn",
    "Key",
    "NumericFilter",
    "Sample",
    "Schema",
    "SchemaField",
    "Shuffle",
    "StringFilter",
    "Union",
    "XorFold",
    "cell_type",
    "normalise_text",
]
