"""A party's table in a job: its features, its label, and its identifiers normalised and encoded for linkage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.cells import CellType, read_cells
from fedsim.config.job import Job
from fedsim.config.party_file import PartyColumns, PartyFile, resolve_columns
from fedsim.config.policy import record_count_violations
from fedsim.data.features import FeaturePreprocessor, FeatureRules, fit_preprocessor
from fedsim.data.splits import group_matching_records
from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.errors import InputError, PolicyError, SettingError
from fedsim.linkage.encoding import Key, Schema, StringFilter, cell_type, normalise_text
from fedsim.runs.approval import require_approval
from fedsim.runtime.run_store import bit_flip_rng, blur_identifiers
from fedsim.splitnn.layers import Features
from fedsim.types import EncodedTable, Integers


@dataclass(frozen=True, eq=False)
class PartyData:
    """The records of a party in a job; ``frame`` holds text wherever the file does.

    Both roles, predictions, the contribution ladder and the audit turn a table into identifiers, features and labels by
    this class. ``source`` is the table's name in errors.
    """

    frame: pl.DataFrame
    columns: PartyColumns
    own: PartyFile
    job: Job
    source: str

    @classmethod
    def read(cls, job: Job, own: PartyFile, *, least: int = 1, approved: bool = False) -> PartyData:
        """Read the table that a party file names.

        Parameters
        ----------
        job, own
            The job and the party's file.
        least
            The number of records below which the table is refused.
        approved
            Whether the owner must have approved the job with these columns, and the policy allow this many records;
            wherever something is sent to another party.
        """
        if own.data is None:
            message = f"the file of {own.party} names no data; add [data] file"
            raise SettingError(message, code="no-data", party=str(own.party))
        frame = read_table(own.data.source, separator=own.data.separator, option="data.separator =")
        if approved:
            require_approval(job, own, frame.columns)
            violations = record_count_violations(own, len(frame))
            if violations:
                raise PolicyError("; ".join(broken.message for broken in violations), code="policy-violation")
        if len(frame) < least:
            message = f"{own.data.source} has {len(frame)} records; at least {least} are needed"
            raise InputError(message, code="too-few-records", found=len(frame), least=least)
        return cls(frame, resolve_columns(job, own, frame.columns), own, job, str(own.data.source))

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"PartyData({len(self)} records of {self.own.party})"

    def take(self, rows: Integers) -> PartyData:
        """Return the same with some of the records."""
        return replace(self, frame=self.frame[rows])

    def features(self) -> pl.DataFrame:
        """Return the columns that are learnt from; text columns that hold only numbers are numbers."""
        return self._infer_numbers(self.columns.features or ())

    def fit_features(self, rows: Integers | None = None) -> FeaturePreprocessor:
        """Learn from some rows (by default all) how the features become network inputs."""
        rules = FeatureRules(kinds=self.own.features.kinds)
        label = self.columns.label
        return fit_preprocessor(self.features(), party=str(self.own.party), rows=rows, rules=rules, label=label)

    def network_features(self, rows: Integers | None = None) -> Features:
        """Return the features as network inputs, prepared as :meth:`fit_features` learns from these rows."""
        return Features.of(self.fit_features(rows).apply(self.features()))

    def labels(self) -> tuple[NDArray[Any], list[Any]]:
        """Return the label as the job's task wants it: numbers, or places in the list of classes, and that list."""
        if self.columns.label is None:
            message = f"the file of {self.own.party} names no label; add [label] column"
            raise SettingError(message, code="no-label", party=str(self.own.party))
        label = self.frame[self.columns.label]
        if self.job.task.kind == "classification":
            return class_labels(label, self.source)
        numbers = read_cells(label, CellType.NUMBER).require(self.source)
        _check_values_differ(numbers, self.source)
        return numbers.to_numpy(), []

    def own_identifiers(self) -> pl.DataFrame:
        """Return every identifier column once, under the party's names."""
        return self._infer_numbers(self.columns.linking)

    def identifiers(self, secondary: str) -> pl.DataFrame:
        """Return the columns that link with one secondary, under the agreed names."""
        named = self.columns.identifiers[secondary]
        return self.frame.select(**{agreed: pl.col(column) for agreed, column in named.items()})

    def normalised_identifiers(self, secondary: str) -> pl.DataFrame:
        """Return the identifiers for one secondary, equal wherever the job's filters cannot tell them apart."""
        return normalise_identifiers(self.job.secondaries[secondary].encoding, self.identifiers(secondary), self.source)

    def groups(self) -> Integers:
        """Return a number per record, the same where no secondary's linkage can tell them apart."""
        written = [self.identifiers(name) for name in self.job.secondaries]
        normalised = [self.normalised_identifiers(name) for name in self.job.secondaries]
        return group_matching_records(written, normalised, party=str(self.own.party))

    def encode(self, secondary: str, folder: Path) -> EncodedTable:
        """Return the identifiers as the coordinator may see them; ``folder`` holds the secret of this party's noise."""
        if self.own.linkage is None:
            message = f"the file of {self.own.party} names no linkage key; add [linkage] key"
            raise SettingError(message, code="no-linkage-key", party=str(self.own.party))
        terms = self.job.secondaries[secondary]
        blurred = blur_identifiers(self.identifiers(secondary), terms, folder, self.source)
        key, rng = Key.read(self.own.linkage.key), bit_flip_rng(blurred, folder)
        return encode_table(terms.encoding, blurred, key, self.source, rng=rng)

    def _infer_numbers(self, columns: tuple[str, ...]) -> pl.DataFrame:
        return infer_numbers(self.frame.select(columns), self.own.data.missing if self.own.data else ())


def encode_table(
    schema: Schema, frame: pl.DataFrame, key: Key, table: str, *, rng: np.random.Generator | None = None
) -> EncodedTable:
    """Encode a frame with the schema's columns; without ``rng``, flipped bits differ from call to call."""
    return schema.encode(_read_identifiers(schema, frame, table), key, rng or np.random.default_rng(), table=table)


def normalise_identifiers(schema: Schema, frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """Return the schema's columns with equal cells wherever no filter can tell them apart.

    >>> from fedsim.linkage.encoding import NumericFilter, SchemaField
    >>> schema = Schema([SchemaField("name", StringFilter()), SchemaField("age", NumericFilter(0, 120, 5))])
    >>> normalise_identifiers(schema, pl.DataFrame({"name": ["Ada ", "ADA"], "age": ["36", "36.0"]}), "ours").n_unique()
    1
    """
    encoded = {field.column for field in schema.fields}
    literal = {
        name
        for field in schema.fields
        if isinstance(field.encoding, StringFilter) and not field.encoding.normalised
        for name in (field.column, field.salt)
    }
    columns = []
    for name, cells in _read_identifiers(schema, frame, table).items():
        if name not in encoded:  # a salt, of which only equality counts
            cells = read_cells(cells, CellType.KEY, parse=False).require(table)  # noqa: PLW2901
        if cells.dtype == pl.Float64:
            columns.append(cells + 0.0)  # no zero is negative
        elif cells.dtype == pl.String and name not in literal:
            columns.append(pl.Series(name, [normalise_text(cell) for cell in cells], pl.String))
        else:
            columns.append(cells)
    return pl.DataFrame(columns)


def _read_identifiers(schema: Schema, frame: pl.DataFrame, table: str) -> dict[str, pl.Series]:
    """Return the schema's columns in the types that their encodings read; a salt stays as it is."""
    columns = {name: frame[name] for name in schema.columns}
    for field in schema.fields:
        wanted = CellType(cell_type(field.encoding))
        cells = read_cells(frame[field.column], wanted).require(table)
        columns[field.column] = cells.dt.date() if wanted is CellType.DATE else cells
    return columns


def read_party_data(job: Job, own: PartyFile) -> PartyData:
    """Read the table of a party that takes part in a job: approved by its owner and allowed by its policy."""
    return PartyData.read(job, own, approved=True)


def class_labels(label: pl.Series, table: str) -> tuple[NDArray[np.int64], list[Any]]:
    """Return a label as numbers from zero, and the classes they stand for, in order."""
    values = infer_numbers(pl.DataFrame([label]))[label.name]
    read_cells(values, CellType.CATEGORY).require(table)
    if values.dtype.is_float() and bool((values == values.round()).all()):
        values = values.cast(pl.Int64)
    _check_values_differ(values, table)
    classes = values.unique().sort().to_list()
    places = {value: place for place, value in enumerate(classes)}
    return np.array([places[value] for value in values.to_list()], dtype=np.int64), classes


def _check_values_differ(label: pl.Series, table: str) -> None:
    if label.n_unique() < 2:
        message = f"{table}: the label '{label.name}' has one value only; predict another column"
        raise InputError(message, code="constant-label", table=table, column=label.name)
