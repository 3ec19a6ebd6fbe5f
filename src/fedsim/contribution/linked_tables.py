"""The tables of a job's secondaries in this process, linked as the job links them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl

from fedsim.config.job import Job
from fedsim.contribution.rungs import LinkedSecondary
from fedsim.data.table_reader import frame_digest
from fedsim.linkage.direct.encrypted_table import EncryptedTable, build_table
from fedsim.linkage.direct.exchange import TokenValues
from fedsim.linkage.direct.oprf import VERIFIABLE, SecretKey, map_batches
from fedsim.linkage.direct.token_schema import TokenSchema
from fedsim.pipeline.direct_linker import DirectLinker
from fedsim.pipeline.linker import FilterLinker
from fedsim.pipeline.party_table import PartyData
from fedsim.pipeline.release import Release, release_table
from fedsim.runs.run_folder import ENCODED_FOLDER, make_private_folder
from fedsim.runtime.run_store import RunStore, network_features
from fedsim.splitnn import Features
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import EncodedTable, Floats32, Integers


class PreparedTable(Protocol):
    """A secondary's table beside that of the primary."""

    def linked(self, training: Integers) -> LinkedSecondary:
        """Return the secondary with its links; what these fit is fitted to the ``training`` records."""
        ...


def prepare_table(job: Job, primary: PartyData, table: PartyData, folder: Path) -> PreparedTable:
    """Return a secondary's table, linked as the job links it; what is drawn once is stored in a folder."""
    sides = Side(primary, RunStore(folder / primary.own.name, job)), Side(table, RunStore(folder / table.own.name, job))
    for side in sides:  # no other party's secret is in it
        make_private_folder(side.store.folder)
    if job.direct:
        return TokenLinkedTable(*sides)
    return FilterLinkedTable(*sides, RunStore(folder, job).secret)


@dataclass(frozen=True, eq=False)
class Side:
    """The table of a party, and what it stores for comparisons."""

    table: PartyData
    store: RunStore


@dataclass(frozen=True, eq=False)
class TableOfJob:
    """The tables of the primary and of a secondary."""

    primary: Side
    secondary: Side

    @property
    def name(self) -> str:
        """The name of the secondary."""
        return self.secondary.table.own.name

    @cached_property
    def features(self) -> Features:
        """The secondary's features with the job's noise."""
        return self.secondary.store.protect_features(network_features(self.secondary.table), self.secondary.table)

    @cached_property
    def embedding(self) -> Floats32:
        """The embedding that a secondary of the job sends."""
        store = self.secondary.store
        return store.embed_features(self.features, self.name, store.own_seed(store.job.seed))

    @cached_property
    def equal(self) -> Integers:
        """The row with the identifiers of every record of the primary, or -1."""
        ours, theirs = (side.table.normalised_identifiers(self.name) for side in (self.primary, self.secondary))
        return exact_match_rows(ours, theirs)


@dataclass(frozen=True, eq=False)
class FilterLinkedTable(TableOfJob):
    """Records are linked as a coordinator with this secret would link them."""

    secret: bytes

    def linked(self, training: Integers) -> LinkedSecondary:
        job, (queries, candidates) = self.secondary.store.job, self._encoded
        links = FilterLinker(self.name, candidates, job.secondaries[self.name].linkage, self.secret).link(
            queries, training
        )
        embedding = self.embedding if job.sends_embedding else None
        features = Features(self.embedding) if job.protection.sealed else self.features
        every = np.arange(len(queries))
        return LinkedSecondary(features, every, links.partner, links.similarity, self.equal, self.name, embedding)

    @cached_property
    def _encoded(self) -> tuple[EncodedTable, EncodedTable]:
        first, second = (side.store.encoded(side.table, self.name) for side in (self.primary, self.secondary))
        return first, second


class ComparisonKey(SecretKey):
    """A key of comparisons, whose values no other party sees: a keyed hash links as the oblivious function does."""

    def evaluate(self, inputs: Iterable[bytes], mode: int = VERIFIABLE) -> list[bytes]:
        return [hmac.digest(self.scalar, bytes([mode]) + text, "sha512") for text in inputs]


@dataclass(frozen=True, eq=False)
class TokenLinkedTable(TableOfJob):
    """Records open rows in an encrypted table; its key serves comparisons in one folder and no job."""

    def linked(self, training: Integers) -> LinkedSecondary:
        links = self._linker.link(self.primary.table.token_identifiers(self.name), training)
        rows, place = np.unique(links.partner, return_inverse=True)
        vectors, every = self._linker.vectors_of(rows), np.arange(len(self.equal))
        # Pseudonyms hide which row is the exact match, but rows with the same vector are one to a model.
        found = {vector.tobytes(): at for at, vector in enumerate(vectors)}
        at = np.array([found.get(vector.tobytes(), -1) for vector in self.embedding] + [-1])
        equal = at[np.append(self._released.place, -1)[self.equal]]
        partner = place.reshape(links.partner.shape)
        unlinked = float((links.partner == self._linker.table.rows).all(axis=1).mean())
        return LinkedSecondary(
            Features(vectors), every, partner, links.similarity, equal, self.name, vectors, unlinked=unlinked
        )

    @cached_property
    def _released(self) -> Release:
        """What the secondary's table shows."""
        table = self.secondary.table
        return release_table(table, self.name, table.fit_features(least=table.job.secondaries[self.name].m or 1))

    @cached_property
    def features(self) -> Features:
        """What is embedded of rows or groups."""
        released = self._released
        return self.secondary.store.protect_features(released.features, self.secondary.table, released.source)

    @cached_property
    def _linker(self) -> DirectLinker:
        store = self.secondary.store
        terms = store.job.secondaries[self.name]
        key = ComparisonKey.derive(store.secret, b"key of comparisons")
        table = self._encrypted(terms.token_schema, key)
        values = self._evaluated(terms.token_schema, key)
        return DirectLinker(self.name, table, terms.k, values, partial(map_batches, key.evaluate_blinded))

    def _encrypted(self, schema: TokenSchema, key: SecretKey) -> EncryptedTable:
        """Return the secondary's table, which is encrypted once."""
        identifiers = self.secondary.table.token_identifiers(self.name)
        released, least = self._released, self.secondary.table.own.policy.least_list_rows
        content = [frame_digest(identifiers), arrays_digest(self.embedding, released.place), str(least)]
        path = self._path(self.secondary, schema, key, *content).with_suffix(".safetensors")
        if not path.is_file():
            build_table(schema, released.tokens, self.embedding, key, min_rows=released.min_rows(least)).save(path)
        return EncryptedTable.load(path, schema)

    def _evaluated(self, schema: TokenSchema, key: SecretKey) -> TokenValues:
        """Return the values of all tokens of the primary; nothing is blinded, because the key is here."""
        values = TokenValues(schema, key.public, self._path(self.primary, schema, key).with_suffix(".values"))
        for place, query in enumerate(schema.query_tokens(self.primary.table.token_identifiers(self.name))):
            tokens = values.missing(place, query.tokens.token)
            if len(tokens):
                found = map_batches(key.evaluate, schema.inputs(place, tokens.tolist()))
                values.add(np.full(len(tokens), place), tokens, list(chain.from_iterable(found)))
        return values

    def _path(self, side: Side, schema: TokenSchema, key: SecretKey, *content: str) -> Path:
        """Return where something is stored that belongs to a schema, a key and a content."""
        name = hashlib.sha256(" ".join([schema.fingerprint.hex(), key.public.hex(), *content]).encode()).hexdigest()
        folder = side.store.folder / ENCODED_FOLDER
        make_private_folder(folder)
        return folder / f"{self.name}-{name[:24]}"


def exact_match_rows(primary: pl.DataFrame, secondary: pl.DataFrame) -> Integers:
    """Return for every primary record the first secondary row whose columns, in order, are all equal, or -1.

    >>> exact_match_rows(pl.DataFrame({"name": ["b", "c"]}), pl.DataFrame({"title": ["a", "b", "b"]})).tolist()
    [1, -1]
    >>> exact_match_rows(pl.DataFrame({"year": [1, 2]}), pl.DataFrame({"year": [2.0, 2.5]})).tolist()
    [-1, 0]
    """
    columns: tuple[list[pl.Series], list[pl.Series]] = [], []
    for place, pair in enumerate(zip(primary, secondary, strict=True)):
        # Numbers of different types are compared as floats, everything else as text.
        numeric = pair[0].dtype != pair[1].dtype and all(column.dtype.is_numeric() for column in pair)
        for side, column in zip(columns, pair, strict=True):
            side.append((column.cast(pl.Float64) if numeric else column).alias(str(place)).cast(pl.String))
    ours, theirs = (pl.DataFrame(side).select(pl.concat_str(pl.all(), separator="\0")).to_series() for side in columns)
    first: dict[str, int] = {}
    for row, key in enumerate(theirs.to_list()):
        if key is not None:
            first.setdefault(key, row)
    return np.array([first.get(key, -1) for key in ours.to_list()], dtype=np.int64)
