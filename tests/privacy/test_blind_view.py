"""What a blind coordinator receives does not depend on the encodings."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from blind_fixtures import link_blindly
from fedsim.linkage import blind_linkage
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.protocol.transport import decode
from fedsim.types import EncodedTable

N_BITS, RECORDS, ROWS = 64, 60, 1200
LINKING = LinkageConfig("hamming", 3)


def table(rng, records, density):
    return EncodedTable(np.packbits(rng.random((records, N_BITS)) < density, axis=1), N_BITS, "ab" * 32)


def received(folder, tables):
    """All messages that the coordinator received from the primary and from the secondary, and their sizes."""
    frames: tuple[list[bytes], list[bytes]] = [], []
    link_blindly(folder, tables, LINKING, frames)
    return [[decode(frame).message for frame in side] for side in frames], [list(map(len, side)) for side in frames]


def shares(messages):
    """The shares of one sender in the order of the tiles, (rows, candidates)."""
    parts = {message.first: message.values for message in messages if message.kind == "share"}
    return np.concatenate([parts[first] for first in sorted(parts)])


@pytest.fixture(scope="module")
def dense_and_sparse(tmp_path_factory):
    """All that reaches the coordinator from two very different pairs of tables of the same size."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("blind")
    pairs = [(table(rng, ROWS, density), table(rng, RECORDS, density)) for density in (0.5, 0.2)]
    return [received(folder / str(place), pair) for place, pair in enumerate(pairs)]


def test_messages_sizes_and_kinds_are_the_same(dense_and_sparse):
    (dense, sizes), (_, other_sizes) = dense_and_sparse
    assert sizes == other_sizes
    kinds = {message.kind for side in dense for message in side}
    assert kinds == {"blind-candidates", "blind-queries", "ask-correction", "share"}


@pytest.mark.parametrize("sender", [0, 1], ids=["primary", "secondary"])
def test_no_classifier_tells_the_shares_of_two_different_tables_apart(dense_and_sparse, sender):
    both = np.concatenate([shares(messages[sender]) for messages, _ in dense_and_sparse])
    rows, truth = np.unpackbits(both.view(np.uint8), axis=1).astype(float), np.repeat([0, 1], ROWS)
    order = np.random.default_rng(1).permutation(len(rows))
    train, test = order[: len(rows) // 2], order[len(rows) // 2 :]
    model = LogisticRegression(C=0.01, max_iter=200).fit(rows[train], truth[train])
    auc = roc_auc_score(truth[test], model.predict_proba(rows[test])[:, 1])
    error = np.sqrt((len(test) + 1) / (3.0 * len(test) ** 2))  # of an AUC of one half, with classes of equal size
    assert abs(auc - 0.5) < 4 * error
    assert abs(rows.mean() - 0.5) < 0.005
    lowest = (both & 1).mean(axis=1)  # of a doubled share it would be the same in a whole row
    assert lowest.std() == pytest.approx(0.5 / np.sqrt(RECORDS), rel=0.1)


def test_only_the_sum_of_both_shares_shows_how_distances_differ(dense_and_sparse):
    totals = [shares(messages[0]) + shares(messages[1]) for messages, _ in dense_and_sparse]
    spread = [(total - total[:, :1]).view(np.int16).std(axis=1) for total in totals]
    alone = [(one - one[:, :1]).view(np.int16).std(axis=1) for one in (shares(m[0]) for m, _ in dense_and_sparse)]
    truth = np.repeat([0, 1], ROWS)
    assert abs(roc_auc_score(truth, np.concatenate(spread)) - 0.5) > 0.05
    assert abs(roc_auc_score(truth, np.concatenate(alone)) - 0.5) < 0.05


def test_tables_that_differ_by_a_secret_pattern_open_to_the_same_lists(tmp_path):
    rng = np.random.default_rng(2)
    left, right, pattern = table(rng, 30, 0.5), table(rng, 20, 0.5), rng.integers(0, 256, N_BITS // 8, np.uint8)
    moved = [EncodedTable(one.bits ^ pattern, N_BITS, one.fingerprint) for one in (left, right)]
    views = []
    for place, pair in enumerate(((left, right), tuple(moved))):
        messages, _ = received(tmp_path / str(place), pair)
        one, other = map(shares, messages)
        opened = np.sort((one + other - (one + other)[:, :1]).view(np.int16), axis=1).astype(int)
        views.append(np.sort(opened - opened[:, :1], axis=0))
    assert np.array_equal(*views)
    assert np.array_equal(views[0], np.sort(blind_linkage.opened_view(left, right, "hamming"), axis=0))
