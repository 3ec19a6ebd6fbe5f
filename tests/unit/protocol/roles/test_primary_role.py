"""Above the cut: the primary takes what fits its question; it names who sent anything else, and learns nothing."""

from __future__ import annotations

import hashlib
import resource
from dataclasses import replace

import numpy as np
import pytest
import torch

from error_fixtures import raises
from fedsim.errors import FileError, PeerError
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.protocol.cut_layer import pack_tensor, wire_format
from fedsim.protocol.messages import Activations, Done, Partners, Queries, Ready, TablePart, Unchanged, Want
from fedsim.protocol.roles.primary_role import (
    EncodedQueries,
    RemoteSecondary,
    fetch_new_partners,
    fetch_partners,
    fetch_table,
)
from fedsim.protocol.transport import NO_BYTES
from fedsim.registry import WIRE_FORMATS
from fedsim.types import EncodedTable
from session_fixtures import CITY, NOTARY, RENTALS, frame_of, read_all, session_of

ROWS = torch.tensor([0, 3, 4])
GOOD = torch.arange(6.0).reshape(3, 2)


def secondary_that_says(*messages, form="float32", first=None):
    """A secondary of width 2 that answers the first questions with these messages."""
    session, ready = session_of(CITY, RENTALS), first or Ready(2, 9)
    answers = enumerate((ready, *messages), 1)
    read_all(session, *(frame_of(message, place, reply_to=place) for place, message in answers))
    return RemoteSecondary(session, wire_format(form))


# --- activations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", WIRE_FORMATS.names())
def test_activations_that_fit_are_taken(form):
    values = pack_tensor(GOOD, wire_format(form))
    party = secondary_that_says(Activations(5, values=values), Activations(-1, values=values), form=form)
    assert (party.name, party.width, party.n_records) == ("rentals", 2, 9)
    assert torch.allclose(party.activations(ROWS, 5), GOOD, atol=0.02)
    assert torch.allclose(party.infer(ROWS), GOOD, atol=0.02)


def broken(value):
    values = GOOD.numpy().copy()
    values[1, 1] = value
    return values


BAD = {
    "not a number": Activations(5, values=broken(np.nan)),
    "infinite": Activations(5, values=broken(np.inf)),
    "finite and huge": Activations(5, values=broken(3e38)),
    "too few rows": Activations(5, values=GOOD.numpy()[:2]),
    "no rows": Activations(5, values=GOOD.numpy()[:0]),
    "too many rows": Activations(5, values=np.ones((4, 2), np.float32)),
    "another width": Activations(5, values=np.ones((3, 3), np.float32)),
    "turned about": Activations(5, values=GOOD.numpy().T),
    "another form": Activations(5, values=GOOD.numpy().astype(np.float16)),
    "the step before": Activations(4, values=GOOD.numpy()),
    "the step after": Activations(6, values=GOOD.numpy()),
    "of no step": Activations(-1, values=GOOD.numpy()),
}


@pytest.mark.parametrize("what", BAD)
def test_activations_that_do_not_fit_are_refused_with_party_and_step(what):
    with raises(PeerError, "bad-activations"):
        secondary_that_says(BAD[what]).activations(ROWS, 5)


@pytest.mark.usefixtures("memory_limit")
def test_activations_of_another_shape_take_no_memory():
    party = secondary_that_says(form="int8")
    huge = Activations(-1, values=np.zeros((4096, 8192), np.int8))
    read_all(party.session, frame_of(huge, 2, reply_to=3))  # a message acknowledges these bytes first
    with raises(PeerError, "bad-activations"):
        party.infer(ROWS)


@pytest.mark.parametrize("width", [1, 3])
def test_an_embedding_keeps_its_width(width):
    answers = (Activations(-1, values=GOOD.numpy()), Activations(-1, values=np.ones((3, width), np.float32)))
    party, rows = secondary_that_says(*answers), ROWS.numpy().astype(np.int32)
    assert party.embed(rows).tolist() == GOOD.tolist()
    with raises(PeerError, "bad-embedding"):
        party.embed(rows)


def test_a_prediction_that_does_not_fit_is_refused_too():
    with raises(PeerError, "bad-activations"):
        secondary_that_says(Activations(5, values=GOOD.numpy())).infer(ROWS)


@pytest.mark.parametrize(("width", "n_records"), [(0, 9), (-1, 9), (2, 0), (2, -(2**62))])
def test_a_party_without_width_or_records_is_refused(width, n_records):
    with raises(PeerError, "bad-width"):
        secondary_that_says(first=Ready(width, n_records))


def test_asking_ahead_asks_once():
    party = secondary_that_says(Activations(5, values=GOOD.numpy()))
    party.ask(ROWS, 5)
    party.activations(ROWS, 5)
    assert [message.kind for _, message, _ in party.session._outbox] == ["meet", "ask"]


def test_another_question_than_the_one_asked_ahead_is_asked_anew():
    party = secondary_that_says(Activations(5, values=GOOD.numpy()), Activations(6, values=GOOD.numpy()))
    party.ask(ROWS, 5)
    assert torch.equal(party.activations(ROWS, 6), GOOD)


def test_row_numbers_travel_as_small_whole_numbers():
    party = secondary_that_says(Activations(5, values=GOOD.numpy()))
    party.activations(ROWS, 5)
    (asked,) = [message for _, message, _ in party.session._outbox if message.kind == "ask"]
    assert asked.rows.dtype == np.int32


# --- links -------------------------------------------------------------------------------------------------------

ENCODED = EncodedTable(np.arange(9, dtype=np.uint8).reshape(3, 3), 24, "ab" * 32)
TERMS = LinkageConfig("hamming", 2)
TABLE = EncodedQueries("rentals", ENCODED, np.array([True, False, True]), "digest", TERMS)
PARTNER, SIMILARITY = np.array([[0, 1], [2, 3], [4, 0]], np.int32), np.zeros((3, 2, 1), np.float32)


def links(partner=PARTNER, similarity=SIMILARITY, n_candidates=5, name="rentals", sealed=NO_BYTES):
    return Partners(name, n_candidates, partner=partner, similarity=similarity, sealed=sealed)


def partners_from(*messages, terms=TERMS):
    """What comes of a coordinator that wants no identifiers and answers with these messages."""
    session = session_of(CITY, NOTARY)
    frames = [frame_of(message, place, reply_to=1) for place, message in enumerate((Want(False), *messages), 1)]
    read_all(session, *frames)
    return fetch_partners(session, replace(TABLE, terms=terms), "")


def test_links_that_fit_are_taken():
    assert partners_from(links()).partner.tolist() == PARTNER.tolist()


def test_links_in_hand_may_still_hold():
    assert partners_from(Unchanged()) is None


UNFIT = {
    "too few records": links(PARTNER[:2], SIMILARITY[:2]),
    "too many records": links(np.tile(PARTNER, (2, 1)), np.tile(SIMILARITY, (2, 1, 1))),
    "no partners": links(PARTNER[:, :0], SIMILARITY[:, :0]),
    "a row below the first": links(PARTNER - 1),
    "a row beyond the last": links(n_candidates=4),
    "no candidates": links(n_candidates=0),
    "another list": links(name="schools"),
    "not a number": links(similarity=np.full((3, 2, 1), np.nan, np.float32)),
    "no fields": links(similarity=SIMILARITY[:, :, :0]),
    "infinite": links(similarity=np.full((3, 2, 1), -np.inf, np.float32)),
    "another k": links(PARTNER[:, :1], SIMILARITY[:, :1]),
    "a partner twice": links(np.array([[0, 1], [2, 2], [4, 0]], np.int32)),
    "more similarities than fields": links(similarity=np.zeros((3, 2, 2), np.float32)),
    "another message": Want(True),
}


@pytest.mark.parametrize("what", UNFIT)
def test_links_that_do_not_fit_the_records_are_refused(what):
    with raises(PeerError, "bad-links"):
        partners_from(UNFIT[what])


def test_links_of_new_records_without_a_seal_are_refused():
    for sealed, code in ((NO_BYTES, "bad-links"), (np.ones(40, np.uint8), None)):
        session = session_of(CITY, NOTARY)
        read_all(session, frame_of(links(sealed=sealed), 1, reply_to=1))
        if code is None:
            assert len(fetch_new_partners(session, "rentals", ENCODED, TERMS)) == len(ENCODED)
        else:
            with raises(PeerError, code):
                fetch_new_partners(session, "rentals", ENCODED, TERMS)


def test_identifiers_go_out_only_where_they_are_wanted():
    session = session_of(CITY, NOTARY)
    read_all(session, frame_of(Want(True), 1, reply_to=1), frame_of(links(), 2, reply_to=2))
    fetch_partners(session, TABLE, "")
    (sent,) = [message for _, message, _ in session._outbox if isinstance(message, Queries)]
    assert (sent.fingerprint, sent.n_bits, sent.counted.tolist()) == ("ab" * 32, 24, [1, 0, 1])


def test_an_answer_to_no_question_is_an_error_and_no_crash():
    session = session_of(CITY, NOTARY)
    read_all(session, frame_of(Want(False), 1, reply_to=1), frame_of(links(), 2))
    with raises(PeerError, "unexpected-reply"):
        fetch_partners(session, TABLE, "")


def test_new_links_that_were_not_made_are_told_with_the_reason():
    session = session_of(CITY, NOTARY)
    read_all(session, frame_of(Done("its owner may raise max_new_records"), 1, reply_to=1))
    with raises(PeerError, "not-linked"):
        fetch_new_partners(session, "rentals", ENCODED, TERMS)


@pytest.mark.parametrize("what", UNFIT)
def test_new_links_that_do_not_fit_are_refused(what):
    session = session_of(CITY, NOTARY)
    read_all(session, frame_of(UNFIT[what], 1, reply_to=1))
    with raises(PeerError, "bad-links"):
        fetch_new_partners(session, "rentals", ENCODED, TERMS)


# --- encrypted tables --------------------------------------------------------------------------------------------


def test_a_table_for_which_the_disk_has_no_space_is_an_error_that_names_the_file_and_is_fetched_again(tmp_path):
    content, path = np.random.default_rng(0).bytes(5000), tmp_path / "table"
    part = TablePart(hashlib.sha256(content).hexdigest(), 5000, 0, content=np.frombuffer(content, np.uint8))
    session, before = session_of(CITY, RENTALS), resource.getrlimit(resource.RLIMIT_FSIZE)
    read_all(session, *(frame_of(part, place, reply_to=place) for place in (1, 2)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with raises(FileError, "not-writable"):
            fetch_table(session, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert fetch_table(session, path) == part.digest
    assert path.read_bytes() == content
