"""The primary's links: similarities of records and rows from the tokens that they share, and the K best of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.linkage.direct.encrypted_table import OpenedEntries
from fedsim.linkage.direct.token_kinds import SharedTokens
from fedsim.linkage.direct.token_schema import FieldTokens, TokenSchema
from fedsim.types import AnyArray, Flags, Floats, Integers

N_RIVALS = 3  # records of the primary that a relative similarity compares with
NOBODY = -1  # the partner of a record that reached fewer than K rows


@dataclass(frozen=True, eq=False)
class TokenLinks:
    """The K most similar rows of every record, nearest first (ties: lower pseudonym first).

    ``partner`` (n, K) has pseudonyms, or :data:`NOBODY`; ``similarity`` (n, K, F) by field, and ``distance`` (n, K) is
    one minus their weighted mean, negative for a row that is more similar than a relative similarity expects, and 1 for
    nobody. ``reached`` (n,) counts the rows that shared a token, and ``opened`` (n,) those among them whose key the
    record's own tokens determine.
    """

    partner: Integers
    similarity: Floats
    distance: Floats
    reached: Integers
    opened: Integers


def link_tokens(
    schema: TokenSchema,
    queries: Sequence[FieldTokens],
    entries: Sequence[OpenedEntries],
    rows: int,
    k: int,
    among: Flags | None = None,
) -> TokenLinks:
    """Return the links of records.

    Parameters
    ----------
    schema
        The job's schema.
    queries
        The records' tokens by field.
    entries
        What the distinct tokens of each field opened, in ascending order of the tokens.
    rows
        The number of rows of the table.
    k
        The number of partners per record.
    among
        Which rows can be partners, (rows,): those whose vectors could be opened. Others still count as rivals' rows.
    """
    n, n_fields = queries[0].n, len(schema.fields)
    shared = [_share_tokens(query, opened, rows) for query, opened in zip(queries, entries, strict=True)]
    pairs = np.unique(np.concatenate([of.pairs for of in shared]))  # (P,) record * rows + row
    record, row = np.divmod(pairs, max(1, rows))
    similarity, weight = np.zeros((len(pairs), n_fields)), np.zeros((n, n_fields))
    for place, (of, query, field) in enumerate(zip(shared, queries, schema.fields, strict=True)):
        found = field.kind.similarity(of.tokens) if len(of.pairs) else np.zeros(0)
        if field.kind.RIVALS:
            found = found / _typical(of.pairs % max(1, rows), found, rows)
        similarity[np.searchsorted(pairs, of.pairs), place] = found
        weight[query.rows, place] = field.weight
    distance = 1.0 - (similarity * weight[record]).sum(axis=1) / weight.sum(axis=1)[record]
    enough = _opened_by_record(pairs, shared, entries)
    counts = np.bincount(record, minlength=n), np.bincount(record[enough], minlength=n)
    kept = np.arange(len(pairs)) if among is None else np.flatnonzero(among[row])
    best = kept[np.lexsort((row[kept], distance[kept], record[kept]))]
    rank = np.arange(len(best)) - np.searchsorted(record[best], record[best])
    best, rank = best[rank < k], rank[rank < k]
    links = TokenLinks(
        np.full((n, k), NOBODY, np.int64), np.zeros((n, k, n_fields)), np.ones((n, k)), counts[0], counts[1]
    )
    links.partner[record[best], rank] = row[best]
    links.similarity[record[best], rank] = similarity[best]
    links.distance[record[best], rank] = distance[best]
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
    record = tokens.record[token]
    pairs, first, pair = np.unique(
        query.rows[record] * rows + opened.row[entry], return_index=True, return_inverse=True
    )
    order = np.argsort(pair, kind="stable")
    token, entry, pair = token[order], entry[order], pair[order]
    shared = SharedTokens(
        pair=pair,
        part=tokens.part[token],
        length=counts[token],
        record=record[first],
        hint=opened.hint[entry[np.searchsorted(pair, np.arange(len(pairs)))]],
        own=tokens,
        columns=query.columns,
        rows=rows,
    )
    return _Shared(pairs, shared, entry)


def _typical(row: Integers, similarity: Floats, rows: int) -> Floats:
    """Return, for every pair, the root of the mean of the row's best similarities to any record.

    Names such as those of trading companies resemble many records. The root keeps most of the similarity itself.
    """
    order = np.lexsort((-similarity, row))
    ordered = row[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    best = order[rank < N_RIVALS]
    mean = np.bincount(row[best], similarity[best], rows) / N_RIVALS
    return np.asarray(np.sqrt(mean[row]))


def _opened_by_record(pairs: Integers, shared: Sequence[_Shared], entries: Sequence[OpenedEntries]) -> Flags:
    """Return which pairs share enough tokens to determine the row's key: one that is alone, or two different shares."""
    seen: list[AnyArray] = []
    for of, opened in zip(shared, entries, strict=True):
        seen.append(np.column_stack([np.searchsorted(pairs, of.pairs)[of.tokens.pair], opened.x[of.entry]]))
    distinct = np.unique(np.concatenate(seen), axis=0)
    count = np.bincount(distinct[:, 0], np.where(distinct[:, 1] == 0, 2, 1), len(pairs))
    return np.asarray(count >= 2)
