"""Encode identifiers as keyed bit filters; runs at the data holder, never at the coordinator."""

from fedsim.linkage.encoding.column_encodings import (
    BitFlip,
    ColumnValues,
    DateFilter,
    DatePosition,
    IdentifierColumn,
    NumberPosition,
    NumericFilter,
    PlacePosition,
    StringFilter,
    normalise_text,
)
from fedsim.linkage.encoding.schema import (
    FieldEncoding,
    FittedEncoding,
    Key,
    NormalisingEncoding,
    Schema,
    SchemaField,
    cell_type,
)
from fedsim.linkage.encoding.word_filter import WordFilter, choose_word_filter

__all__ = [
    "BitFlip",
    "ColumnValues",
    "DateFilter",
    "DatePosition",
    "FieldEncoding",
    "FittedEncoding",
    "IdentifierColumn",
    "Key",
    "NormalisingEncoding",
    "NumberPosition",
    "NumericFilter",
    "PlacePosition",
    "Schema",
    "SchemaField",
    "StringFilter",
    "WordFilter",
    "cell_type",
    "choose_word_filter",
    "normalise_text",
]
