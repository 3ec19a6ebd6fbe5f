"""The primary's links: similarities of records and rows from the tokens that they share, and the K best of each.

In the margins, P is the number of pairs of a record and a row that share a token, and F that of fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.linkage.direct.encrypted_table import NO_PLACE, OpenedEntries
from fedsim.linkage.direct.token_kinds import SharedTokens, mix
from fedsim.linkage.direct.token_schema import FieldTokens, TokenSchema
from fedsim.linkage.search.runner import distinct_records
from fedsim.types import Flags, Floats, Integers, Words

N_RIVALS = 3  # other records of the primary that a relative similarity compares with
MIN_TYPICAL = 0.01  # similarity to rivals: dividing by less would only add noise
NOBODY = -1  # the partner of a record that reached fewer than K rows


@dataclass(frozen=True, eq=False)
class FieldRivals:
    """The training records that resemble each row most: ``record`` (rows, 4), hashes, and ``similarity`` (rows, 4)."""

    record: Words
    similarity: Floats

    @classmethod
    def fit(cls, record: Words, row: Integers, similarity: Floats, rows: int) -> FieldRivals:
        """Return the most similar distinct records of every row among pairs."""
        order = np.lexsort((record, -similarity, row))
        pairs = np.column_stack([row[order].astype(np.uint64), record[order]])
        order = order[distinct_records(pairs)[0]]  # records with equal cells are one
        rank = np.arange(len(order)) - np.searchsorted(row[order], row[order])
        order, rank = order[rank <= N_RIVALS], rank[rank <= N_RIVALS]
        found = cls(np.zeros((rows, N_RIVALS + 1), np.uint64), np.zeros((rows, N_RIVALS + 1)))
        found.record[row[order], rank] = record[order]
        found.similarity[row[order], rank] = similarity[order]
        return found

    def typical(self, record: Words, row: Integers) -> Floats:
        """Return, for every pair, the root of the row's mean similarity to the *other* records that resemble it most.

        Names such as those of trading companies resemble many records. The root keeps most of the similarity itself.
        """
        others = np.where(self.record[row] == record[:, np.newaxis], 0.0, self.similarity[row])
        mean = np.sort(others, axis=1)[:, -N_RIVALS:].mean(axis=1)
        return np.asarray(np.sqrt(np.maximum(mean, MIN_TYPICAL)))


@dataclass(frozen=True, eq=False)
class TokenLinks:
    """The K most similar rows of every record, nearest first (ties: lower pseudonym first).

    ``partner`` (n, K) has pseudonyms, or :data:`NOBODY`; ``similarity`` (n, K, F) by field, NaN where the record misses
    it. ``distance`` (n, K) is one minus their weighted mean: 1 for nobody, and negative for a row that resembles the
    record more than a relative similarity expects.
    """

    partner: Integers
    similarity: Floats
    distance: Floats


@dataclass(frozen=True, eq=False)
class TokenPairs:
    """All pairs of a record and a row that share a token.

    ``record`` and ``row`` (P,) ascend; ``similarity`` (P, F) is by field; ``opened`` (P,) says whether the record's own
    tokens determine the row's key. ``cells`` (n, F) hashes the cells of every record, and ``weight`` (n, F) is the
    field's weight, or 0 where the record misses it.
    """

    record: Integers
    row: Integers
    similarity: Floats
    opened: Flags
    cells: Words
    weight: Floats
    relative: Flags  # (F,): whether similarities of the field are relative
    rows: int

    @classmethod
    def of(
        cls, schema: TokenSchema, queries: Sequence[FieldTokens], entries: Sequence[OpenedEntries], rows: int
    ) -> TokenPairs:
        """Compare what the distinct tokens of each field opened, in ascending order of the tokens."""
        n, n_fields = queries[0].n, len(schema.fields)
        shared = [_share_tokens(query, opened, rows) for query, opened in zip(queries, entries, strict=True)]
        pairs = np.unique(np.concatenate([of.pairs for of in shared]))  # record * rows + row
        similarity, shares = np.zeros((len(pairs), n_fields)), []
        cells, weight = np.zeros((n, n_fields), np.uint64), np.zeros((n, n_fields))
        for place, (field, of, query) in enumerate(zip(schema.fields, shared, queries, strict=True)):
            at = np.searchsorted(pairs, of.pairs)
            similarity[at, place] = field.kind.similarity(of.tokens)
            shares.append(np.column_stack([at[of.tokens.pair], entries[place].x[of.entry]]))
            np.add.at(cells[:, place], query.rows[query.tokens.record], mix(query.tokens.token))
            weight[query.rows, place] = field.weight
        distinct = np.unique(np.concatenate(shares), axis=0)  # a share at 0 is the key itself
        counts = np.bincount(distinct[:, 0], np.where(distinct[:, 1] == 0, 2, distinct[:, 1] != NO_PLACE), len(pairs))
        record, row = np.divmod(pairs, rows)
        relative = np.array([field.kind.RIVALS for field in schema.fields])
        return cls(record, row, similarity, counts >= 2, cells, weight, relative, rows)

    def fit_rivals(self, training: Flags) -> list[FieldRivals]:
        """Return the rivals of every row among training records, by field."""
        known = np.flatnonzero(training[self.record])
        record, row = self.record[known], self.row[known]
        return [
            FieldRivals.fit(self.cells[record, place], row, self.similarity[known, place], self.rows)
            for place in range(len(self.relative))
        ]

    def best(self, k: int, rivals: Sequence[FieldRivals], among: Flags) -> TokenLinks:
        """Return the K best of every record among some rows (rows,) and those that its own tokens open."""
        similarity = self.similarity.copy()
        for place in np.flatnonzero(self.relative).tolist():
            similarity[:, place] /= rivals[place].typical(self.cells[self.record, place], self.row)
        weight, (n, n_fields) = self.weight[self.record], self.weight.shape
        distance = 1.0 - (similarity * weight).sum(axis=1) / weight.sum(axis=1)
        similarity[weight == 0] = np.nan
        order = np.flatnonzero(among[self.row] | self.opened)
        order = order[np.lexsort((self.row[order], distance[order], self.record[order]))]
        record = self.record[order]
        rank = np.arange(len(order)) - np.searchsorted(record, record)
        at, order = (record[rank < k], rank[rank < k]), order[rank < k]
        links = TokenLinks(np.full((n, k), NOBODY, np.int64), np.zeros((n, k, n_fields)), np.ones((n, k)))
        links.partner[at], links.similarity[at], links.distance[at] = (
            self.row[order],
            similarity[order],
            distance[order],
        )
        return links


@dataclass(frozen=True, eq=False)
class _Shared:
    """The tokens that records share with rows: their ``pairs``, ascending, and the ``entry`` behind each token."""

    pairs: Integers
    tokens: SharedTokens
    entry: Integers


def _share_tokens(query: FieldTokens, opened: OpenedEntries, rows: int) -> _Shared:
    """Return what records and rows share in one field."""
    tokens = query.tokens
    _, which = np.unique(tokens.token, return_inverse=True)
    start = np.cumsum(opened.length) - opened.length
    counts = opened.length[which]
    shift = start[which] - (np.cumsum(counts) - counts)
    entry = np.arange(counts.sum()) + np.repeat(shift, counts)
    token = np.repeat(np.arange(len(which)), counts)
    pair = query.rows[tokens.record[token]] * rows + opened.row[entry]
    order = np.argsort(pair, kind="stable")
    token, entry, pair = token[order], entry[order], pair[order]
    pairs, first, pair = np.unique(pair, return_index=True, return_inverse=True)
    shared = SharedTokens(
        pair=pair,
        part=tokens.part[token],
        length=counts[token],
        record=tokens.record[token[first]],
        hint=opened.hint[entry[first]],
        own=tokens,
        columns=query.columns,
        rows=rows,
    )
    return _Shared(pairs, shared, entry)
