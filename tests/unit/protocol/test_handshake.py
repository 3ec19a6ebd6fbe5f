"""Who is let in, who is not and why, and how a conversation is found again."""

from __future__ import annotations

import json

import pytest

from error_fixtures import raises
from fedsim.errors import PeerError
from fedsim.protocol import handshake, session as session_module
from fedsim.protocol.handshake import SessionAcceptor
from fedsim.protocol.messages import KeepBest, Party, Refusal, Role, Welcome
from fedsim.protocol.session import PeerRestarted
from fedsim.protocol.transport import ConnectionLost, Envelope, decode, encode, stream_pair
from session_fixtures import (
    CITY,
    JOB,
    NOTARY,
    RENTALS,
    SCHOOLS,
    Notes,
    connection_of,
    hello_of,
    receiving,
    until,
)

DEEP = "[" * 100_000 + "]" * 100_000


def answered(frame: bytes, caller: Party | None = None) -> tuple[Refusal, Notes]:
    """What a caller is told that begins with this frame and is not let in, and what is noted."""
    acceptor, (here, there) = (
        SessionAcceptor(connection_of(CITY, record_event=Notes()), [RENTALS, SCHOOLS]),
        stream_pair(),
    )
    here.send(frame)
    acceptor.answer(caller, there)
    reply = decode(here.receive()).message
    with pytest.raises(ConnectionLost):
        here.receive()
    return reply, acceptor.connection.record_event


def reason_for(caller: Party | None = None, **changes) -> str:
    """Why a rentals party that says this is not let in."""
    reply, notes = answered(encode(Envelope(hello_of(RENTALS, **changes))), caller)
    assert not reply.passing
    assert notes == [("refused", {"peer": str(caller or "a caller"), "reason": reply.reason})]
    return reply.reason


# --- who is not let in -------------------------------------------------------------------------------------------


def test_another_job_is_refused_with_the_first_difference():
    other = json.dumps({**JOB, "training": {"batch": 512}}, sort_keys=True)
    reason = reason_for(job=other)
    assert all(part in reason for part in ("job.training.batch", "128", "512", str(CITY), str(RENTALS)))


@pytest.mark.parametrize(
    ("job", "place"),
    [
        ("{}", "job.name"),
        (json.dumps(JOB, indent=1), "job"),
        ("no JSON", "job"),
        ("", "job"),
        (DEEP, "job"),
        ('{"name":' * 50_000 + "1" + "}" * 50_000, "job"),
        ("9" * 5000, "job"),
        (json.dumps({**JOB, "\ud800": 1}), "job.?"),
        (json.dumps({**JOB, "\x1b[2J\n": 1}), "job.?[2J "),
        (json.dumps({**JOB, "seed": float("nan")}), "job.seed"),
        (json.dumps({**JOB, "more": "x" * 9999}), "job.more"),
    ],
)
def test_a_job_may_be_any_text_and_its_caller_is_told_why_not(job, place):
    reason = reason_for(job=job)
    assert place in reason
    assert len(reason) < 400


def test_versions_that_would_fill_our_log_are_refused():
    assert "2048" in reason_for(versions=DEEP)


@pytest.mark.parametrize("versions", ['{"fedsim": "9.9"}', "{}", "[]", "null", "", "[" * 2000, '{"fedsim": {}}'])
def test_another_release_is_refused(versions):
    assert "fedsim 0.1.0" in reason_for(versions=versions)


def test_a_party_the_job_does_not_know_is_refused():
    assert "secondary 'strangers'" in reason_for(party="strangers")


@pytest.mark.parametrize("role", ["primary", "coordinator"])
def test_a_party_in_another_role_is_refused(role):
    assert f"{role} 'rentals'" in reason_for(role=role)


@pytest.mark.parametrize(
    "claim", [{"role": "root"}, {"role": ""}, {"party": ""}, {"party": "../x"}, {"party": "é" * 99}]
)
def test_a_role_or_name_that_none_can_have_is_refused(claim):
    assert reason_for(**claim).isprintable()


@pytest.mark.parametrize("caller", [SCHOOLS, Party(Role.PRIMARY, "rentals"), Party(Role.COORDINATOR, "rentals"), CITY])
def test_a_name_or_role_that_the_certificate_does_not_prove_is_refused(caller):
    assert str(caller) in reason_for(caller)


@pytest.mark.parametrize("frame", [b"GET / HTTP/1.1", b"\0" * 64, b"FSIM", encode(Envelope(hello_of(RENTALS)))[:-8]])
def test_garbage_for_a_greeting_is_turned_away(frame):
    reply, notes = answered(frame, RENTALS)
    assert not reply.passing
    assert notes == [("refused", {"peer": "secondary 'rentals'", "reason": reply.reason})]


def test_whoever_begins_with_another_message_is_turned_away():
    reply, _ = answered(encode(Envelope(KeepBest())))
    assert "'keep-best'" in reply.reason


def test_a_caller_that_says_nothing_is_turned_away_in_time(monkeypatch):
    monkeypatch.setattr(handshake, "HELLO_SECONDS", 0.02)
    acceptor, (here, there) = SessionAcceptor(connection_of(CITY, record_event=Notes()), [RENTALS]), stream_pair()
    acceptor.answer(RENTALS, there)
    assert acceptor.connection.record_event.kinds == ["refused"]
    with pytest.raises(ConnectionLost):
        here.receive()


def test_a_greeting_that_our_own_code_fails_on_holds_no_line(monkeypatch):
    def decode_with_a_defect(frame):
        raise OverflowError

    monkeypatch.setattr(handshake, "decode", decode_with_a_defect)
    acceptor, (here, there) = SessionAcceptor(connection_of(CITY, record_event=Notes()), [RENTALS]), stream_pair()
    here.send(encode(Envelope(hello_of(RENTALS))))
    with pytest.raises(OverflowError):
        acceptor.answer(RENTALS, there)
    assert there.closed


def test_a_caller_that_hangs_up_at_once_does_no_harm():
    acceptor, (here, there) = SessionAcceptor(connection_of(CITY), [RENTALS]), stream_pair()
    here.send(encode(Envelope(hello_of(RENTALS))))
    here.close()
    acceptor.answer(None, there)
    assert not any(session.connected for session in acceptor.sessions())


# --- one process per party ---------------------------------------------------------------------------------------


def greeted(transport, **changes):
    """A line that was let in, and the session it was told."""
    line = transport.dial("endpoint", CITY)
    line.send(encode(Envelope(hello_of(RENTALS, **changes))))
    return line, decode(line.receive()).message


def test_a_second_process_is_refused_while_the_first_speaks():
    with receiving(connection_of(CITY, record_event=Notes()), RENTALS) as (acceptor, transport):
        _, welcome = greeted(transport, instance="one")
        for _ in range(3):
            _, refusal = greeted(transport, instance="two")
            assert refusal.passing
        assert acceptor.session_with(RENTALS).ident.hex() == welcome.session
        assert acceptor.connection.record_event.kinds == ["joined", "refused"]  # that it tries again is no news


def test_a_second_process_is_let_in_when_the_line_of_the_first_is_dead():
    with receiving(connection_of(CITY), RENTALS) as (acceptor, transport):
        line, welcome = greeted(transport, instance="one")
        first = acceptor.session_with(RENTALS)
        line.close()
        until(lambda: not first.connected)
        _, second = greeted(transport, instance="two")
        assert second.session != welcome.session
        with pytest.raises(PeerRestarted):
            first.receive()
        assert acceptor.session_with(RENTALS).ident.hex() == second.session


def test_whoever_claims_to_have_received_what_was_never_sent_is_turned_away():
    with receiving(connection_of(CITY, record_event=Notes()), RENTALS) as (_, transport):
        _, welcome = greeted(transport, instance="one")
        _, refusal = greeted(transport, instance="one", resume=welcome.session, received=7)
        assert "7" in refusal.reason
        assert not refusal.passing


@pytest.mark.parametrize(("theirs", "warned"), [("2.9", True), ("2.4", False)])
def test_another_library_is_worth_a_word(caplog, theirs, warned):
    caplog.set_level("INFO", "fedsim.parties")
    here = connection_of(CITY, versions={"fedsim": "0.1.0", "numpy": "2.4"}, record_event=Notes())
    with receiving(here, RENTALS) as (acceptor, transport):
        greeted(transport, versions=json.dumps({"fedsim": "0.1.0", "numpy": theirs, "torch": "2"}))
        acceptor.session_with(RENTALS)
    assert any("numpy" in message for message in caplog.messages) == warned
    assert "torch" not in caplog.text  # which this process has not loaded


def test_another_process_cannot_go_on_with_a_conversation_it_has_heard_of():
    with receiving(connection_of(CITY), RENTALS) as (acceptor, transport):
        line, welcome = greeted(transport, instance="one")
        first = acceptor.session_with(RENTALS)
        line.close()
        until(lambda: not first.connected)
        _, second = greeted(transport, instance="two", resume=welcome.session)
        assert second.session != welcome.session
        assert first.is_over


def test_the_same_process_goes_on_where_it_was_even_if_its_old_line_seems_alive():
    with receiving(connection_of(CITY), RENTALS) as (acceptor, transport):
        line, welcome = greeted(transport)
        session = acceptor.session_with(RENTALS)
        _, again = greeted(transport, resume=welcome.session)
        assert again.session == welcome.session
        with pytest.raises(ConnectionLost):
            line.receive()
        assert session.connected


# --- the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", [0.0, -1e300, 1e300, 4e9])
def test_a_wrong_clock_is_worth_a_word_and_no_more(clock, caplog):
    with receiving(connection_of(CITY), RENTALS) as (_, transport):
        _, welcome = greeted(transport, clock=clock)
        assert isinstance(welcome, Welcome)
        until(lambda: caplog.messages)
    assert all(part in caplog.messages[0] for part in ("clock", str(RENTALS)))


def test_a_wrong_clock_that_returns_again_and_again_does_not_fill_the_log(monkeypatch, caplog):
    monkeypatch.setattr(session_module, "MAX_LOGGED_EVENTS", 3)
    acceptor = SessionAcceptor(connection_of(CITY), [RENTALS])
    for _ in range(9):
        here, there = stream_pair()
        here.send(encode(Envelope(hello_of(RENTALS, clock=0.0))))
        here.send(b"no frame, so that the connection ends")
        acceptor.answer(RENTALS, there)
    assert sum("clock" in message for message in caplog.messages) == 3


def test_a_party_that_does_not_come_is_named_after_the_time_given():
    acceptor = SessionAcceptor(connection_of(CITY, wait_seconds=0.05), [RENTALS])
    with raises(PeerError, "peer-away"):
        acceptor.session_with(RENTALS)


def test_whoever_waits_for_a_party_hears_the_alarm():
    acceptor = SessionAcceptor(connection_of(NOTARY), [RENTALS])
    acceptor.connection.stop_signal.report_failure("primary 'city'", "its own table breaks a rule")
    with raises(PeerError, "peer-stopped"):
        acceptor.session_with(RENTALS)
