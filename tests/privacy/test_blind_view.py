"""What each role of a blind linkage receives, byte by byte, and what of it depends on the encodings.

*Independent of both tables*, given their sizes: each share that the coordinator receives, the masked vectors that the
parties exchange, and the corrections. *Dependent*: the sum of both shares, which shows the coordinator the profile of
each row, the unordered list of its distances up to a shift. Tables with the same profiles look the same to it.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from blind_fixtures import PRIMARY, SECONDARY, link_blindly
from fedsim.linkage import blind_linkage
from fedsim.linkage.encoding.positions import pack_positions
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.privacy.keyed_prng import derive_subkey
from fedsim.protocol.transport import decode
from fedsim.types import EncodedTable
from session_fixtures import CITY, NOTARY, RENTALS

N_BITS, RECORDS, ROWS, TILE = 64, 60, 1200, 400
AXES, PLACES = 3, 20
LINKING = LinkageConfig("hamming", 3)


def table(rng, records, density):
    return EncodedTable(np.packbits(rng.random((records, N_BITS)) < density, axis=1), N_BITS, "ab" * 32)


def record_messages(folder, tables, linking=LINKING, **given):
    """Link two tables in tiles of 400 rows and blocks of 16; return all messages by sender and receiver, and frames."""
    frames = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blind_linkage, "TILE_PAIRS", TILE * len(tables[1]))
        patch.setattr(blind_linkage, "VECTORS_PER_BLOCK", 16)
        link_blindly(folder, tables, linking, frames, **given)
    return {way: [decode(frame).message for frame in sent] for way, sent in frames.items()}, frames


def values(messages, kind):
    """The values of all messages of a kind, one below the other; tiles and blocks come in order."""
    return np.concatenate([message.values for message in messages if message.kind == kind])


def shares(messages):
    """The shares that the coordinator received from the primary and from the secondary, (rows, candidates) each."""
    return [values(messages[party, NOTARY], "share") for party in (CITY, RENTALS)]


def deals(messages):
    """The seeds that primary and secondary were dealt."""
    return [messages[NOTARY, party][0].masks.tobytes() for party in (CITY, RENTALS)]


def as_bits(rows):
    return np.unpackbits(np.ascontiguousarray(rows).view(np.uint8), axis=1).astype(float)


def assert_uniform(numbers):
    """Check that every byte of the numbers takes each of its values as often as uniform numbers would."""
    raw = np.ascontiguousarray(numbers).reshape(-1, 1).view(np.uint8)  # (count, bytes)
    expected, freedom = len(raw) / 256, 255
    for place in raw.T:
        statistic = ((np.bincount(place, minlength=256) - expected) ** 2 / expected).sum()
        assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def assert_indistinguishable(left, right):
    """Check that a classifier trained on half of the rows cannot tell from which side the others are."""
    rows, truth = np.concatenate([left, right]), np.repeat([0, 1], [len(left), len(right)])
    order = np.random.default_rng(1).permutation(len(rows))
    train, test = order[: len(rows) // 2], order[len(rows) // 2 :]
    model = LogisticRegression(C=0.01, max_iter=500).fit(rows[train], truth[train])
    auc = roc_auc_score(truth[test], model.predict_proba(rows[test])[:, 1])
    error = np.sqrt((len(test) + 1) / (3.0 * len(test) ** 2))  # of an AUC of one half, with classes of equal size
    assert abs(auc - 0.5) < 4 * error


@pytest.fixture(scope="module")
def dense_and_sparse(tmp_path_factory):
    """All that is sent for two very different pairs of tables of the same size."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("blind")
    pairs = [(table(rng, ROWS, density), table(rng, RECORDS, density)) for density in (0.5, 0.2)]
    return [record_messages(folder / str(place), pair) for place, pair in enumerate(pairs)]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Two tables of places, in which no two distances of a record are equal, and all messages of their linkage."""
    rng = np.random.default_rng(3)
    packed = [pack_positions(rng.integers(-(10**6), 10**6, (size, AXES)).astype(float)) for size in (ROWS, PLACES)]
    tables = tuple(EncodedTable(bits, 32 * AXES, "ab" * 32) for bits in packed)
    linking = LinkageConfig("position", 3)
    return tables, record_messages(tmp_path_factory.mktemp("places"), tables, linking)[0]


def test_messages_sizes_and_kinds_are_the_same(dense_and_sparse):
    (dense, frames), (_, others) = dense_and_sparse
    for party in (CITY, RENTALS):
        assert list(map(len, frames[party, NOTARY])) == list(map(len, others[party, NOTARY]))
    kinds = {message.kind for party in (CITY, RENTALS) for message in dense[party, NOTARY]}
    assert kinds == {"blind-candidates", "blind-queries", "ask-correction", "share"}
    own = [{message.kind for message in dense[way]} for way in ((CITY, RENTALS), (RENTALS, CITY))]
    assert own[0] == {"blind-begin", "ask-vectors", "masked-tile", "ask-members"}
    assert own[1] == {"blind-ready", "masked-vectors", "done", "members"}


# The coordinator


@pytest.mark.parametrize("sender", [0, 1], ids=["primary", "secondary"])
def test_no_classifier_tells_the_shares_of_two_different_tables_apart(dense_and_sparse, sender):
    dense, sparse = (shares(messages)[sender] for messages, _ in dense_and_sparse)
    assert_indistinguishable(as_bits(dense), as_bits(sparse))
    for share in (dense, sparse):
        assert_uniform(share)
        lowest = (share & 1).mean(axis=1)  # of a doubled share it would be the same in a whole row
        assert lowest.std() == pytest.approx(0.5 / np.sqrt(RECORDS), rel=0.1)
        between_tiles = share[TILE:] - share[:-TILE]  # whose blindings must not cancel
        assert_uniform(between_tiles[:, ::2] - between_tiles[:, 1::2])


def test_only_the_sum_of_both_shares_shows_how_distances_differ(dense_and_sparse):
    both = [shares(messages) for messages, _ in dense_and_sparse]
    spread = [(one + other - (one + other)[:, :1]).view(np.int16).std(axis=1) for one, other in both]
    alone = [(one - one[:, :1]).view(np.int16).std(axis=1) for one, _ in both]
    truth = np.repeat([0, 1], ROWS)
    assert abs(roc_auc_score(truth, np.concatenate(spread)) - 0.5) > 0.05
    assert abs(roc_auc_score(truth, np.concatenate(alone)) - 0.5) < 0.05


def test_tables_with_the_same_profiles_are_the_same_in_all_that_the_coordinator_receives(tmp_path):
    rng = np.random.default_rng(2)
    near_and_far = EncodedTable(
        np.packbits(rng.random((RECORDS, N_BITS)) < np.linspace(0, 1, RECORDS)[:, None], axis=1), N_BITS, "ab" * 32
    )
    pair, pattern = (table(rng, ROWS, 0.1), near_and_far), rng.integers(0, 256, N_BITS // 8, np.uint8)
    moved = tuple(EncodedTable(one.bits ^ pattern, N_BITS, one.fingerprint) for one in pair)
    profiles, views = [], []
    for place, tables in enumerate((pair, moved)):
        messages, _ = record_messages(tmp_path / str(place), tables)
        one, other = shares(messages)
        opened = (one + other - (one + other)[:, :1]).view(np.int16).astype(int)
        opened -= opened.min(axis=1, keepdims=True)
        names = messages[CITY, NOTARY][0].records[:, None]
        profiles.append(np.sort(opened, axis=1)[np.lexsort(np.sort(opened, axis=1).T)])
        views.append(np.hstack([as_bits(one), as_bits(other), as_bits(names), opened / opened.std()]))
    assert np.array_equal(*profiles)
    expected = blind_linkage.opened_view(*pair, "hamming")
    assert np.array_equal(profiles[0], expected[np.lexsort(expected.T)])
    assert_indistinguishable(*views)


def opened_places(tables, messages):
    """What the coordinator opens of places, (ROWS, PLACES), and the squared distances in the order of both parties."""
    metric = blind_linkage.blind_metric("position", 32 * AXES)
    queries = blind_linkage.blind_queries(tables[0], metric, PRIMARY, "rentals").vectors.rows.astype(np.int64)
    candidates = blind_linkage.blind_candidates(tables[1], metric, SECONDARY, "rentals").vectors.rows.astype(np.int64)
    one, other = shares(messages)
    return one + other, np.square(queries[:, None] - candidates[None]).sum(axis=2)


def find_columns(opened, squared):
    """Return which candidate each opened number belongs to; distances of a row are distinct and betray it."""
    relative = (opened - opened[:, :1]).view(np.int64)
    found = np.empty(squared.shape, np.int64)
    np.put_along_axis(found, np.argsort(relative, axis=1), np.argsort(squared, axis=1), axis=1)
    return found


def test_the_coordinator_opens_every_row_in_an_order_of_its_own(places):
    columns = find_columns(*opened_places(*places))
    assert len(np.unique(columns, axis=0)) == ROWS
    counts = np.array([np.bincount(column, minlength=PLACES) for column in columns.T])  # place by candidate
    freedom = (PLACES - 1) ** 2
    statistic = ((counts - ROWS / PLACES) ** 2 / (ROWS / PLACES)).sum()
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)
    follows = np.mean((columns[:, 1:] - columns[:, :-1]) % PLACES == 1)  # a rotation would keep neighbours together
    assert follows < 2 / PLACES


def test_every_row_that_the_coordinator_opens_is_shifted_by_a_uniform_number_of_its_own(places):
    opened, squared = opened_places(*places)
    ordered = np.take_along_axis(squared, find_columns(opened, squared), axis=1)
    shifts = opened - ordered.astype(np.uint64)
    assert (shifts == shifts[:, :1]).all()
    assert len(np.unique(shifts[:, 0])) == ROWS
    assert_uniform(shifts[:, 0])


@pytest.mark.parametrize("sender", [0, 1], ids=["primary", "secondary"])
def test_shares_of_two_deals_have_nothing_in_common_while_their_sum_stays_the_same(tmp_path, sender):
    rng = np.random.default_rng(4)
    tables, secrets = (
        (table(rng, ROWS, 0.3), table(rng, RECORDS, 0.3)),
        {x: derive_subkey(bytes(32), x, 32) for x in "ab"},
    )
    first, again = (shares(record_messages(tmp_path / x, tables, secret=s)[0]) for x, s in secrets.items())
    assert_uniform(first[sender] - again[sender])
    # A record that is asked about again is opened in the same order: it shows nothing new, nor another draw of noise.
    assert np.array_equal(first[0] + first[1], again[0] + again[1])


def test_shares_of_two_requests_have_nothing_in_common(tmp_path):
    rng = np.random.default_rng(5)
    queries, candidates = [table(rng, ROWS, 0.3) for _ in range(2)], table(rng, RECORDS, 0.3)
    found = [shares(record_messages(tmp_path / str(p), (one, candidates))[0]) for p, one in enumerate(queries)]
    for sender in range(2):
        difference = found[0][sender] - found[1][sender]
        assert_uniform(difference[:, ::2] - difference[:, 1::2])  # what differs by row alone cancels


# Primary and secondary


@pytest.mark.parametrize(
    ("way", "kind"),
    [((CITY, RENTALS), "masked-tile"), ((RENTALS, CITY), "masked-vectors"), ((NOTARY, RENTALS), "correction")],
    ids=["A - U", "B - V", "W"],
)
def test_no_classifier_tells_what_is_masked_for_two_different_tables_apart(dense_and_sparse, way, kind):
    dense, sparse = (values(messages[way], kind).reshape(-1, 4) for messages, _ in dense_and_sparse)
    assert_indistinguishable(as_bits(dense), as_bits(sparse))
    assert_uniform(dense)
    assert_uniform(sparse)


def test_vectors_are_exactly_covered_by_masks_that_are_uniform_and_never_used_twice(places):
    tables, messages = places
    metric = blind_linkage.blind_metric("position", 32 * AXES)
    queries = blind_linkage.blind_queries(tables[0], metric, PRIMARY, "rentals").vectors.rows
    candidates = blind_linkage.blind_candidates(tables[1], metric, SECONDARY, "rentals").vectors.rows
    hidden = values(messages[CITY, RENTALS], "masked-tile"), values(messages[RENTALS, CITY], "masked-vectors")
    masks = [vectors - masked for vectors, masked in zip((queries, candidates), hidden, strict=True)]
    for mask in masks:
        assert len(np.unique(mask)) == mask.size  # of 64 bits: an equal pair is no coincidence
    assert_uniform(masks[0])
    assert_uniform(masks[0][TILE:] - masks[0][:-TILE])  # no tile repeats or continues the masks of another
    assert not np.intersect1d(*masks).size
    assert not np.intersect1d(masks[0], shares(messages)[0]).size


def test_corrections_do_not_show_the_secondary_the_masks_of_the_primary(places):
    _, messages = places
    metric = blind_linkage.blind_metric("position", 32 * AXES)
    parities = blind_linkage.all_candidate_masks(deals(messages)[1], PLACES, metric, AXES) & np.uint64(1)
    _, first, group = np.unique(parities, axis=0, return_index=True, return_inverse=True)
    twins = [(place, first[one]) for place, one in enumerate(group.reshape(-1)) if place != first[one]]
    correction = values(messages[NOTARY, RENTALS], "correction")
    for one, other in twins:  # whose masks are equal modulo two: so is their product with U, unless a pad covers it
        assert (correction[:, one] - correction[:, other] & np.uint64(1)).mean() == pytest.approx(0.5, abs=0.07)
    assert len(twins) >= PLACES - 2**AXES


def test_the_pad_of_every_correction_is_uniform_and_new_in_every_tile(dense_and_sparse):
    metric = blind_linkage.blind_metric("hamming", N_BITS)
    for messages, _ in dense_and_sparse:
        primary, secondary = deals(messages)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blind_linkage, "VECTORS_PER_BLOCK", 16)
            masks = blind_linkage.all_candidate_masks(secondary, RECORDS, metric, N_BITS)
        tiles = [slice(first, first + TILE) for first in range(0, ROWS, TILE)]
        dealt = np.concatenate([blind_linkage.query_masks(primary, tile, metric, N_BITS) for tile in tiles])
        pad = blind_linkage.ring_product(dealt, masks) - values(messages[NOTARY, RENTALS], "correction")
        assert_uniform(pad)
        assert_uniform(pad[TILE:] - pad[:-TILE])
