"""Identifiers become keyed bit filters; runs at the data holder, never at the coordinator."""

from fedsim.linkage.encoding.filters import (
    ColumnValues,
    DateFilter,
    IdentifierColumn,
    NumericFilter,
    StringFilter,
    normalise_text,
)
from fedsim.linkage.encoding.positions import DatePosition, NumberPosition, PlacePosition
from fedsim.linkage.encoding.record_filters import Balance, BitFlip, Concatenate, Sample, Shuffle, Union, XorFold
from fedsim.linkage.encoding.schema import Combination, FieldEncoding, Hardening, Key, Schema, SchemaField, cell_type

__all__ = [
    "Balance",
    "BitFlip",
    "ColumnValues",
    "Combination",
    "Concatenate",
    "DateFilter",
    "DatePosition",
    "FieldEncoding",
    "Hardening",
    "IdentifierColumn",
    "Key",
    "NumberPosition",
    "NumericFilter",
    "PlacePosition",
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
