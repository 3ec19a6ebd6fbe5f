"""A party's own table, read once: identifiers in the types their encodings want, features, label."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.columns import number
from fedsim.data.readers import read_table
from fedsim.data.typed import typed
from fedsim.errors import InputError, PolicyError, SettingError
from fedsim.linkage.encoding import Key, Schema
from fedsim.party.approval import approved
from fedsim.party.as_compared import as_compared, as_read
from fedsim.party.job import Job
from fedsim.party.own_columns import OwnColumns, own_columns
from fedsim.party.party_file import PartyFile
from fedsim.party.policy import record_refusals
from fedsim.party.protecting import blurred, flips
from fedsim.types import EncodedTable


@dataclass(frozen=True, eq=False)
class OwnTable:
    """The records of a party; ``frame`` holds text wherever the file did."""

    frame: pl.DataFrame
    columns: OwnColumns
    own: PartyFile

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"OwnTable({len(self)} records of {self.own.party})"

    def features(self) -> pl.DataFrame:
        """The columns that are learnt from."""
        missing = self.own.data.missing if self.own.data else ()
        return typed(self.frame.select(self.columns.features or ()), missing)

    def identifiers(self, secondary: str) -> pl.DataFrame:
        """The columns that link with one secondary, under the names that were agreed."""
        named = self.columns.identifiers[secondary]
        return self.frame.select(**{agreed: pl.col(column) for agreed, column in named.items()})

    def compared(self, job: Job, secondary: str) -> pl.DataFrame:
        """The identifiers for one secondary, equal wherever the job's filters cannot tell them apart."""
        return as_compared(job.secondaries[secondary].encoding, self.identifiers(secondary), self._called)

    def encoded(self, job: Job, secondary: str, folder: Path) -> EncodedTable:
        """The identifiers as the coordinator may see them; ``folder`` holds the secret of this party's noise."""
        return encode_own(job, self.own, secondary, self.identifiers(secondary), folder, self._called)

    def label(self) -> pl.Series:
        """What is predicted."""
        if self.columns.label is None:
            raise SettingError(f"the file of {self.own.party} names no label; add [label] column")
        return self.frame[self.columns.label]

    @property
    def _called(self) -> str:
        """The table's name in faults."""
        return str(self.own.data.source if self.own.data else self.own.party)


def read_own_table(job: Job, own: PartyFile) -> OwnTable:
    """Read the party's table; its columns must be those that were approved, its size one its policy allows."""
    if own.data is None:
        raise SettingError(f"the file of {own.party} names no data; add [data] file")
    frame = read_table(own.data.source, separator=own.data.separator, option="data.separator =")
    approved(job, own, frame.columns)
    broken = record_refusals(own, len(frame))
    if broken:
        raise PolicyError("; ".join(broken))
    if not len(frame):
        raise InputError(f"{own.data.source} has no records; a party needs at least one")
    return OwnTable(frame, own_columns(job, own, frame.columns), own)


def encode_own(
    job: Job, own: PartyFile, secondary: str, identifiers: pl.DataFrame, folder: Path, called: str | None = None
) -> EncodedTable:
    """A party's identifiers for the linkage with one secondary, under the agreed names, protected as the job says.

    ``called`` is the name of the table in faults, where it is not the party's own.
    """
    if own.linkage is None:
        raise SettingError(f"the file of {own.party} names no linkage key; add [linkage] key")
    terms, table = job.secondaries[secondary], called or str(own.party)
    moved = blurred(identifiers, terms, folder, table)
    return encode_table(terms.encoding, moved, Key.read(own.linkage.key), table, rng=flips(moved, folder))


def encode_table(
    schema: Schema, frame: pl.DataFrame, key: Key, table: str, *, rng: np.random.Generator | None = None
) -> EncodedTable:
    """Filters of a frame with the schema's columns; without ``rng`` no noise on bits is like the one before."""
    return schema.encode(as_read(schema, frame, table), key, rng or np.random.default_rng(), table=table)


def numbers_of(label: pl.Series, party: str) -> NDArray[np.float64]:
    """A label as numbers, every one of them there, and not all of them the same."""
    numbers = number(label, table=party)
    if numbers.n_unique() < 2:
        raise InputError(f"the label of {party} has one value only; predict another column")
    return numbers.to_numpy()


def classes_of(label: pl.Series, party: str) -> tuple[NDArray[np.int64], list[Any]]:
    """A label as numbers from zero, and the classes they stand for, in order."""
    values = typed(pl.DataFrame([label]), ())[label.name]
    if values.null_count():
        raise InputError(f"the label of {party} is missing in {values.null_count()} rows; drop those records")
    if values.dtype.is_float() and bool((values == values.round()).all()):
        values = values.cast(pl.Int64)
    classes = values.unique().sort().to_list()
    if len(classes) < 2:
        raise InputError(f"the label of {party} has one value only; at least two classes are needed")
    places = {value: place for place, value in enumerate(classes)}
    return np.array([places[value] for value in values.to_list()], dtype=np.int64), classes
