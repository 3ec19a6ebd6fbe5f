"""What leaves of a secondary's table in a job without a coordinator: rows or groups, and the features of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from fedsim.data.features import FeaturePreprocessor
from fedsim.errors import SettingError
from fedsim.linkage.direct.groups import LEFT_OUT, Grouping, RecordedGroups, average_features
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.linkage.direct.token_schema import FieldTokens
from fedsim.pipeline.party_table import PartyData
from fedsim.storage.files import record_digest
from fedsim.types import Features, Integers, Words


@dataclass(frozen=True, eq=False)
class Release:
    """What an encrypted table lists: ``tokens`` by field and ``features`` of the u entries, rows or groups.

    ``place`` (n,) says where every row of the table stands among them, or -1; ``source`` (u,) numbers the row or group
    whose features an entry shows; ``lists_rows`` whether entries are rows.
    """

    tokens: list[FieldTokens]
    features: Features
    place: Integers
    source: Integers
    lists_rows: bool

    @property
    def vectors(self) -> int:
        """The number of rows or groups whose features are shown."""
        return len(np.unique(self.source))

    def min_rows(self, least: int) -> int:
        """Return of how many entries a token is listed at least, if the owner wants so many rows under each."""
        return least if self.lists_rows else 1


def release_table(
    table: PartyData, name: str, preparation: FeaturePreprocessor, keys: KeyStore | None = None
) -> Release:
    """Return what a secondary's table shows by the terms of its job.

    Parameters
    ----------
    table
        The secondary's table.
    name
        The secondary.
    preparation
        How its features become numbers, unless groups were recorded with another one.
    keys
        Where groups and terms are recorded for all jobs; without it nothing is recorded.
    """
    terms = table.job.secondaries[name]
    schema, level, m = terms.token_schema, terms.level, terms.m or 1
    fields = schema.row_tokens(table.token_identifiers(name), table.source)
    n = len(table)
    bound = bound_terms(table, name)
    if m == 1:
        if keys is not None:
            keys.require_terms(name, bound)
        every = np.arange(n)
        return Release(fields, preparation.apply(table.typed_features), every, every, lists_rows=True)
    used = preparation

    def update(known: RecordedGroups) -> tuple[Grouping, RecordedGroups]:
        nonlocal used
        used = FeaturePreprocessor.from_json(known.preparation) if known.preparation else preparation
        features, marked = used.apply(table.typed_features), used.marks_gaps(table.typed_features)

        def group(rows: Integers) -> Grouping:
            usable = marked[rows]
            formed = level.group([of.take(rows[usable]) for of in fields], features.take(rows[usable]), m)
            found, at = np.full(len(rows), LEFT_OUT), np.zeros(len(rows), np.int64)
            found[usable], at[usable] = formed.group, formed.level
            return Grouping(found, at)

        # Cells that are written in another way are the same: a record that looks new is grouped anew.
        identifiers = table.normalised_identifiers(name)
        own = table.typed_features.select(pl.all().name.prefix("of "))
        recorded = known if known.preparation else replace(known, preparation=used.to_json())
        return recorded.assign(_words(pl.concat([identifiers, own], how="horizontal")), _words(identifiers), group)

    grouping = update(RecordedGroups.empty())[0] if keys is None else keys.update_groups(name, bound, update)
    listing = level.list(schema, fields, grouping)
    if not len(listing.group):
        message = f"{table.own.party} has no group of {m} records left to show; choose a smaller m or larger cells"
        raise SettingError(message, code="no-groups", m=m)
    averages = average_features(used.apply(table.typed_features), used.gaps, grouping.group, m)
    number = np.unique(grouping.group[grouping.group >= 0])
    source = np.searchsorted(number, listing.group)
    return Release(listing.tokens, averages.take(source), listing.place, source, level.LISTS_ROWS)


def bound_terms(table: PartyData, name: str) -> dict[str, Any]:
    """Return the terms of a job that a table keeps for life."""
    terms = table.job.secondaries[name]
    found: dict[str, Any] = {"share": terms.share, "m": terms.m, "columns": sorted(table.columns.features or ())}
    found |= {"identifiers": table.columns.identifiers[name]}
    return found | terms.level.bound(terms.token_schema)


def _words(frame: pl.DataFrame) -> Words:
    """Return a digest of the cells of every row, in which equal numbers are equal, of whatever type."""
    columns = frame.select(sorted(frame.columns)).with_columns(cs.numeric().cast(pl.Float64) + 0.0)
    texts = columns.select(pl.all().cast(pl.String).fill_null("\0"))
    lines = texts.select(pl.concat_str(pl.all(), separator="\x1f")).to_series()
    digests = b"".join(record_digest(line.encode())[:8] for line in lines)
    return np.frombuffer(digests, "<u8").astype(np.uint64)
