"""The calling side dials until it is let in, again after every cut, and not in vain."""

from __future__ import annotations

import threading
import time

import pytest

from error_fixtures import raises
from fedsim.errors import PeerError
from fedsim.protocol import handshake
from fedsim.protocol.handshake import SessionAcceptor, SessionConnector
from fedsim.protocol.messages import Done, Ready, Refusal, Save, Welcome
from fedsim.protocol.session import PeerRestarted
from fedsim.protocol.transport import ConnectionLost, Envelope, InProcessTransport, encode
from session_fixtures import (
    CITY,
    PATIENCE,
    RENTALS,
    Notes,
    connection_of,
    hello_of,
    receiving,
    until,
)

pytestmark = pytest.mark.usefixtures("short_pauses")

# --- the calling side --------------------------------------------------------------------------------------------


def opened(answers, **changes):
    """Dial a peer that answers a greeting with these frames."""
    transport = InProcessTransport()

    def answer(_, line):
        line.receive()
        for frame in answers:
            line.send(frame)

    transport.listen("endpoint", answer)
    return SessionConnector(connection_of(RENTALS, **changes), transport, "endpoint", CITY).open()


NONSENSE = {
    "a session that is no number": encode(Envelope(Welcome("zz", 0, "", 0.0))),
    "no session": encode(Envelope(Welcome("", 0, "", 0.0))),
    "more received than was sent": encode(Envelope(Welcome("00" * 16, 7, "", 0.0))),
    "another message": encode(Envelope(Ready(1, 1))),
    "a hello": encode(Envelope(hello_of(CITY))),
    "garbage": b"HTTP/1.1 400 Bad Request",
}


@pytest.mark.parametrize("what", NONSENSE)
def test_a_peer_that_answers_nonsense_is_not_asked_again(what):
    with raises(PeerError, "connection-rejected"):
        opened([NONSENSE[what]])


def test_a_refusal_ends_the_dialling_at_once_and_is_told():
    with raises(PeerError, "connection-rejected"):
        opened([encode(Envelope(Refusal("no\x1b[2J", False)))])


def test_a_refusal_that_may_pass_is_tried_again_for_the_time_given():
    with raises(PeerError, "connection-rejected"):
        opened([encode(Envelope(Refusal("not yet", True)))], wait_seconds=0.05)


def test_a_peer_that_never_answers_a_greeting_is_tried_again_for_the_time_given(monkeypatch):
    monkeypatch.setattr(handshake, "HELLO_SECONDS", 0.01)
    with raises(PeerError, "peer-away"):
        opened([], wait_seconds=0.05)


def test_a_peer_that_never_comes_is_named_after_the_time_given():
    with raises(PeerError, "peer-away"):
        SessionConnector(connection_of(RENTALS), InProcessTransport(), "endpoint", CITY).open(0.05)


def test_what_would_be_dialled_in_vain_is_not_dialled_again():
    class Expired:
        def dial(self, address, peer):
            raise ConnectionLost("the certificate of primary 'city' expired", lasting=True)

    with raises(PeerError, "connection-rejected"):
        SessionConnector(connection_of(RENTALS, wait_seconds=600), Expired(), "endpoint", CITY).open()


def test_whoever_dials_hears_the_alarm(others):
    connection = connection_of(RENTALS)
    opening = others.submit(SessionConnector(connection, InProcessTransport(), "endpoint", CITY).open)
    connection.stop_signal.report_failure("coordinator 'notary'", "its owner stopped it")
    with raises(PeerError, "peer-stopped"):
        opening.result(PATIENCE)


def test_a_peer_that_comes_late_is_found(others):
    transport, connection = InProcessTransport(), connection_of(RENTALS)
    opening = others.submit(SessionConnector(connection, transport, "endpoint", CITY).open)
    acceptor = SessionAcceptor(connection_of(CITY), [RENTALS])
    transport.listen("endpoint", acceptor.answer)
    opening.result(PATIENCE).send(Done("hello"))
    assert acceptor.session_with(RENTALS).receive().message.fault == "hello"


def test_two_processes_under_one_name_do_not_take_turns(monkeypatch):
    monkeypatch.setattr(handshake, "NAME_TAKEN_SECONDS", 0.05)
    with receiving(connection_of(CITY), RENTALS) as (_, transport):
        first = SessionConnector(connection_of(RENTALS), transport, "endpoint", CITY).open()
        with raises(PeerError, "connection-rejected"):
            SessionConnector(connection_of(RENTALS), transport, "endpoint", CITY).open()
        assert first.connected


# --- after a cut -------------------------------------------------------------------------------------------------


class Cuttable(InProcessTransport):
    """A network whose cables can be pulled."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def dial(self, address, peer):
        self.lines.append(super().dial(address, peer))
        return self.lines[-1]

    def cut(self):
        self.lines[-1].close()


@pytest.fixture
def network():
    return Cuttable()


def joined_parties(network, **changes):
    """Return a listener, its session and that of its caller."""
    acceptor = SessionAcceptor(connection_of(CITY, record_event=Notes()), [RENTALS])
    listener = network.listen("endpoint", acceptor.answer)
    caller = SessionConnector(connection_of(RENTALS, record_event=Notes(), **changes), network, "endpoint", CITY).open()
    return listener, acceptor.session_with(RENTALS), caller


def test_a_conversation_goes_on_after_a_cut(network):
    _, here, there = joined_parties(network)
    for step in range(5):
        here.send(Save(step))
        network.cut()
        there.send(Done(str(step)))
    assert [there.receive().message.step for _ in range(5)] == [0, 1, 2, 3, 4]
    assert [here.receive().message.fault for _ in range(5)] == list("01234")
    assert here.connection.record_event.kinds == there.connection.record_event.kinds == ["joined"]


def test_a_receiver_that_started_anew_is_noticed(network):
    listener, _, there = joined_parties(network)
    listener.close()
    network.listen("endpoint", SessionAcceptor(connection_of(CITY), [RENTALS]).answer)
    network.cut()
    with pytest.raises(PeerRestarted):
        there.receive()


def test_with_a_receiver_that_started_anew_the_next_conversation_begins_by_itself(network):
    listener = network.listen("endpoint", SessionAcceptor(connection_of(CITY), [RENTALS]).answer)
    dialler = SessionConnector(connection_of(RENTALS), network, "endpoint", CITY)
    first = dialler.open()
    listener.close()
    anew = SessionAcceptor(connection_of(CITY), [RENTALS])
    network.listen("endpoint", anew.answer)
    network.cut()
    here = anew.session_with(RENTALS)
    with pytest.raises(PeerRestarted):
        first.receive()
    dialler.open().send(Done("the second"))
    assert here.receive().message.fault == "the second"
    assert len(network.lines) == 2


def test_a_caller_that_started_anew_is_noticed(network):
    _, here, there = joined_parties(network)
    there.close()
    again = SessionConnector(connection_of(RENTALS), network, "endpoint", CITY).open()
    with pytest.raises(PeerRestarted):
        here.receive()
    assert again.connected


def test_a_receiver_that_stays_away_is_named_after_the_time_given(network):
    listener, _, there = joined_parties(network, wait_seconds=0.1)
    listener.close()
    network.cut()
    with raises(PeerError, "peer-away"):
        there.receive()


def test_a_conversation_that_ended_is_not_dialled_again(network):
    _, _, there = joined_parties(network)
    there.close()
    assert len(network.lines) == 1
    assert there.is_over


def test_a_receiver_that_claims_more_than_was_sent_ends_the_conversation(network):
    listener, _, there = joined_parties(network)
    listener.close()
    network.listen("endpoint", lambda _, line: line.send(encode(Envelope(Welcome(there.ident.hex(), 9, "{}", 0.0)))))
    network.cut()
    with raises(PeerError, "connection-rejected"):
        there.receive()
    until(lambda: network.lines[-1].closed)


def test_a_line_that_is_let_in_after_the_end_is_let_go(network):
    listener, _, there = joined_parties(network)
    listener.close()
    greeted, goes_on, gone = threading.Event(), threading.Event(), threading.Event()

    def answer(_, line):
        line.receive()
        greeted.set()
        goes_on.wait(PATIENCE)
        line.send(encode(Envelope(Welcome(there.ident.hex(), 0, "{}", time.time()))))
        with pytest.raises(ConnectionLost):
            line.receive()
        gone.set()

    network.listen("endpoint", answer)
    network.cut()
    assert greeted.wait(PATIENCE)
    there.end(PeerError("enough"))
    goes_on.set()
    assert gone.wait(PATIENCE)


# --- what is written down -----------------------------------------------------------------------------------------


def test_the_clock_of_the_receiver_is_minded_too(caplog):
    session = opened([encode(Envelope(Welcome("ab" * 16, 0, "{}", 0.0)))])
    assert "clock of primary 'city'" in caplog.messages[0]
    session.end(PeerError("enough"))


def test_clocks_that_agree_are_not_spoken_of(network, caplog):
    joined_parties(network)
    assert caplog.messages == []


def test_the_log_says_who_joined_with_which_versions(network):
    _, here, there = joined_parties(network)
    versions = '{"fedsim": "0.1.0"}'
    assert here.connection.record_event == [("joined", {"peer": "secondary 'rentals'", "versions": versions})]
    assert there.connection.record_event == [("joined", {"peer": "primary 'city'", "versions": versions})]


def test_greetings_are_counted_at_both_ends(network):
    _, here, there = joined_parties(network)
    ledgers = [end.connection.ledger for end in (here, there)]
    until(lambda: all(len(ledger.entries()) == 2 for ledger in ledgers))
    for ledger in ledgers:
        assert sorted((entry.kind, entry.messages) for entry in ledger.entries()) == [("hello", 1), ("welcome", 1)]
