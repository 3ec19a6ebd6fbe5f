"""Encode identifiers as keyed bit filters; runs at the data holder, never at the coordinator."""

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
from fedsim.linkage.encoding.schema import (
    Combination,
    FieldEncoding,
    FittedEncoding,
    Hardening,
    Key,
    NormalisingEncoding,
    Schema,
    SchemaField,
    cell_type,
)
from fedsim.linkage.encoding.word_filter import WordFilter, choose_word_filter

__all__ = [
    "Balance",
    "BitFlip",
    "ColumnValues",
    "Combination",
    "Concatenate",
    "DateFilter",
    "DatePosition",
    "FieldEncoding",
    "FittedEncoding",
    "Hardening",
    "IdentifierColumn",
    "Key",
    "NormalisingEncoding",
    "NumberPosition",
    "NumericFilter",
    "PlacePosition",
    "Sample",
    "Schema",
    "SchemaField",
    "Shuffle",
    "StringFilter",
    "Union",
    "WordFilter",
    "XorFold",
    "cell_type",
    "choose_word_filter",
    "normalise_text",
]
