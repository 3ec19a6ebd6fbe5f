"""A party's table, read once: features, label, and identifiers normalised and encoded for linkage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.config.job import Job
from fedsim.config.party_file import PartyColumns, PartyFile, resolve_columns
from fedsim.config.policy import record_count_violations
from fedsim.data.columns import infer_numbers, parse_required_dates, parse_required_numbers, parse_required_texts
from fedsim.data.table_reader import read_table
from fedsim.errors import InputError, PolicyError, SettingError
from fedsim.linkage.encoding import (
    DateFilter,
    IdentifierColumn,
    Key,
    NumericFilter,
    Schema,
    SchemaField,
    StringFilter,
    normalise_text,
)
from fedsim.runs.approval import require_approval
from fedsim.runtime.run_store import bit_flip_rng, blur_identifiers
from fedsim.types import EncodedTable

# Identifiers as a linkage compares them: equal wherever no filter could tell them apart


IDENTIFIER_READERS = {NumericFilter: parse_required_numbers, DateFilter: parse_required_dates}


def read_identifiers(schema: Schema, frame: pl.DataFrame, table: str) -> dict[str, pl.Series]:
    """The schema's columns in the types that their encodings want; ``table`` is the name in faults."""
    kinds = {
        field.column: IDENTIFIER_READERS.get(type(field.encoding), parse_required_texts) for field in schema.fields
    }
    return {name: kinds[name](frame[name], table=table) if name in kinds else frame[name] for name in schema.columns}


def normalise_identifiers(schema: Schema, frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """The schema's columns with numbers and dates read, and text normalised wherever its filters are.

    >>> schema = Schema([SchemaField("name", StringFilter()), SchemaField("age", NumericFilter(0, 120, 5))])
    >>> normalise_identifiers(schema, pl.DataFrame({"name": ["Ada ", "ADA"], "age": ["36", "36.0"]}), "ours").n_unique()
    1
    """
    encoded = {field.column for field in schema.fields}
    literal = {name for field in schema.fields if _is_literal(field) for name in (field.column, field.salt)}
    columns = []
    for name, cells in read_identifiers(schema, frame, table).items():
        plain = (
            cells
            if name in encoded
            else pl.Series(name, IdentifierColumn(cells, name, table).labels(), dtype=pl.String)
        )
        columns.append(plain if name in literal else _normalise_cells(plain))
    return pl.DataFrame(columns)


def _is_literal(field: SchemaField) -> bool:
    return isinstance(field.encoding, StringFilter) and not field.encoding.normalised


def _normalise_cells(cells: pl.Series) -> pl.Series:
    if cells.dtype == pl.Float64:
        return cells + 0.0  # no zero is negative
    if cells.dtype == pl.String:
        return pl.Series(cells.name, [normalise_text(cell) for cell in cells], dtype=pl.String)
    return cells


# A party's own table, read once: identifiers in the types their encodings want, features, label


@dataclass(frozen=True, eq=False)
class PartyData:
    """The records of a party; ``frame`` holds text wherever the file did."""

    frame: pl.DataFrame
    columns: PartyColumns
    own: PartyFile

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"PartyData({len(self)} records of {self.own.party})"

    def features(self) -> pl.DataFrame:
        """The columns that are learnt from."""
        missing = self.own.data.missing if self.own.data else ()
        return infer_numbers(self.frame.select(self.columns.features or ()), missing)

    def identifiers(self, secondary: str) -> pl.DataFrame:
        """The columns that link with one secondary, under the names that were agreed."""
        named = self.columns.identifiers[secondary]
        return self.frame.select(**{agreed: pl.col(column) for agreed, column in named.items()})

    def compared(self, job: Job, secondary: str) -> pl.DataFrame:
        """The identifiers for one secondary, equal wherever the job's filters cannot tell them apart."""
        return normalise_identifiers(job.secondaries[secondary].encoding, self.identifiers(secondary), self._table_name)

    def encoded(self, job: Job, secondary: str, folder: Path) -> EncodedTable:
        """The identifiers as the coordinator may see them; ``folder`` holds the secret of this party's noise."""
        return encode_identifiers(job, self.own, secondary, self.identifiers(secondary), folder, self._table_name)

    def label(self) -> pl.Series:
        """What is predicted."""
        if self.columns.label is None:
            raise SettingError(f"the file of {self.own.party} names no label; add [label] column")
        return self.frame[self.columns.label]

    @property
    def _table_name(self) -> str:
        """The table's name in faults."""
        return str(self.own.data.source if self.own.data else self.own.party)


def read_party_data(job: Job, own: PartyFile) -> PartyData:
    """Read the party's table; its columns must be those that were approved, its size one its policy allows."""
    if own.data is None:
        raise SettingError(f"the file of {own.party} names no data; add [data] file")
    frame = read_table(own.data.source, separator=own.data.separator, option="data.separator =")
    require_approval(job, own, frame.columns)
    broken = record_count_violations(own, len(frame))
    if broken:
        raise PolicyError("; ".join(violation.message for violation in broken), code="policy-violation")
    if not len(frame):
        raise InputError(f"{own.data.source} has no records; a party needs at least one")
    return PartyData(frame, resolve_columns(job, own, frame.columns), own)


def encode_identifiers(
    job: Job, own: PartyFile, secondary: str, identifiers: pl.DataFrame, folder: Path, called: str | None = None
) -> EncodedTable:
    """A party's identifiers for the linkage with one secondary, under the agreed names, protected as the job says.

    ``called`` is the name of the table in faults, where it is not the party's own.
    """
    if own.linkage is None:
        raise SettingError(f"the file of {own.party} names no linkage key; add [linkage] key")
    terms, table = job.secondaries[secondary], called or str(own.party)
    moved = blur_identifiers(identifiers, terms, folder, table)
    return encode_table(terms.encoding, moved, Key.read(own.linkage.key), table, rng=bit_flip_rng(moved, folder))


def encode_table(
    schema: Schema, frame: pl.DataFrame, key: Key, table: str, *, rng: np.random.Generator | None = None
) -> EncodedTable:
    """Filters of a frame with the schema's columns; without ``rng`` no noise on bits is like the one before."""
    return schema.encode(read_identifiers(schema, frame, table), key, rng or np.random.default_rng(), table=table)


def numeric_labels(label: pl.Series, party: str) -> NDArray[np.float64]:
    """A label as numbers, every one of them there, and not all of them the same."""
    numbers = parse_required_numbers(label, table=party)
    if numbers.n_unique() < 2:
        raise InputError(f"the label of {party} has one value only; predict another column")
    return numbers.to_numpy()


def class_labels(label: pl.Series, party: str) -> tuple[NDArray[np.int64], list[Any]]:
    """A label as numbers from zero, and the classes they stand for, in order."""
    values = infer_numbers(pl.DataFrame([label]), ())[label.name]
    if values.null_count():
        raise InputError(f"the label of {party} is missing in {values.null_count()} rows; drop those records")
    if values.dtype.is_float() and bool((values == values.round()).all()):
        values = values.cast(pl.Int64)
    classes = values.unique().sort().to_list()
    if len(classes) < 2:
        raise InputError(f"the label of {party} has one value only; at least two classes are needed")
    places = {value: place for place, value in enumerate(classes)}
    return np.array([places[value] for value in values.to_list()], dtype=np.int64), classes
