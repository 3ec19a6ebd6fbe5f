"""Encode identifiers as keyed bit filters; runs at the data holder, never at the coordinator."""

from fedsim.linkage.encoding.column_encodings import (
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
    Key,
    NormalisingEncoding,
    Schema,
    SchemaField,
    cell_type,
)

__all__ = [
    "ColumnValues",
    "DateFilter",
    "DatePosition",
    "FieldEncoding",
    "IdentifierColumn",
    "Key",
    "NormalisingEncoding",
    "NumberPosition",
    "NumericFilter",
    "PlacePosition",
    "Schema",
    "SchemaField",
    "StringFilter",
    "cell_type",
    "normalise_text",
]
