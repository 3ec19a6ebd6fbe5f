"""Identifiers as a linkage compares them: equal wherever no filter could tell them apart."""

from __future__ import annotations

import polars as pl

from fedsim.data.columns import date, number, text
from fedsim.linkage.encoding import Column, DateFilter, Field, NumericFilter, Schema, StringFilter, normalise

READERS = {NumericFilter: number, DateFilter: date}


def as_read(schema: Schema, frame: pl.DataFrame, table: str) -> dict[str, pl.Series]:
    """The schema's columns in the types that their encodings want; ``table`` is the name in faults."""
    kinds = {field.column: READERS.get(type(field.encoding), text) for field in schema.fields}
    return {name: kinds[name](frame[name], table=table) if name in kinds else frame[name] for name in schema.columns}


def as_compared(schema: Schema, frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """The schema's columns with numbers and dates read, and text normalised wherever its filters are.

    >>> schema = Schema([Field("name", StringFilter()), Field("age", NumericFilter(0, 120, 5))])
    >>> as_compared(schema, pl.DataFrame({"name": ["Ada ", "ADA"], "age": ["36", "36.0"]}), "ours").n_unique()
    1
    """
    encoded = {field.column for field in schema.fields}
    literal = {name for field in schema.fields if _literal(field) for name in (field.column, field.salt)}
    columns = []
    for name, cells in as_read(schema, frame, table).items():
        plain = cells if name in encoded else pl.Series(name, Column(cells, name, table).labels(), dtype=pl.String)
        columns.append(plain if name in literal else _one_way(plain))
    return pl.DataFrame(columns)


def _literal(field: Field) -> bool:
    return isinstance(field.encoding, StringFilter) and not field.encoding.normalised


def _one_way(cells: pl.Series) -> pl.Series:
    if cells.dtype == pl.Float64:
        return cells + 0.0  # no zero is negative
    if cells.dtype == pl.String:
        return pl.Series(cells.name, [normalise(cell) for cell in cells], dtype=pl.String)
    return cells
