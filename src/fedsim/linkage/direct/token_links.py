"""The primary's links: similarities of records and rows from the tokens that they share, and the K best of each.

In the margins, P is the number of pairs of a record and a row that share a token, and F that of fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.linkage.direct.encrypted_table import NO_PLACE, OpenedEntries
from fedsim.linkage.direct.token_kinds import SharedTokens, distinct, mix
from fedsim.linkage.direct.token_schema import FieldTokens, TokenField, TokenSchema
from fedsim.linkage.search.runner import distinct_records
from fedsim.types import Flags, Floats, Integers, Words

N_RIVALS = 3  # other records of the primary that a relative similarity compares with
MIN_TYPICAL = 0.01  # similarity to rivals: dividing by less would only add noise
BLOCK_ENTRIES = 1 << 20
NEARLY = 1e-9  # distances that the order of pairs may tell apart, but not the choice of those that are kept
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
        cls,
        schema: TokenSchema,
        queries: Sequence[FieldTokens],
        entries: Sequence[OpenedEntries],
        rows: int,
        k: int | None = None,
    ) -> TokenPairs:
        """Compare what the distinct tokens of each field opened, in ascending order of the tokens.

        If ``k`` is given, pairs with nothing in common in relative fields are left out unless they are among the K best
        of their record: such rows have no rivals, and the record's own tokens open them.
        """
        n, fields = queries[0].n, schema.fields
        cells, weight = np.zeros((n, len(fields)), np.uint64), np.zeros((n, len(fields)))
        for place, (field, query) in enumerate(zip(fields, queries, strict=True)):
            np.add.at(cells[:, place], query.rows[query.tokens.record], mix(query.tokens.token))
            weight[query.rows, place] = field.weight
        relative = np.array([field.kind.RIVALS for field in fields])
        shared = [_FieldEntries.of(query, opened, rows) for query, opened in zip(queries, entries, strict=True)]
        counts = np.sum([of.counts_by_record() for of in shared], axis=0)
        found = []
        for block in _blocks(counts):
            pairs, similarity, opened = _compare(fields, [of.shared_with(block) for of in shared])
            if k is not None:
                kept = np.asarray(similarity[:, relative].any(axis=1))
                record = pairs[~kept] // rows
                kept[~kept] = _nearest(record, _distances(similarity[~kept], weight[record]), k)
                pairs, similarity, opened = pairs[kept], similarity[kept], opened[kept]
            found.append((pairs, similarity, opened))
        pairs, similarity, opened = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return cls(*np.divmod(pairs, rows), similarity, opened, cells, weight, relative, rows)

    def fit_rivals(self, training: Flags) -> list[FieldRivals]:
        """Return the rivals of every row among training records, by field; nobody where similarities are absolute."""
        every, none = np.flatnonzero(training[self.record]), np.zeros(0, np.int64)
        rivals = []
        for place, relative in enumerate(self.relative.tolist()):
            known = every if relative else none
            record, row, similarity = self.record[known], self.row[known], self.similarity[known, place]
            rivals.append(FieldRivals.fit(self.cells[record, place], row, similarity, self.rows))
        return rivals

    def best(self, k: int, rivals: Sequence[FieldRivals], among: Flags) -> TokenLinks:
        """Return the K best of every record among some rows (rows,) and those that its own tokens open."""
        similarity = self.similarity.copy()
        for place in np.flatnonzero(self.relative).tolist():
            similarity[:, place] /= rivals[place].typical(self.cells[self.record, place], self.row)
        weight, (n, n_fields) = self.weight[self.record], self.weight.shape
        distance = _distances(similarity, weight)
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


# Pairs are found for a block of records at a time, because records share places with hundreds of rows


@dataclass(frozen=True, eq=False)
class _Shared:
    """The tokens that records share with rows: their ``pairs``, ascending, and where each token's share lies, ``x``."""

    pairs: Integers
    tokens: SharedTokens
    x: Integers


@dataclass(frozen=True, eq=False)
class _FieldEntries:
    """The tokens of all records in one field: ``record`` (T,), and ``which`` (T,) of those that were opened."""

    query: FieldTokens
    opened: OpenedEntries
    record: Integers
    which: Integers
    rows: int

    @classmethod
    def of(cls, query: FieldTokens, opened: OpenedEntries, rows: int) -> _FieldEntries:
        which = np.unique(query.tokens.token, return_inverse=True)[1]
        return cls(query, opened, query.rows[query.tokens.record], which, rows)

    def counts_by_record(self) -> Integers:
        """Return how many entries the tokens of every record opened, (n,)."""
        counts = np.zeros(self.query.n, np.int64)
        np.add.at(counts, self.record, self.opened.length[self.which])
        return counts

    def shared_with(self, block: slice) -> _Shared:
        """Return what records and rows share."""
        opened, query = self.opened, self.query
        here = slice(*np.searchsorted(self.record, [block.start, block.stop]).tolist())
        tokens, which = query.tokens.take(here), self.which[here]
        counts = opened.length[which]
        shift = (np.cumsum(opened.length) - opened.length)[which] - (np.cumsum(counts) - counts)
        entry = np.arange(counts.sum()) + np.repeat(shift, counts)
        token = np.repeat(np.arange(len(which)), counts)
        pair = self.record[here][token] * self.rows + opened.row[entry]
        order = np.argsort(pair, kind="stable")
        token, entry, pair = token[order], entry[order], pair[order]
        new = np.append(True, pair[1:] != pair[:-1])[: len(pair)]
        first = np.flatnonzero(new)
        shared = SharedTokens(
            pair=np.cumsum(new) - 1,
            part=tokens.part[token],
            length=counts[token],
            record=tokens.record[token[first]],
            hint=opened.hint[entry[first]],
            own=tokens,
            columns=query.columns,
            rows=self.rows,
        )
        return _Shared(pair[first], shared, opened.x[entry])


def _blocks(counts: Integers) -> Iterator[slice]:
    """Yield ranges of records that opened about ``BLOCK_ENTRIES`` entries each; at least one range."""
    ends = np.cumsum(counts)
    edges = np.searchsorted(ends, np.arange(BLOCK_ENTRIES, ends[-1] if len(ends) else 0, BLOCK_ENTRIES), side="right")
    cuts = np.unique([0, *edges.tolist(), len(counts)]).tolist() if len(counts) else [0, 0]
    yield from map(slice, cuts[:-1], cuts[1:])


def _compare(fields: Sequence[TokenField], shared: Sequence[_Shared]) -> tuple[Integers, Floats, Flags]:
    """Return the pairs of some records, their similarities by field, and whether the record's tokens open the row."""
    pairs = distinct(np.concatenate([of.pairs for of in shared]))  # record * rows + row
    similarity, opened, shares = np.zeros((len(pairs), len(fields))), np.zeros(len(pairs), np.bool_), []
    for place, (field, of) in enumerate(zip(fields, shared, strict=True)):
        at = np.searchsorted(pairs, of.pairs)
        similarity[at, place] = field.kind.similarity(of.tokens)
        pair = at[of.tokens.pair]
        opened[pair[of.x == 0]] = True  # a share at 0 is the key itself
        useful = (of.x != 0) & (of.x != NO_PLACE)
        shares.append(pair[useful] << 32 | of.x[useful])
    counts = np.bincount(distinct(np.concatenate(shares)) >> 32, minlength=len(pairs))
    return pairs, similarity, opened | (counts >= 2)


def _distances(similarity: Floats, weight: Floats) -> Floats:
    return np.asarray(1.0 - (similarity * weight).sum(axis=1) / weight.sum(axis=1))


def _nearest(record: Integers, distance: Floats, k: int) -> Flags:
    """Return which pairs, in order of records, are among the K nearest of their record; and all that are as near."""
    _, start, which, counts = np.unique(record, return_index=True, return_inverse=True, return_counts=True)
    key = which + distance / 2  # distances of absolute similarities are between 0 and 1
    limit = np.sort(key)[start + np.minimum(k, counts) - 1] if len(start) else key
    return np.asarray(key <= limit[which] + NEARLY)
