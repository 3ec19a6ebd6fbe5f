"""The kernels of ``gpu_search.cu`` in NumPy, on the same arrays: what surrounds them is tested without a card."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsim_ops import gpu_search

CPU = torch.device("cpu")


def emulate_card(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Let searches on CUDA devices run here."""

    def launch(kernel, device, grid, *structures):
        KERNELS[kernel.name](dict(kernel.settings), *structures)

    monkeypatch.setattr(gpu_search.Kernel, "launch", launch)
    monkeypatch.setattr(gpu_search, "candidates_fitting", lambda device, size: 10**9)
    monkeypatch.setattr(gpu_search, "devices", lambda: [CPU])
    return [CPU]


def offer(distance, rows, lists):
    """What beats the limit is appended; beyond the room it is only counted."""
    kept, kept_rows, count, limit, limit_row, room = lists
    distance, rows = torch.from_numpy(distance), torch.from_numpy(rows)
    for query in np.flatnonzero(limit >= 0).tolist():  # the others are padding
        near = distance[query] < limit[query]
        near |= (distance[query] == limit[query]) & (rows < limit_row[query])
        begin, found = int(count[query]), int(near.sum())
        taken = max(0, min(room - begin, found))
        kept[query, begin : begin + taken] = distance[query, near][:taken]
        kept_rows[query, begin : begin + taken] = rows[near][:taken]
        count[query] += found


def select_best(settings, lists, k):
    distance, rows, count, limit, limit_row, room = lists
    for query in np.flatnonzero(limit >= 0).tolist():
        filled = min(int(count[query]), room)
        order = np.lexsort((rows[query, :filled].numpy(), distance[query, :filled].numpy()))[: k[0]]
        distance[query, : len(order)] = distance[query, order]
        rows[query, : len(order)] = rows[query, order]
        count[query] = len(order)
        if len(order) == k[0]:
            limit[query], limit_row[query] = distance[query, k[0] - 1], rows[query, k[0] - 1]


def unpack(filters):
    tiles, slabs, rows, _, _ = filters.shape
    plain = np.empty_like(filters.numpy())
    for row in range(rows):
        for chunk in range(8):
            plain[:, :, row, chunk] = filters[:, :, row, chunk ^ (row % 8)]
    return plain.transpose(0, 2, 1, 3, 4).reshape(tiles * rows, 16 * slabs).view(np.uint64)


def search_filters(settings, filters, lists):
    queries, query_ones, candidates, candidate_ones, order, n, first, last = filters
    rows = slice(128 * first, min(n, 128 * last))
    left, right = unpack(queries), unpack(candidates)[rows]
    assert (np.bitwise_count(left).sum(1)[: len(query_ones)] == query_ones.numpy()).all()
    assert (np.bitwise_count(right).sum(1) == candidate_ones[rows].numpy()).all()
    offer(filter_distances(left[: len(query_ones)], right, dice=settings["DICE"]), order.numpy()[rows], lists)


def search_points(settings, points, lists):
    queries, candidates, order, first, last = points
    assert settings["DIMENSIONS"] == queries.shape[1]
    offer(euclidean(queries.numpy(), candidates[first:last].numpy()), order[first:last].numpy(), lists)


def search_texts(settings, texts, lists):
    equal, query_lengths, chars, starts, lengths, order, _, first, last = texts
    words = equal.numpy().view(np.uint32).transpose(0, 3, 1, 2).astype(object)  # (blocks, 128, characters, words)
    tables = (words << [32 * word for word in range(settings["WORDS"])]).sum(axis=3).reshape(-1, words.shape[2])
    distance = np.zeros((len(query_lengths), last - first))
    for query in np.flatnonzero(lists[3] >= 0).tolist():
        length = int(query_lengths[query])
        for place in range(first, last):
            codes = chars[4 * starts[place] : 4 * starts[place] + lengths[place]].tolist()
            edits = myers([tables[query, code] for code in codes], length)
            most = max(length, len(codes), 1)
            distance[query, place - first] = edits / most if settings["NORMALISED"] else edits
    offer(distance, order[first:last].numpy(), lists)


def myers(columns, length):
    """The edit distance from which characters of a query equal each character of a text (Myers 1999)."""
    mask = (1 << length) - 1
    plus, minus = mask, 0
    for equal in columns:
        diagonal = (((equal & plus) + plus) ^ plus) | equal | minus
        rise, fall = minus | ~(diagonal | plus), plus & diagonal
        plus, minus = (
            ((fall << 1) | ~(equal | minus | (rise << 1) | 1)) & mask,
            ((rise << 1) | 1) & (equal | minus) & mask,
        )
    return len(columns) + plus.bit_count() - minus.bit_count()


def filter_distances(left, right, *, dice):
    ones = np.bitwise_count(left).sum(1)[:, None] + np.bitwise_count(right).sum(1)
    differing = np.array([np.bitwise_count(one ^ right).sum(1) for one in left], np.float64)
    return differing / np.maximum(ones, 1) if dice else differing


def euclidean(left, right):
    return np.sqrt(sum(np.square(left[:, axis, None] - right[None, :, axis]) for axis in range(left.shape[1])))


def edit_distances(left, right, normalised):
    def edits(one, other):
        row = list(range(len(other) + 1))
        for i, char in enumerate(one, 1):
            before, row[0] = row[0], i
            for j, there in enumerate(other, 1):
                before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (char != there))
        return row[-1] / max(len(one), len(other), 1) if normalised else row[-1]

    return np.array([[edits(one, other) for other in right] for one in left], np.float64)


KERNELS = {
    "select_best": select_best,
    "search_filters": search_filters,
    "search_points": search_points,
    "search_texts": search_texts,
}
