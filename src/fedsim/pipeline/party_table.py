"""A party's table in a job: features, label and split of its records, and its identifiers as they are encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.cells import CellType, read_cells, read_number_columns
from fedsim.config.job import Job, SecondaryTerms
from fedsim.config.party_file import PartyColumns, PartyFile, resolve_columns
from fedsim.config.policy import record_count_violations
from fedsim.data.features import FeaturePreprocessor, FeatureRules, fit_preprocessor
from fedsim.data.splits import SplitRecords, group_matching_records
from fedsim.data.table_reader import infer_numbers
from fedsim.errors import InputError, PolicyError, SettingError
from fedsim.linkage.direct.groups import COMMON_CATEGORIES
from fedsim.linkage.encoding import (
    Key,
    NormalisingEncoding,
    NumericFilter,
    Schema,
    StringFilter,
    cell_type,
    normalise_text,
)
from fedsim.privacy import keyed_prng, mechanisms
from fedsim.registry import SPLITS
from fedsim.runs.approval import require_approval
from fedsim.runs.run_folder import SECRET_FILE
from fedsim.storage import files
from fedsim.types import EncodedTable, Integers, Split

LASTING_SECRET_FILE = "lasting-secret"  # noqa: S105
BLUR_DRAWS = ("direction", "step")


@dataclass(frozen=True)
class NoiseSecrets:
    """The secrets of a party's noise, which only this party knows; each is created on first use.

    Places and features would be averaged over jobs if each job drew them anew, so they are drawn with the ``lasting``
    secret of all jobs, which is in the folder of the party.
    """

    folder: Path  # of the job
    party: Path

    @property
    def of_job(self) -> bytes:
        return files.load_or_create_secret(self.folder / SECRET_FILE)

    @property
    def lasting(self) -> bytes:
        return files.load_or_create_secret(self.party / LASTING_SECRET_FILE)


@dataclass(frozen=True, eq=False)
class PartyData:
    """The records of a party in a job; ``frame`` holds text wherever the file does.

    Both roles, predictions, the contribution ladder and the audit turn a table into identifiers, features and labels by
    this class, which reads and types every column once. ``source`` is the table's name in errors.
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
        frame = own.data.read()
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

    @cached_property
    def features(self) -> pl.DataFrame:
        """The columns that are learnt from; text columns that hold only numbers are numbers."""
        return self._infer_numbers(self.columns.features or ())

    @cached_property
    def typed_features(self) -> pl.DataFrame:
        """The features as they are prepared, with the declared dates read."""
        dates = [name for name, kind in self.own.features.kinds.items() if CellType(kind) is CellType.DATE]
        columns = (self.features[name] for name in dates if name in self.features.columns)
        party = str(self.own.party)
        return self.features.with_columns(
            read_cells(column, CellType.DATE).require(party, allow_missing=True) for column in columns
        )

    def digests(self, columns: Iterable[str]) -> list[bytes]:
        """Return a digest of these cells of every record, by which it is recognised in another job or table."""
        cells = [pl.col(name).cast(pl.String).fill_null("\0") for name in dict.fromkeys(columns)]
        lines = self.frame.select(pl.concat_str(cells, separator="\x1f")).to_series()
        return [files.record_digest(line.encode()) for line in lines]

    def fit_features(self, rows: Integers | None = None, least: int = 1) -> FeaturePreprocessor:
        """Learn from some rows (by default all) how the features become network inputs.

        With ``least`` above 1 they are numbers only, which have averages, and name no category of fewer rows.
        """
        rules = FeatureRules(kinds=self.own.features.kinds, identifiers=self.columns.linking)
        if least > 1:
            rules = replace(rules, seldom=least, most_one_hot=COMMON_CATEGORIES, codes=False)
        label = self.columns.label
        return fit_preprocessor(self.typed_features, party=str(self.own.party), rows=rows, rules=rules, label=label)

    @cached_property
    def labels(self) -> tuple[NDArray[Any], list[Any]]:
        """The label as the job's task wants it: numbers, or places in the list of classes, and that list.

        A record without a label has NaN, or -1 as its class.
        """
        if self.columns.label is None:
            message = f"the file of {self.own.party} names no label; add [label] column"
            raise SettingError(message, code="no-label", party=str(self.own.party))
        label = self.frame[self.columns.label]
        if self.job.task.kind == "classification":
            return class_labels(label, self.source)
        numbers = read_cells(label, CellType.NUMBER).require(self.source, allow_missing=True)
        _check_values_differ(numbers, self.source)
        if self.job.task.label_scale == "log" and bool((numbers <= 0).any()):
            message = f"{self.source}: the label '{label.name}' has values of zero or less, which have no logarithm; "
            message += 'set task.label_scale = "linear"'
            raise InputError(message, code="label-not-positive", table=self.source, column=label.name)
        return numbers.cast(pl.Float64).fill_null(np.nan).to_numpy(), []

    def draw_split(self, kind: str, rng: np.random.Generator) -> Split:
        """Split the records that have a label, by a kind of split that a job may name."""
        labels, classes = self.labels
        has_label = labels >= 0 if classes else np.isfinite(labels)
        rows = np.flatnonzero(has_label)
        split = self.split_rows(kind, rows, rng)
        return Split(rows[split.train], rows[split.validation], rows[split.test], np.flatnonzero(~has_label))

    def split_rows(self, kind: str, rows: Integers, rng: np.random.Generator) -> Split:
        """Split these records; the result counts among them."""
        records = SplitRecords(
            len(rows), lambda: self.groups[rows], lambda: self.frame[str(self.columns.split)][rows], self.source
        )
        split: Split = SPLITS[kind](records, rng)
        return split

    @cached_property
    def own_identifiers(self) -> pl.DataFrame:
        """Every identifier column once, under the party's names."""
        return self._infer_numbers(self.columns.linking)

    def identifiers(self, secondary: str) -> pl.DataFrame:
        """Return the columns that link with one secondary, under the agreed names."""
        named = self.columns.identifiers[secondary]
        return self.frame.select(**{agreed: pl.col(column) for agreed, column in named.items()})

    def token_identifiers(self, secondary: str) -> pl.DataFrame:
        """Return the identifiers for one secondary in the types that its tokens read."""
        frame, columns = self.identifiers(secondary), {}
        for field in self.job.secondaries[secondary].token_schema.fields:
            wanted = CellType(field.kind.CELLS)
            for name in field.columns:
                cells = read_cells(frame[name], wanted, parse=wanted is not CellType.KEY)
                columns[name] = cells.require(self.source, allow_missing=True)
        return pl.DataFrame(columns)

    def normalised_identifiers(self, secondary: str) -> pl.DataFrame:
        """Return the identifiers for one secondary, equal wherever the job's linkage cannot tell them apart."""
        if self.job.secondaries[secondary].tokens is not None:
            texts = pl.col(pl.String).map_elements(normalise_text, return_dtype=pl.String)
            return self.token_identifiers(secondary).with_columns(texts)
        return normalise_identifiers(self.job.secondaries[secondary].encoding, self.identifiers(secondary), self.source)

    @cached_property
    def groups(self) -> Integers:
        """A number per record, the same where no secondary's linkage can tell them apart."""
        written = [self.identifiers(name) for name in self.job.secondaries]
        normalised = [self.normalised_identifiers(name) for name in self.job.secondaries]
        return group_matching_records(written, normalised, party=str(self.own.party))

    def encode(self, secondary: str, secrets: NoiseSecrets) -> EncodedTable:
        """Return the identifiers as the coordinator may see them."""
        if self.own.linkage is None:
            message = f"the file of {self.own.party} names no linkage key; add [linkage] key"
            raise SettingError(message, code="no-linkage-key", party=str(self.own.party))
        terms = self.job.secondaries[secondary]
        blurred = self.blurred_identifiers(secondary, secrets.lasting if terms.blur else b"")
        return encode_table(terms.encoding, blurred, Key.read(self.own.linkage.key), self.source)

    def blurred_identifiers(self, secondary: str, secret: bytes) -> pl.DataFrame:
        """Return the identifiers for one list as they are encoded."""
        return blur_identifiers(self.identifiers(secondary), self.job.secondaries[secondary], secret, self.source)

    def _infer_numbers(self, columns: tuple[str, ...]) -> pl.DataFrame:
        return infer_numbers(self.frame.select(columns), self.own.data.missing if self.own.data else ())


def encode_table(schema: Schema, frame: pl.DataFrame, key: Key, table: str) -> EncodedTable:
    """Encode a frame with the schema's columns."""
    return schema.encode(_read_identifiers(schema, frame, table), key, table=table)


def normalise_identifiers(schema: Schema, frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """Return the schema's columns with equal cells wherever no filter can tell them apart.

    >>> from fedsim.linkage.encoding import NumericFilter, SchemaField
    >>> schema = Schema([SchemaField("name", StringFilter()), SchemaField("age", NumericFilter(0, 120, 5))])
    >>> normalise_identifiers(schema, pl.DataFrame({"name": ["Ada ", "ADA"], "age": ["36", "36.0"]}), "ours").n_unique()
    1
    """
    encoded = {name for field in schema.fields for name in field.columns}
    forms: dict[str, dict[Callable[[str], str], None]] = {}  # of each column; a dictionary keeps order and is a set
    for field in schema.fields:
        if isinstance(field.encoding, NormalisingEncoding):
            forms.setdefault(field.column, {})[field.encoding.normal_form] = None
        if isinstance(field.encoding, StringFilter) and field.salt is not None:
            forms.setdefault(field.salt, {})[field.encoding.normal_form] = None
    columns = []
    for name, cells in _read_identifiers(schema, frame, table).items():
        if name not in encoded:  # a salt, of which only equality counts
            cells = read_cells(cells, CellType.KEY, parse=False).require(table)  # noqa: PLW2901
        if cells.dtype == pl.Float64:
            columns.append(cells + 0.0)  # no zero is negative
        elif cells.dtype == pl.String:
            # Cells are equal if they are equal to every encoding of the column.
            chosen = forms.get(name) or [normalise_text]
            unique = cells.drop_nulls().unique()
            texts = pl.Series(["\n".join(form(cell) for form in chosen) for cell in unique], dtype=pl.String)
            columns.append(cells.replace_strict(unique, texts, default=None))
        else:
            columns.append(cells)
    return pl.DataFrame(columns)


def _read_identifiers(schema: Schema, frame: pl.DataFrame, table: str) -> dict[str, pl.Series]:
    """Return the schema's columns in the types that their encodings read; a salt stays as it is."""
    columns = {name: frame[name] for name in schema.columns}
    for field in schema.fields:
        wanted = CellType(cell_type(field.encoding))
        for name in field.columns:
            cells = read_cells(frame[name], wanted).require(table, allow_missing=schema.allows_gaps)
            columns[name] = cells.dt.date() if wanted is CellType.DATE else cells
    return columns


def class_labels(label: pl.Series, table: str) -> tuple[NDArray[np.int64], list[Any]]:
    """Return a label as numbers from zero (-1: missing), and the classes they stand for, in order."""
    values = infer_numbers(pl.DataFrame([label]))[label.name]
    read_cells(values, CellType.CATEGORY).require(table, allow_missing=True)
    if values.dtype.is_float() and bool((values == values.round()).all()):
        values = values.cast(pl.Int64)
    _check_values_differ(values, table)
    classes = values.drop_nulls().unique().sort().to_list()
    places = {value: place for place, value in enumerate(classes)}
    return np.array([places.get(value, -1) for value in values.to_list()], dtype=np.int64), classes


def _check_values_differ(label: pl.Series, table: str) -> None:
    distinct = label.drop_nulls().n_unique()
    if distinct < 2:
        values = "only one value" if distinct else "no values"
        message = f"{table}: the label '{label.name}' has {values}; predict another column"
        raise InputError(message, code="constant-label", table=table, column=label.name)


def blur_identifiers(identifiers: pl.DataFrame, terms: SecondaryTerms, secret: bytes, table: str) -> pl.DataFrame:
    """Move coordinates as the job requires, by a given secret.

    A place moves to the same position in every record and table, because two draws would average out. Lists with
    different blurs draw independently, because two scales of one draw would reveal the place. A position outside the
    range of its encoding is clipped, which costs no privacy.
    """
    blur = terms.blur
    if blur is None:
        return identifiers
    columns = [blur.latitude, blur.longitude]
    places = read_number_columns(identifiers, columns, table)
    blocks = np.ascontiguousarray(places + 0.0).view(keyed_prng.WORD_DTYPE)  # negative zero is the same place
    keys = [
        keyed_prng.derive_subkey(secret, f"{draw} of blur {blur.epsilon_per_km!r}", keyed_prng.BLOCK_KEY_BYTES)
        for draw in BLUR_DRAWS
    ]
    uniform = np.column_stack([keyed_prng.uniform_from_words(keyed_prng.random_words(key, blocks)) for key in keys])
    moved = mechanisms.PlanarLaplace(blur.epsilon).displace(places, uniform)
    ranges = {
        field.column: (field.encoding.low, field.encoding.high)
        for field in reversed(terms.encoding.fields)
        if isinstance(field.encoding, NumericFilter)
    }
    return identifiers.with_columns(
        pl.Series(name, np.clip(moved[:, axis], *ranges[name]) if name in ranges else moved[:, axis])
        for axis, name in enumerate(columns)
    )
