"""The roles of a blind linkage refuse what breaks the protocol."""

from __future__ import annotations

import numpy as np
import pytest

from blind_fixtures import PRIMARY, SECONDARY, answer, blind_coordinator, line, link_blindly, serve
from error_fixtures import raises
from fedsim.errors import PeerError, PolicyError, SettingError
from fedsim.linkage.private_linkage import LinkageConfig, link_encoded_tables
from fedsim.protocol import messages as m
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.roles.blind_primary import BlindRequest, VectorCache
from fedsim.protocol.roles.blind_secondary import BlindResponder
from fedsim.protocol.roles.secondary import (
    RequestCounter,
    RequestLimits,
    RowMapping,
    SecondaryResponder,
    add_members,
)
from fedsim.protocol.transport import Envelope, decode
from fedsim.types import EncodedTable
from session_fixtures import CITY, NOTARY, RENTALS, session_of, started

LINKING, COUNTED = LinkageConfig("hamming", 3), np.ones(30, bool)


def table(n, seed, fingerprint="ab" * 32):
    return EncodedTable(np.random.default_rng(seed).integers(0, 256, (n, 8), np.uint8), 64, fingerprint)


TABLES = table(30, 0), table(20, 1)


def offer_of(queries, *, new=False):
    request = BlindRequest("rentals", LINKING, queries, PRIMARY, None if new else np.ones(len(queries), bool))
    return m.QueryOffer("rentals", request.digest, new, records=request._queries.names)


def test_sessions_give_the_nearest_records_of_the_plain_coordinator(tmp_path):
    found, responder = link_blindly(tmp_path, TABLES, LINKING)
    _, plain = link_encoded_tables(*TABLES, COUNTED, LINKING, SECONDARY, "rentals", threads=1)
    assert np.array_equal(np.sort(found.partner[found.place]), np.sort(plain.partner))
    assert responder.begun.n_trained == 30
    again, _ = link_blindly(tmp_path, TABLES, LINKING)
    assert np.array_equal(again.distance, found.distance)


def test_opened_tiles_are_stored_and_not_opened_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.linkage.blind_linkage.TILE_PAIRS", 100)
    role, left, store = blind_coordinator(tmp_path / "lists", LINKING, 64), [], tmp_path / "tiles"
    request = BlindRequest("rentals", LINKING, TABLES[0], PRIMARY, COUNTED, folder=store)
    found = []
    for _ in range(2):
        frames: list[bytes] = []
        with line(NOTARY, CITY, frames) as (pc, cp), line(NOTARY, RENTALS) as (sc, cs), line(CITY, RENTALS) as own:
            responder = BlindResponder("rentals", LINKING, TABLES[1], SECONDARY, lambda ask, cs=cs: ask(cs))
            for session in (pc, sc):
                started(serve, role, session, left)
            responder.offer()
            started(answer, responder, own[1])
            found.append((request.link(cp, own[0]), len(frames)))
    assert np.array_equal(found[0][0].partner, found[1][0].partner)
    assert len(list(store.iterdir())) == 6
    assert found[1][1] < found[0][1] - 5


def test_another_table_than_the_one_linked_is_refused(tmp_path):
    link_blindly(tmp_path, TABLES, LINKING)
    dealer = blind_coordinator(tmp_path, LINKING, 64)._dealers["rentals"]
    with raises(PolicyError, "identifiers-changed"):
        dealer.offer_queries(offer_of(table(30, 5)))
    with raises(PolicyError, "identifiers-changed"):
        dealer.offer_candidates(m.CandidateOffer("rentals", "other", 20, 0.0))
    assert dealer.linked


def test_a_blind_coordinator_cannot_bound_tau(tmp_path):
    with raises(SettingError, "not-blind", setting="tau"):
        blind_coordinator(tmp_path, LinkageConfig("hamming", 3, tau=0.05), 64)


def test_masks_of_different_requests_differ(tmp_path):
    link_blindly(tmp_path, TABLES, LINKING)
    dealer = blind_coordinator(tmp_path, LINKING, 64)._dealers["rentals"]
    deals = [dealer.offer_queries(offer_of(table(4, seed), new=True)).masks.tobytes() for seed in (6, 7, 6)]
    assert deals[0] == deals[2] != deals[1]


def test_new_records_are_limited_and_a_known_one_is_free(tmp_path):
    link_blindly(tmp_path, TABLES, LINKING)
    dealer = blind_coordinator(tmp_path, LINKING, 64, new_records=5)._dealers["rentals"]
    dealer.offer_queries(offer_of(table(4, 6), new=True))
    dealer.offer_queries(offer_of(table(4, 6), new=True))
    with raises(PolicyError, "too-many-new-records", limit=5):
        dealer.offer_queries(offer_of(table(2, 7), new=True))


def open_rows(dealer, request, total):
    """Open a tile whose shares add up to ``total``."""
    session, nothing = session_of(NOTARY, CITY), np.zeros_like(total)
    dealer.add_share(m.ShareOfTile("rentals", request, 0, values=nothing))
    return dealer.open(session, m.ShareOfTile("rentals", request, 0, values=total), lambda done, total: None)


def test_another_record_under_a_known_name_counts_as_a_new_one_and_the_same_is_free(tmp_path):
    link_blindly(tmp_path, TABLES, LINKING)
    dealer = blind_coordinator(tmp_path, LINKING, 64, new_records=5)._dealers["rentals"]
    names, total = np.arange(4, dtype=np.uint64), np.arange(80, dtype=np.uint16).reshape(4, 20)
    other, third = total + np.uint16([[0], [0], [0], [1]]), total + np.uint16([[0], [0], [0], [2]])
    for request in ("one", "two"):
        dealer.offer_queries(m.QueryOffer("rentals", request, True, records=names))
    for request, rows in (("one", total), ("one", total), ("two", total), ("two", other), ("one", other)):
        dealer.offer_queries(m.QueryOffer("rentals", request, True, records=names))
        open_rows(dealer, request, rows)
    with raises(PolicyError, "too-many-new-records", limit=5):
        open_rows(dealer, "one", third)
    with raises(PolicyError, "too-many-new-records", limit=5):
        dealer.offer_queries(m.QueryOffer("rentals", "three", True, records=np.array([9], np.uint64)))
    again = blind_coordinator(tmp_path, LINKING, 64, new_records=5)._dealers["rentals"]
    again.offer_queries(m.QueryOffer("rentals", "one", True, records=names))
    with raises(PolicyError, "too-many-new-records", limit=5):
        open_rows(again, "one", third)


def test_records_of_training_cannot_be_replaced_by_others(tmp_path):
    link_blindly(tmp_path, TABLES, LINKING)
    dealer = blind_coordinator(tmp_path, LINKING, 64, new_records=5)._dealers["rentals"]
    offer = offer_of(TABLES[0])
    with raises(PolicyError, "identifiers-changed"):
        dealer.offer_queries(m.QueryOffer("rentals", offer.request, False, records=offer.records + np.uint64(1)))
    dealer.offer_queries(offer)
    with raises(PolicyError, "too-many-new-records", limit=5):
        open_rows(dealer, offer.request, np.zeros((30, 20), np.uint16))


@pytest.mark.parametrize(
    "message",
    [
        m.Candidates("rentals", "ab", 64, bits=TABLES[1].bits),
        m.Offer("rentals", "digest", ""),
        m.AskCorrection("rentals", "request", 0, 10**9),
        m.AskCorrection("rentals", "request", 0, -1),
        m.ShareOfTile("rentals", "request", 0, values=np.zeros((2, 7), np.uint16)),
        m.ShareOfTile("rentals", "request", 0, values=np.zeros((2, 20), np.uint64)),
    ],
)
def test_a_blind_coordinator_takes_no_encoding_and_no_tile_of_another_size(tmp_path, message):
    link_blindly(tmp_path, TABLES, LINKING)
    role, left = blind_coordinator(tmp_path, LINKING, 64), []
    with line(NOTARY, RENTALS) as (here, there):
        serving = started(serve, role, here, left)
        there.send(message)
        serving.join(10)
    assert isinstance(left[0], PeerError)
    assert left[0].code in {"unexpected-message", "bad-tile"}


@pytest.mark.parametrize(
    "message",
    [
        m.AskCorrection("rentals", "request", 0, 2),
        m.ShareOfTile("rentals", "request", 0, values=np.zeros((2, 0), np.uint16)),
    ],
)
def test_a_tile_is_refused_before_the_secondary_has_offered_its_table(tmp_path, message):
    dealer = blind_coordinator(tmp_path, LINKING, 64)._dealers["rentals"]
    with raises(PeerError, "bad-tile"):
        dealer.answer(session_of(NOTARY, RENTALS), message, lambda done, total: None)


def test_masked_vectors_are_sent_once_for_several_requests(tmp_path):
    role, left, cache, frames = blind_coordinator(tmp_path, LINKING, 64), [], VectorCache(), []
    with line(NOTARY, CITY) as (pc, cp), line(NOTARY, RENTALS) as (sc, cs), line(RENTALS, CITY, frames) as own:
        secondary = BlindResponder("rentals", LINKING, TABLES[1], SECONDARY, lambda ask: ask(cs))
        for session in (pc, sc):
            started(serve, role, session, left)
        secondary.offer()
        for seed in (6, 7):
            started(answer, secondary, own[0])
            found = BlindRequest("rentals", LINKING, table(4, seed), PRIMARY, cache=cache).link(cp, own[1])
    kinds = [decode(frame).message.kind for frame in frames]
    assert (kinds.count("blind-begin"), kinds.count("ask-vectors")) == (2, 1)
    _, plain = link_encoded_tables(table(4, 7), TABLES[1], COUNTED[:4], LINKING, SECONDARY, "rentals", threads=1)
    assert np.array_equal(np.sort(found.partner[found.place]), np.sort(plain.partner))
    assert not left


def responder():
    found = BlindResponder("rentals", LINKING, TABLES[1], SECONDARY, lambda ask: m.Deal(20, np.zeros(32, np.uint8)))
    found.offer()
    return found


def begin(**changes):
    facts = {"fingerprint": "ab" * 32, "request": "r", "occasion": "o", "new": False, "n_trained": 3}
    arrays = {
        "common": np.zeros(32, np.uint8),
        "records": np.arange(3, dtype=np.uint64),
        "ones": np.zeros(0, np.int32),
    }
    return m.BlindBegin(**{**facts, **arrays, **changes})


@pytest.mark.parametrize(
    ("code", "messages"),
    [
        ("not-begun", [m.AskVectors(0)]),
        ("other-fingerprint", [begin(fingerprint="cd" * 32)]),
        ("bad-identifiers", [begin(common=np.zeros(3, np.uint8))]),
        ("bad-tile", [begin(), m.AskVectors(7)]),
        ("bad-tile", [begin(), m.MaskedTile(1, values=np.zeros((2, 64), np.uint16))]),
        ("bad-tile", [begin(), m.MaskedTile(0, values=np.zeros((3, 63), np.uint16))]),
        ("bad-rows", [begin(), m.AskMembers(np.array([0, 20], np.int32))]),
        ("bad-rows", [begin(), m.AskMembers(np.array([3, 3], np.int32))]),
        ("bad-rows", [begin(), m.AskMembers(np.arange(10, dtype=np.int32))]),  # three records have nine partners
    ],
)
def test_a_secondary_refuses_what_is_out_of_order_or_out_of_range(code, messages):
    secondary, session = responder(), session_of(RENTALS, CITY)
    with raises(PeerError, code):
        for message in messages:
            secondary.reply(session, message)


def serving(order, shown):
    """A secondary whose primary has been linked and trained."""
    limits = RequestLimits(total_steps=1, steps=1, inferences=1, rows_per_step=1, new_records=4)
    nothing = dict.fromkeys(("start", "load_trained", "finish"), lambda *_: None)
    answers = {"width": 2, "order": order, "requests": RequestCounter(limits), "form": wire_format("float32")}
    found = SecondaryResponder(**answers, **nothing, on_new_rows=shown.append, on_farewell=lambda: None)
    found.blind = responder()
    return found


def ask_members(secondary, classes, **changes):
    session = session_of(RENTALS, CITY)
    for message in (begin(**changes), m.AskMembers(np.array(classes, np.int32))):
        reply = secondary._reply(session, Envelope(message))
    return reply.rows


def test_after_training_a_primary_may_name_its_own_rows_again_and_others_for_new_records_only():
    order, shown = RowMapping.without_links(20, 3), []
    assert RowMapping.without_links(20, 3).key.tobytes() != order.key.tobytes()
    blind = responder()
    secondary = serving(add_members(order, blind, m.ClassMembers(*blind.candidates.members_of(np.arange(2)))), shown)
    rows = ask_members(secondary, [0, 1])
    with raises(PeerError, "bad-rows"):
        ask_members(secondary, [0, 2])
    further = ask_members(secondary, [0, 2], new=True, records=np.arange(4, dtype=np.uint64))
    assert secondary.order.find(np.union1d(rows, further))[0].tolist()
    assert len(shown) == 2


def test_under_a_blind_coordinator_the_use_of_rows_is_counted_by_request_of_new_records():
    secondary, told = serving(RowMapping.without_links(20, 3), []), []
    secondary.on_uses = lambda rows, uses: told.append((len(rows), set(uses.tolist())))
    one = np.arange(1, dtype=np.uint64)
    for request in ("one", "two", "one"):
        ask_members(secondary, [0, 2], new=True, request=request, records=one)
    assert [n for n, _ in told] == [2, 2, 2]
    assert told[0] == told[2] != told[1]


def test_a_secondary_counts_the_same_names_in_another_request_again_and_a_repeated_request_once():
    secondary, session = serving(RowMapping.without_links(20, 3), []), session_of(RENTALS, CITY)
    names = np.arange(3, dtype=np.uint64)
    for _ in range(3):
        secondary._reply(session, Envelope(begin(new=True, request="one", records=names)))
    with raises(PeerError, "over-limit"):
        secondary._reply(session, Envelope(begin(new=True, request="two", records=names)))


@pytest.mark.parametrize("new", [True, False])
def test_a_secondary_counts_other_rows_under_the_same_names_and_repeated_ones_once(new):
    secondary, session = serving(RowMapping.without_links(20, 3), []), session_of(RENTALS, CITY)
    rows = np.arange(192, dtype=np.uint16).reshape(3, 64)
    spare = 1 if new else 4  # of four new records
    secondary._reply(session, Envelope(begin(new=new)))
    for change in range(spare + 1):
        for _ in range(2):
            rows[0, 0] = change
            secondary._reply(session, Envelope(m.MaskedTile(0, values=rows.copy())))
    rows[0, 0] += 1
    with raises(PeerError, "over-limit"):
        secondary._reply(session, Envelope(m.MaskedTile(0, values=rows)))
    with raises(PeerError, "over-limit"):
        secondary._reply(session, Envelope(begin(new=True, request="two", records=np.arange(1, dtype=np.uint64))))


def test_a_secondary_refuses_another_table_of_training_records():
    secondary, session = responder(), session_of(RENTALS, CITY)
    secondary.reply(session, begin())
    secondary.reply(session, begin(occasion="another deal"))
    for change in ({"request": "other"}, {"records": np.arange(1, 4, dtype=np.uint64)}, {"n_trained": 2}):
        with raises(PeerError, "identifiers-changed"):
            secondary.reply(session, begin(**change))


def test_a_secondary_counts_new_records_before_any_distance_is_computed():
    secondary, session = serving(RowMapping.without_links(20, 3), []), session_of(RENTALS, CITY)
    with raises(PeerError, "over-limit"):
        secondary._reply(session, Envelope(begin(new=True, records=np.arange(9, dtype=np.uint64))))
    assert secondary.blind.begun is None
