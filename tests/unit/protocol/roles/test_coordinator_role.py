"""The coordinator links what came first, delivers it again and again, and nothing else however it is asked."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FedSimError, FingerprintError, PeerError, PolicyError, SettingError
from fedsim.linkage.private_linkage import LinkageConfig, link_encoded_tables, link_new_records
from fedsim.protocol import session as session_module
from fedsim.protocol.messages import (
    Candidates,
    Done,
    Farewell,
    Finish,
    NewQueries,
    Offer,
    Partners,
    Party,
    Queries,
    Ready,
    Role,
    RowOrder,
    Want,
)
from fedsim.protocol.roles import coordinator_role
from fedsim.protocol.roles.coordinator_role import Coordinator, LinkLimits
from fedsim.protocol.roles.primary_role import EncodedQueries, fetch_new_partners, fetch_partners
from fedsim.protocol.roles.secondary_role import fetch_row_mapping
from fedsim.protocol.transport import Envelope, offer_digest
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import EncodedTable
from session_fixtures import CITY, NOTARY, PATIENCE, RENTALS, SCHOOLS, connected, joined, started, until

SECRET, LINKING = bytes(range(32)), LinkageConfig("hamming", 6, sigma=0.5)
COUNTED = np.arange(30) % 3 > 0


def table(n, seed, n_bits=61, fingerprint="ab" * 32):
    ones = np.random.default_rng(seed).integers(0, 2, (n, n_bits), dtype=np.uint8)
    return EncodedTable(np.packbits(ones, axis=1), n_bits, fingerprint)


QUERIES, CANDIDATES = table(30, 0), table(40, 1)
LINKED, DELIVERY = link_encoded_tables(QUERIES, CANDIDATES, COUNTED, LINKING, SECRET, "rentals")


@pytest.fixture
def coordinator(tmp_path):
    return coordinator_in(tmp_path)


LIMITS = LinkLimits(100, 100)


def coordinator_in(folder, linking=LINKING, limits=LIMITS):
    return Coordinator({"rentals": linking}, SECRET, folder / "lists", limits=limits)


@contextmanager
def attended(coordinator, party):
    """A party's session with the coordinator, and the errors with which it was left."""
    with connected(NOTARY, party) as (there, here):
        left = []
        attending = started(attend, coordinator, there, left)
        yield here, left
        if not left:
            here.send(Farewell())
        joined(attending)


def attend(coordinator, session, left):
    try:
        coordinator.serve(session)
    except FedSimError as fault:
        left.append(fault)


def question(queries=QUERIES, counted=COUNTED):
    return EncodedQueries("rentals", queries, counted, offer_digest(queries, counted.astype(np.uint8)), LINKING)


def both_ask(coordinator, candidates=CANDIDATES, asked=None):
    """What primary and secondary get, asking at the same time."""
    orders = []
    with attended(coordinator, CITY) as (city, _), attended(coordinator, RENTALS) as (rentals, _):
        other = started(
            lambda: orders.append(fetch_row_mapping(rentals, candidates, offer_digest(candidates), "", LINKING))
        )
        partners = fetch_partners(city, asked or question(), "")
        joined(other)
    return partners, orders[0]


def test_linking_is_reported_from_the_first_to_the_last_record(tmp_path):
    seen = []
    both_ask(
        Coordinator({"rentals": LINKING}, SECRET, tmp_path / "lists", limits=LIMITS, progress=lambda *m: seen.append(m))
    )
    assert seen[0] == ("rentals", 0, len(QUERIES))
    name, done, total = seen[-1]
    assert (name, done) == ("rentals", total)


def refused(coordinator, party, *messages):
    """The error with which the coordinator leaves a party that says this."""
    with attended(coordinator, party) as (here, left):
        for message in messages:
            here.send(message)
        until(lambda: left)
    return left[0]


def queries_of(encoded=QUERIES, counted=COUNTED, name="rentals"):
    return Queries(name, encoded.fingerprint, encoded.n_bits, bits=encoded.bits, counted=counted.astype(np.uint8))


def candidates_of(encoded=CANDIDATES, name="rentals"):
    return Candidates(name, encoded.fingerprint, encoded.n_bits, bits=encoded.bits)


# --- what it delivers --------------------------------------------------------------------------------------------


def test_both_sides_get_what_the_linkage_gives_and_no_more(coordinator):
    partners, order = both_ask(coordinator)
    assert np.array_equal(partners.partner, DELIVERY.partner)
    assert np.array_equal(partners.similarity, DELIVERY.similarity)
    named = np.isin(np.arange(40), DELIVERY.partner)
    assert np.array_equal(order.rows, np.where(named, LINKED.order, -1))
    assert order.n_trained == COUNTED.sum()
    assert coordinator.all_linked


def test_partners_of_equal_records_are_sent_once_and_reach_each_of_them(tmp_path):
    rows = [4, 0, 4, 4, 2, 0]
    repeated, counted = replace(QUERIES, bits=QUERIES.bits[rows]), np.ones(6, bool)
    _, expected = link_encoded_tables(repeated, CANDIDATES, counted, LINKING, SECRET, "rentals")
    coordinator = coordinator_in(tmp_path)
    partners, _ = both_ask(coordinator, asked=question(repeated, counted))
    assert np.array_equal(partners.partner, expected.partner)
    assert np.array_equal(partners.similarity, expected.similarity)
    with attended(coordinator, CITY) as (city, _):
        offer = city.send(Offer("rentals", offer_digest(repeated, counted.astype(np.uint8)), ""))
        assert not city.wait_reply(offer, Want).wanted
        sent = city.wait_reply(offer, Partners)
    assert np.array_equal(sent.partner, expected.partner[[0, 1, 4]])
    assert sent.n_candidates == 40


def test_whoever_comes_first_waits_and_is_told_for_whom(coordinator, monkeypatch, caplog):
    caplog.set_level("INFO", "fedsim.parties")
    monkeypatch.setattr(session_module, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(coordinator_role, "POLL", 0.01)
    with attended(coordinator, CITY) as (city, _), attended(coordinator, RENTALS) as (rentals, _):
        asking = started(fetch_partners, city, question(), "")
        until(
            lambda: "coordinator 'notary': list 'rentals' is waiting for the secondary's identifiers" in caplog.messages
        )
        fetch_row_mapping(rentals, CANDIDATES, offer_digest(CANDIDATES), "", LINKING)
        joined(asking)


def test_what_is_in_hand_is_not_sent_again(coordinator):
    partners, order = both_ask(coordinator)
    with attended(coordinator, CITY) as (city, _), attended(coordinator, RENTALS) as (rentals, _):
        assert fetch_partners(city, question(), arrays_digest(partners.partner, partners.similarity)) is None
        assert fetch_row_mapping(rentals, CANDIDATES, offer_digest(CANDIDATES), order.digest, LINKING) is None


def test_a_coordinator_that_started_anew_delivers_the_same_without_identifiers(tmp_path):
    both_ask(coordinator_in(tmp_path))
    again = coordinator_in(tmp_path)
    assert again.all_linked
    with attended(again, CITY) as (city, _):
        assert np.array_equal(fetch_partners(city, question(), "").similarity, DELIVERY.similarity)
        sent = [entry.kind for entry in city.connection.ledger.entries() if entry.sender == str(CITY)]
    assert "queries" not in sent


def test_new_records_are_linked_as_those_of_training_were(coordinator):
    both_ask(coordinator)
    expected = link_new_records(QUERIES, LINKED, LINKING, SECRET, "rentals")
    with attended(coordinator, CITY) as (city, _):
        assert np.array_equal(fetch_new_partners(city, "rentals", QUERIES, LINKING).similarity, expected.similarity)


def test_the_end_is_on_the_disk_before_it_is_confirmed(tmp_path, monkeypatch):
    coordinator = coordinator_in(tmp_path)
    synced, fsync = [], os.fsync

    def sync(handle):
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        fsync(handle)

    monkeypatch.setattr(os, "fsync", sync)
    with attended(coordinator, CITY) as (city, _):
        assert city.call(Finish(), Done).fault == ""
    assert coordinator.finished.wait(PATIENCE)
    assert tmp_path in synced  # the name of the marker is on the disk before the primary exits
    assert coordinator_in(tmp_path).was_finished


# --- once linked, never otherwise --------------------------------------------------------------------------------

CHANGED = {
    "other records": (CITY, queries_of(table(30, 7))),
    "one record less": (CITY, queries_of(replace(QUERIES, bits=QUERIES.bits[1:]), COUNTED[1:])),
    "other training records": (CITY, queries_of(counted=~COUNTED)),
    "another offer of the primary": (CITY, Offer("rentals", "0" * 64, "")),
    "other candidates": (RENTALS, candidates_of(table(40, 7))),
    "candidates in another order": (RENTALS, candidates_of(replace(CANDIDATES, bits=CANDIDATES.bits[::-1].copy()))),
    "another offer of the secondary": (RENTALS, Offer("rentals", "0" * 64, "")),
}


@pytest.mark.parametrize("what", CHANGED)
def test_other_identifiers_than_those_that_were_linked_get_no_second_sample_of_noise(coordinator, what):
    both_ask(coordinator)
    party, message = CHANGED[what]
    fault = refused(coordinator, party, message)
    assert isinstance(fault, PolicyError)
    assert fault.code == "identifiers-changed"


def test_the_same_identifiers_sent_again_get_the_same_answer(coordinator):
    both_ask(coordinator)
    with attended(coordinator, CITY) as (city, _), attended(coordinator, RENTALS) as (rentals, _):
        assert np.array_equal(city.call(queries_of(), Partners).similarity, DELIVERY.similarity)
        assert set(rentals.call(candidates_of(), RowOrder).order) <= {-1, *LINKED.order}


def test_a_secondary_that_comes_back_with_other_identifiers_before_linking_is_linked_by_those(coordinator):
    with attended(coordinator, CITY) as (city, _), attended(coordinator, RENTALS) as (rentals, _):
        rentals.wait_reply(rentals.send(Offer("rentals", "old", "")), Want)
        rentals.send(candidates_of(table(40, 7)))
        until(lambda: coordinator._lists["rentals"].candidates is not None)
        with attended(coordinator, RENTALS) as (restarted, _):
            restarted.wait_reply(restarted.send(Offer("rentals", "new", "")), Want)
            asking = city.send(queries_of())
            restarted.send(candidates_of())
            partners = city.wait_reply(asking, Partners)
    assert np.array_equal(partners.similarity, DELIVERY.similarity)


def test_identifiers_that_change_while_they_are_linked_are_no_list(coordinator, monkeypatch):
    def linking(queries, candidates, *others, **options):
        coordinator._lists["rentals"].candidates = table(40, 7)
        return link_encoded_tables(queries, candidates, *others, **options)

    monkeypatch.setattr(coordinator_role, "link_encoded_tables", linking)
    coordinator._lists["rentals"].candidates = CANDIDATES
    fault = refused(coordinator, CITY, queries_of())
    assert fault.code == "identifiers-changed"
    assert not coordinator.all_linked


# --- what it refuses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("party", "message"),
    [
        (SCHOOLS, candidates_of()),
        (SCHOOLS, Offer("rentals", "", "")),
        (RENTALS, candidates_of(name="schools")),
        (CITY, queries_of(name="../rentals")),
        (CITY, NewQueries("", "", 8, bits=np.zeros((1, 1), np.uint8))),
    ],
)
def test_a_list_that_is_not_ones_own_is_refused(coordinator, party, message):
    fault = refused(coordinator, party, message)
    assert isinstance(fault, PeerError)
    assert fault.code == "not-its-list"


WIDE = np.full((40, 8), 255, np.uint8)
BROKEN = {
    "bits beyond the filter": EncodedTable(WIDE, 61, "ab" * 32),
    "too few bytes": EncodedTable(WIDE[:, :7], 61, "ab" * 32),
    "no bytes": EncodedTable(WIDE[:, :0], 61, "ab" * 32),
    "a filter of no bits": EncodedTable(WIDE[:, :0], 0, "ab" * 32),
    "less than no bits": EncodedTable(WIDE, -61, "ab" * 32),
    "2^62 bits": EncodedTable(WIDE, 2**62, "ab" * 32),
}


def linked_alone(folder, linking=LINKING, candidates=CANDIDATES, queries=QUERIES, counted=COUNTED, limits=LIMITS):
    """The error that comes of linking these tables."""
    coordinator = coordinator_in(folder, linking, limits)
    coordinator._lists["rentals"].candidates = candidates
    return refused(coordinator, CITY, queries_of(queries, counted))


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("side", ["primary", "secondary", "both"])
def test_filters_that_are_none_are_the_fault_of_who_sent_them(tmp_path, what, side):
    candidates = CANDIDATES if side == "primary" else BROKEN[what]
    queries = QUERIES if side == "secondary" else BROKEN[what]
    fault = linked_alone(tmp_path, LINKING, candidates, queries, np.ones(len(queries), bool))
    assert isinstance(fault, PeerError | FingerprintError)


def test_no_training_records_are_the_fault_of_the_primary(tmp_path):
    fault = linked_alone(tmp_path, counted=np.zeros(30, bool))
    assert isinstance(fault, PeerError)
    assert fault.code == "bad-identifiers"


def test_other_keys_or_schemas_are_named(tmp_path):
    assert isinstance(linked_alone(tmp_path, candidates=table(40, 1, fingerprint="cd" * 32)), FingerprintError)
    assert isinstance(linked_alone(tmp_path, candidates=table(40, 1, n_bits=64)), FingerprintError)


def test_too_few_candidates_are_told_with_their_number(tmp_path):
    fault = linked_alone(tmp_path, candidates=table(5, 1))
    assert isinstance(fault, PolicyError)
    assert (fault.code, fault.limit) == ("k-too-large", 5)


def test_a_tau_out_of_reach_is_reported_without_the_spread(tmp_path, caplog):
    fault = linked_alone(tmp_path, LinkageConfig("hamming", 6, tau=1e-9))
    assert isinstance(fault, PolicyError)
    assert fault.code == "tau-too-small"
    assert "spread" not in str(fault)
    assert "spread" in caplog.text  # the coordinator's own log has the reason


def test_any_other_setting_error_is_not_taken_for_tau(tmp_path, monkeypatch):
    def fail(*given, **options):
        raise SettingError("distances spread by 7", code="some-setting")

    monkeypatch.setattr(coordinator_role, "link_encoded_tables", fail)
    fault = linked_alone(tmp_path)
    assert fault.code == "some-setting"
    assert "tau" not in str(fault)
    assert "7" not in str(fault)


def test_a_message_that_belongs_elsewhere_has_no_place_here(coordinator):
    with connected(NOTARY, Party(Role.SECONDARY, "rentals")) as (there, _), raises(PeerError, "unexpected-message"):
        coordinator._answer(there, Envelope(Ready(1, 1)))


# --- new records -------------------------------------------------------------------------------------------------


def new_of(encoded):
    return NewQueries("rentals", encoded.fingerprint, encoded.n_bits, bits=encoded.bits)


@pytest.mark.parametrize("what", BROKEN)
def test_a_question_that_cannot_be_answered_does_not_end_the_conversation(coordinator, what):
    both_ask(coordinator)
    with attended(coordinator, CITY) as (city, _):
        with raises(PeerError, "not-linked"):
            fetch_new_partners(city, "rentals", BROKEN[what], LINKING)
        assert len(fetch_new_partners(city, "rentals", QUERIES, LINKING).partner) == 30


def test_questions_that_cannot_be_answered_do_not_fill_the_log(coordinator, monkeypatch, caplog):
    monkeypatch.setattr(session_module, "MAX_LOGGED_EVENTS", 2)
    with attended(coordinator, CITY) as (city, _):
        for _ in range(5):
            with raises(PeerError, "not-linked"):
                fetch_new_partners(city, "rentals", QUERIES, LINKING)
    assert sum("cannot link new records" in message for message in caplog.messages) == 2


def test_new_records_before_any_were_linked_are_refused(coordinator):
    with attended(coordinator, CITY) as (city, _), raises(PeerError, "not-linked"):
        fetch_new_partners(city, "rentals", QUERIES, LINKING)


def test_new_records_are_counted_through_restarts_and_no_more_are_linked_than_the_owner_allows(tmp_path):
    both_ask(coordinator_in(tmp_path))
    for seed, left in ((11, 70), (12, 40), (13, 10)):
        with attended(coordinator_in(tmp_path), CITY) as (city, _):
            fetch_new_partners(city, "rentals", table(30, seed), LINKING)
        assert 100 - len(coordinator_in(tmp_path)._lists["rentals"].new_records) == left
    with attended(coordinator_in(tmp_path), CITY) as (city, _):
        with raises(PeerError, "not-linked"):
            fetch_new_partners(city, "rentals", table(30, 14), LINKING)
        assert len(fetch_new_partners(city, "rentals", table(10, 14), LINKING).partner) == 10


def test_a_record_that_is_asked_again_counts_once_and_gets_the_same_answer(tmp_path):
    both_ask(coordinator_in(tmp_path))
    answers = []
    for _ in range(3):
        with attended(coordinator_in(tmp_path), CITY) as (city, _):
            answers.append(fetch_new_partners(city, "rentals", table(30, 11), LINKING).similarity.tolist())
    assert answers[0] == answers[1] == answers[2]
    assert len(coordinator_in(tmp_path)._lists["rentals"].new_records) == 30


def test_a_count_of_new_records_that_a_kill_cut_short_is_taken_up_where_it_was_whole(tmp_path):
    both_ask(coordinator_in(tmp_path))
    with attended(coordinator_in(tmp_path), CITY) as (city, _):
        fetch_new_partners(city, "rentals", table(30, 11), LINKING)
    count = next(tmp_path.rglob("new-records"))
    count.write_bytes(count.read_bytes()[:-5])
    with attended(coordinator_in(tmp_path), CITY) as (city, _):
        fetch_new_partners(city, "rentals", table(30, 11), LINKING)
    assert len(coordinator_in(tmp_path)._lists["rentals"].new_records) == 30


def near_copies(n):
    """Copies of the first record with two flipped bits each, all different."""
    ones = np.unpackbits(np.tile(QUERIES.bits[:1], (n, 1)), axis=1)
    pairs = np.array([(one, other) for one in range(61) for other in range(one)])[:n]
    ones[np.arange(n)[:, None], pairs] ^= 1
    return EncodedTable(np.packbits(ones, axis=1), 61, "ab" * 32)


def test_near_copies_of_a_record_are_no_way_to_average_its_noise(tmp_path):
    both_ask(coordinator_in(tmp_path))
    answered, limits = [], LinkLimits(20_000, 25)
    for copy in range(40):
        one = replace(CANDIDATES, bits=near_copies(40).bits[copy : copy + 1])
        restarted = coordinator_in(tmp_path, limits=limits)
        with attended(restarted, CITY) as (city, _), suppress(PeerError):
            answered.append(fetch_new_partners(city, "rentals", one, LINKING).partner[0])
    count = np.bincount(np.concatenate(answered), minlength=40)
    degree = np.bincount(DELIVERY.partner.ravel(), minlength=40)
    assert len(answered) < 40
    assert (count <= np.maximum(25, 2 * degree)).all()
    with attended(coordinator_in(tmp_path, limits=limits), CITY) as (city, _):
        again = replace(CANDIDATES, bits=near_copies(40).bits[:1])
        assert np.array_equal(fetch_new_partners(city, "rentals", again, LINKING).partner[0], answered[0])


def test_many_may_ask_at_once(coordinator):
    both_ask(coordinator)
    found = []
    barrier = threading.Barrier(3)

    def ask():
        with attended(coordinator, CITY) as (city, _):
            barrier.wait(PATIENCE)
            found.append(fetch_new_partners(city, "rentals", QUERIES, LINKING).similarity)

    joined(*[started(ask) for _ in range(3)])
    assert len(found) == 3
    assert all(np.array_equal(one, found[0]) for one in found)
