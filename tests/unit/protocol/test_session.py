"""A session outlives its connections, and a failure is reported to every waiting caller."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import AwayError, FileError, PeerError, WireError
from fedsim.protocol import session as session_module
from fedsim.protocol.messages import (
    Ask,
    Done,
    Farewell,
    KeepBest,
    Message,
    Notice,
    Party,
    Phase,
    Ready,
    Role,
    Save,
    Trouble,
    Want,
)
from fedsim.protocol.session import MAX_BAD_FRAMES, PeerRestarted, Session
from fedsim.protocol.transport import stream_pair
from session_fixtures import (
    CITY,
    IDENT,
    NOTARY,
    PATIENCE,
    RENTALS,
    Notes,
    connect,
    connected,
    connection_of,
    frame_of,
    joined,
    read_all,
    session_of,
    sessions_of,
    started,
    taken,
    until,
)

OTHER = bytes(16)


@pytest.fixture
def clock(monkeypatch):
    """Hours that pass as the test says."""
    found = Clock()
    real = session_module.time
    fake = SimpleNamespace(monotonic=found, time=real.time, localtime=real.localtime, strftime=real.strftime)
    monkeypatch.setattr(session_module, "time", fake)
    monkeypatch.setattr(session_module, "POLL", 0.001)
    return found


class Clock:
    def __init__(self):
        self.now, self.looked = 1000.0, 0

    def __call__(self):
        self.looked += 1
        return self.now

    def let_pass(self, seconds, waiting):
        """Advance the clock, as fast as a process that is awake can see, until those who wait have noticed."""
        while seconds > 0:
            tick = min(seconds, session_module.MAX_TICK_SECONDS)
            self.jump(tick, waiting)
            seconds -= tick

    def jump(self, seconds, waiting):
        """Advance the clock at once, as it seems to a process that was suspended."""
        self.now += seconds
        seen = self.looked
        until(lambda: self.looked >= seen + 3 or waiting.done())


# --- once and in order -------------------------------------------------------------------------------------------


def test_messages_arrive_once_and_in_order():
    with connected(CITY, RENTALS) as (here, there):
        for step in range(50):
            here.send(Save(step))
        assert [there.receive().message.step for _ in range(50)] == list(range(50))


def test_what_was_said_without_a_line_arrives_with_the_next_one():
    here, there = sessions_of(CITY, RENTALS)
    assert [here.send(Save(step)) for step in range(3)] == [1, 2, 3]
    readers = connect(here, there)
    assert [there.receive().message.step for _ in range(3)] == [0, 1, 2]
    here.close()
    joined(*readers)


def test_only_what_was_not_received_is_sent_again():
    here, line = session_of(CITY, RENTALS), stream_pair()
    for step in range(4):
        here.send(Save(step))
    here.attach(line[0], 2)
    line[0].close()
    assert len(frames_on(line[1])) == 2


def frames_on(line):
    frames = []
    while frame := line._incoming.get_nowait():
        frames.append(frame)
    return frames


def test_what_was_acknowledged_is_forgotten():
    here = session_of(CITY, RENTALS)
    for step in range(4):
        here.send(Save(step))
    read_all(here, frame_of(Done(""), acknowledged=3))
    line = stream_pair()
    here.attach(line[0], 0)
    line[0].close()
    assert len(frames_on(line[1])) == 1


def test_a_new_line_replaces_the_old_one():
    here, there = sessions_of(CITY, RENTALS)
    first = connect(here, there)
    second = connect(here, there)
    joined(*first)
    here.send(KeepBest())
    assert there.receive().message.kind == "keep-best"
    here.close()
    joined(*second)


# --- what breaks a line ------------------------------------------------------------------------------------------

BREAKING = {
    "a gap": frame_of(Done(""), 3),
    "the frame zero": frame_of(Done(""), 0),
    "a frame from the far future": frame_of(Done(""), 2**63),
    "another conversation": frame_of(Done(""), 2, session=OTHER),
    "no conversation": frame_of(Done(""), 2, session=b""),
    "thanks for what was never sent": frame_of(Done(""), 2, acknowledged=7),
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "half a frame": frame_of(Done(""), 2)[:-8],
    "a message of no such route": frame_of(Save(1), 2),
}


@pytest.mark.parametrize("what", BREAKING)
def test_what_breaks_the_protocol_breaks_the_line_and_is_noted(what):
    here = session_of(CITY, RENTALS)
    read_all(here, frame_of(Done("first")), BREAKING[what], frame_of(Done("after"), 2))
    assert [envelope.message.fault for envelope in taken(here)] == ["first"]
    assert here.connection.record_event.kinds == ["line dropped"]
    assert not here.connected
    assert not here.is_over


def test_a_frame_that_our_own_code_fails_on_breaks_the_line_like_any_other(monkeypatch):
    here, whole = session_of(CITY, RENTALS), session_module.decode

    def decode_with_a_defect(frame):
        if frame == b"unforeseen":
            raise OverflowError("a defect of ours")
        return whole(frame)

    monkeypatch.setattr(session_module, "decode", decode_with_a_defect)
    for sequence in range(1, MAX_BAD_FRAMES):
        read_all(here, frame_of(Done(""), sequence), b"unforeseen")
        assert not here.connected
    assert not here.is_over
    assert set(here.connection.record_event.kinds) == {"line dropped"}
    assert "a defect of ours" not in str(here.connection.record_event)  # its text may hold data
    for _ in range(MAX_BAD_FRAMES):
        read_all(here, b"unforeseen")
    with raises(PeerError, "too-many-bad-frames"):
        here.check()


def test_a_log_that_cannot_be_written_leaves_no_session_that_seems_connected():
    here, full = session_of(CITY, RENTALS), FileError("no space left", code="log-full")

    def refuse(event, facts):
        raise full

    here.connection.record_event = refuse
    with raises(FileError, "log-full"):
        read_all(here, b"garbage")
    assert not here.connected


def test_frames_of_the_same_conversation_that_come_again_are_passed_over():
    here, frames = session_of(CITY, RENTALS), [frame_of(Done(str(n)), n) for n in range(1, 5001)]
    read_all(here, *frames)
    assert len(taken(here)) == 5000
    read_all(here, *frames, *reversed(frames))
    assert not taken(here)
    assert here.received == 5000


def test_no_recorded_frame_is_accepted_in_another_conversation():
    recorded = [frame_of(Done(str(n)), n) for n in range(1, 101)]
    here = Session(connection_of(CITY, record_event=Notes()), RENTALS, OTHER)
    for frame in recorded[: MAX_BAD_FRAMES - 1]:
        read_all(here, frame)
    assert here.received == 0
    assert here.connection.record_event.kinds == ["line dropped"] * (MAX_BAD_FRAMES - 1)


def test_a_peer_that_sends_nothing_but_garbage_ends_the_conversation():
    here = session_of(CITY, RENTALS)
    for _ in range(MAX_BAD_FRAMES):
        read_all(here, b"garbage")
    with raises(PeerError, "too-many-bad-frames"):
        here.receive()


def test_a_peer_that_also_makes_sense_is_heard_for_ever():
    here = session_of(CITY, RENTALS)
    for sequence in range(1, 2 * MAX_BAD_FRAMES):
        read_all(here, frame_of(Done(""), sequence), b"garbage")
    assert len(taken(here)) == 2 * MAX_BAD_FRAMES - 1


def test_what_no_peer_would_take_is_not_said_and_leaves_no_gap():
    here = session_of(CITY, RENTALS)
    with raises(WireError, "bad-arrays"):
        here.send(Ask(1, rows=np.zeros(2)))
    assert here.send(KeepBest()) == 1


# --- what a peer can cost ----------------------------------------------------------------------------------------


def test_a_peer_that_never_acknowledges_cannot_fill_our_memory(monkeypatch, others):
    monkeypatch.setattr(session_module, "MAX_OUTBOX_BYTES", 1000)
    here = session_of(RENTALS, CITY, wait_seconds=PATIENCE)
    sending = others.submit(lambda: [here.send(Done("x" * 100)) for _ in range(100)])
    until(lambda: here._outbox_is_full)
    assert not sending.done()
    assert here._outbox_bytes < 1500
    sent = here._sent
    read_all(here, frame_of(Save(1), acknowledged=sent))
    until(lambda: here._sent > sent)
    here.end(PeerError("", code="enough"))
    with raises(PeerError, "enough"):
        sending.result(PATIENCE)


def test_a_peer_that_acknowledges_nothing_in_time_is_named(monkeypatch):
    monkeypatch.setattr(session_module, "MAX_OUTBOX_FRAMES", 3)
    here = session_of(RENTALS, CITY, wait_seconds=0)
    for _ in range(3):
        here.send(Done(""))
    with raises(AwayError, "peer-silent"):
        here.send(Done(""))
    assert here.send(Notice("dropped")) == 3
    assert here.send(Farewell()) == 4  # the last word never waits


def test_a_peer_that_reads_acknowledges_long_before_we_wait(monkeypatch):
    monkeypatch.setattr(session_module, "MAX_OUTBOX_FRAMES", 50)
    monkeypatch.setattr(session_module, "ACKNOWLEDGE_FRAMES", 10)
    with connected(CITY, RENTALS) as (here, there):
        for step in range(500):  # nobody takes a message, let alone answers
            here.send(Save(step))
        assert len(here._outbox) <= 50
        until(lambda: there.received == 500)


def test_a_peer_that_acknowledges_nothing_is_not_thanked_for_ever(monkeypatch):
    monkeypatch.setattr(session_module, "MAX_OUTBOX_FRAMES", 10)
    monkeypatch.setattr(session_module, "ACKNOWLEDGE_FRAMES", 1)
    here = session_of(CITY, RENTALS)
    read_all(here, *(frame_of(Notice(""), n) for n in range(1, 100)))
    assert here.received == 99
    assert len(here._outbox) <= 20


def test_unread_messages_are_bounded_by_their_number_too(monkeypatch):
    monkeypatch.setattr(session_module, "MAX_INBOX_FRAMES", 10)
    here = session_of(CITY, RENTALS)
    read_all(here, *(frame_of(Done(""), n) for n in range(1, 20)))
    assert len(taken(here)) == 10
    assert "line dropped" in here.connection.record_event.kinds


def test_a_flood_of_notices_or_of_broken_lines_does_not_fill_the_log(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "fedsim.parties")
    monkeypatch.setattr(session_module, "MAX_LOGGED_EVENTS", 5)
    here = session_of(CITY, NOTARY)
    for sequence in range(1, 20):
        read_all(here, frame_of(Notice(str(sequence)), sequence), b"garbage")
    assert len(caplog.messages) == 10
    assert here.connection.record_event.kinds == ["line dropped"] * 5


# --- questions and answers ---------------------------------------------------------------------------------------


def asking(*answers: bytes, kind=Done, questions=1):
    """What the last of some questions is answered, given these frames."""
    here = session_of(CITY, RENTALS)
    requests = [here.send(Save(number)) for number in range(questions)]
    read_all(here, *answers)
    return here.wait_reply(requests[-1], kind)


def test_an_answer_is_found_by_its_question():
    assert asking(frame_of(Done("yes"), reply_to=1)).fault == "yes"


def test_answers_to_questions_of_a_failed_attempt_are_passed_over():
    stale = [frame_of(Done("old"), 1, reply_to=1), frame_of(Ready(1, 1), 2, reply_to=2)]
    assert asking(*stale, frame_of(Done("new"), 3, reply_to=3), questions=3).fault == "new"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (frame_of(Ready(1, 1), reply_to=1), Done),
        (frame_of(Done("")), Done),
        (frame_of(Done(""), reply_to=9), Done),
        (frame_of(Done("")), Message),
    ],
)
def test_what_answers_another_question_or_none_is_an_error(answer, kind):
    with raises(PeerError, "unexpected-reply"):
        asking(answer, kind=kind)


def test_a_call_goes_and_comes(others):
    with connected(CITY, RENTALS) as (here, there):
        answer = others.submit(here.call, Save(3), Done)
        question = there.receive()
        there.send(Done(str(question.message.step)), reply_to=question.sequence)
        assert answer.result(PATIENCE).fault == "3"


# --- how long one waits ------------------------------------------------------------------------------------------


def test_a_peer_that_stays_away_is_named_after_the_time_given(clock, others):
    here = session_of(CITY, RENTALS, wait_seconds=10)
    waiting = others.submit(here.receive)
    clock.let_pass(9.5, waiting)
    assert not waiting.done()
    clock.let_pass(1, waiting)
    with raises(PeerError, "peer-away"):
        waiting.result(PATIENCE)


def test_a_peer_that_is_there_and_silent_is_named_after_the_time_given(clock, others):
    with connected(CITY, RENTALS, wait_seconds=10) as (here, _):
        waiting = others.submit(here.call, Save(1), Done)
        clock.let_pass(9.5, waiting)
        assert not waiting.done()
        clock.let_pass(1, waiting)
        with raises(PeerError, "peer-silent"):
            waiting.result(PATIENCE)


def test_whoever_waits_for_a_question_waits_while_the_peer_is_there(clock, others):
    with connected(CITY, RENTALS, wait_seconds=10) as (here, there):
        waiting = others.submit(here.receive)
        clock.let_pass(100, waiting)
        there.send(Done("late"))
        assert waiting.result(PATIENCE).message.fault == "late"


def test_a_word_on_why_it_takes_long_gives_more_time(clock, others, caplog):
    caplog.set_level(logging.INFO, "fedsim.parties")
    with connected(CITY, NOTARY, wait_seconds=10) as (here, there):
        waiting = others.submit(here.wait_reply, here.send(Farewell()), Want)
        for _ in range(3):
            clock.let_pass(9, waiting)
            sequence = there.send(Notice("waits for the secondary's identifiers"))
            until(lambda sequence=sequence: here.received == sequence)
        there.send(Want(True), reply_to=1)
        assert waiting.result(PATIENCE).wanted
    assert sum("waits for the secondary's identifiers" in message for message in caplog.messages) == 1  # news once


def test_an_absence_is_told_once_a_minute(clock, others, caplog):
    here = session_of(CITY, RENTALS, wait_seconds=1000)
    waiting = others.submit(here.receive)
    for seconds in (1, 4, 30, 59, 2):
        clock.let_pass(seconds, waiting)
    here.end(PeerError("", code="enough"))
    assert len(caplog.messages) == 2
    assert all(str(RENTALS) in message for message in caplog.messages)
    with raises(PeerError, "enough"):
        waiting.result(PATIENCE)


def test_whom_one_waits_for_is_known_until_it_comes_back(clock, others):
    here, there = sessions_of(CITY, RENTALS, wait_seconds=1000)
    waiting = others.submit(here.receive)
    clock.let_pass(4, waiting)
    until(lambda: here.connection.waits)
    assert str(RENTALS) in here.connection.waits[RENTALS]
    readers = connect(here, there)
    assert not here.connection.waits
    there.send(Done("back"))
    assert waiting.result(PATIENCE).message.fault == "back"
    there.end(RuntimeError("cut"))
    joined(*readers)


def test_a_process_that_was_suspended_does_not_call_its_peer_away(clock, others):
    here = session_of(CITY, RENTALS, wait_seconds=10)
    waiting = others.submit(here.receive)
    clock.jump(3600, waiting)
    assert not waiting.done()
    clock.let_pass(11, waiting)
    with raises(PeerError, "peer-away"):
        waiting.result(PATIENCE)


def test_a_process_that_was_suspended_does_not_call_its_peer_silent(clock, others):
    with connected(CITY, RENTALS, wait_seconds=10) as (here, _):
        waiting = others.submit(here.call, Save(1), Done)
        clock.jump(3600, waiting)
        assert not waiting.done()
        clock.let_pass(11, waiting)
        with raises(PeerError, "peer-silent"):
            waiting.result(PATIENCE)


def test_a_long_silence_is_told_too(clock, others, caplog):
    with connected(CITY, RENTALS, wait_seconds=10) as (here, there):
        waiting = others.submit(here.call, Save(1), Done)
        clock.let_pass(4, waiting)
        there.send(Done(""), reply_to=1)
        waiting.result(PATIENCE)
    assert str(RENTALS) in caplog.messages[0]


def test_the_time_away_counts_from_the_last_cut(clock, others):
    here, there = sessions_of(CITY, RENTALS, wait_seconds=10)
    waiting = others.submit(here.receive)
    for _ in range(3):
        clock.let_pass(9, waiting)
        readers = connect(here, there)
        there.end(RuntimeError("cut"))
        joined(*readers)
        there = session_of(RENTALS, CITY)
    clock.let_pass(11, waiting)
    with raises(PeerError, "peer-away"):
        waiting.result(PATIENCE)


# --- the end -----------------------------------------------------------------------------------------------------


def test_trouble_is_heard_by_all_who_wait_whomever_they_wait_for(others):
    connection = connection_of(CITY, wait_seconds=600)
    sessions = [Session(connection, Party(Role.SECONDARY, name), IDENT) for name in ("rentals", "schools", "shops")]
    waiting = [others.submit(session.receive) for session in sessions]
    read_all(sessions[0], frame_of(Trouble("secondary 'rentals'", "its owner stopped it", False)))
    for each in waiting:
        with raises(PeerError, "peer-stopped"):
            each.result(PATIENCE)


def test_the_first_trouble_is_the_one_that_is_told():
    here, name = session_of(CITY, RENTALS), str(RENTALS)
    read_all(here, frame_of(Trouble(name, "first", True)), frame_of(Trouble(name, "second", False), 2))
    assert here.connection.stop_signal.failure == (name, "first", True)


def test_trouble_names_its_sender_whomever_it_blames(others):
    here = session_of(CITY, RENTALS)
    waiting = others.submit(here.receive)
    read_all(here, frame_of(Trouble("coordinator 'notary'", "stole the data", False)))
    with raises(PeerError, "peer-stopped", origin=str(RENTALS)):
        waiting.result(PATIENCE)
    assert here.connection.stop_signal.failure.reason.startswith("it reports that coordinator 'notary' stopped")


def test_an_echo_of_the_failure_of_an_earlier_process_of_ours_stops_nobody():
    here = session_of(CITY, RENTALS)
    read_all(here, frame_of(Trouble(str(CITY), "its disk is full", False)), frame_of(Done(""), 2))
    assert here.connection.stop_signal.failure is None
    assert isinstance(here.receive().message, Done)


def test_words_of_a_peer_cannot_write_to_our_terminal(caplog):
    caplog.set_level(logging.INFO, "fedsim.parties")
    here = session_of(CITY, RENTALS)
    read_all(here, frame_of(Notice("a\x1b[2Jb\nc")), frame_of(Trouble("x\r", "\u202ey" * 5000, False), 2))
    assert caplog.messages[0] == f"{RENTALS}: a?[2Jb c"
    assert here.connection.stop_signal.failure.origin == str(RENTALS)
    assert here.connection.stop_signal.failure.reason == "it reports that x  stopped: " + "?y" * 1000


def test_the_last_words_go_out_before_the_end():
    here, there = sessions_of(CITY, RENTALS)
    readers = connect(here, there)
    here.send(Farewell())
    here.close()
    joined(*readers)
    assert isinstance(there.receive().message, Farewell)
    assert not here.connected


def test_nothing_can_be_said_after_the_end():
    here = session_of(CITY, RENTALS)
    here.close()
    with raises(PeerError, "session-closed"):
        here.send(KeepBest())
    with raises(PeerError, "session-closed"):
        here.receive()


def test_whoever_waits_is_told_that_the_peer_has_started_anew(others):
    here = session_of(CITY, RENTALS)
    waiting = others.submit(here.call, Save(1), Done)
    here.end(PeerRestarted(RENTALS))
    with pytest.raises(PeerRestarted):
        waiting.result(PATIENCE)


def test_the_first_reason_of_an_end_stays():
    here = session_of(CITY, RENTALS)
    here.end(PeerError("", code="first"))
    here.end(PeerError("", code="second"))
    with raises(PeerError, "first"):
        here.check()


def test_a_line_that_comes_after_the_end_is_let_go():
    here, (line, other) = session_of(CITY, RENTALS), stream_pair()
    here.end(PeerError("enough"))
    here.attach(line, 0)
    assert not here.connected
    reader = started(here.read, line)
    joined(reader)
    assert frames_on(other) == []


def test_what_is_in_hand_is_given_before_the_end_is_told():
    here = session_of(CITY, RENTALS)
    read_all(here, frame_of(Done("still here")))
    here.end(PeerRestarted(RENTALS))
    assert here.receive().message.fault == "still here"
    with pytest.raises(PeerRestarted):
        here.receive()


# --- the ledger --------------------------------------------------------------------------------------------------


def test_both_sides_count_the_same_frames():
    with connected(CITY, RENTALS) as (here, there):
        there.phase = here.phase = Phase.PREDICT
        for step in range(3):
            here.send(Save(step))
        for _ in range(3):
            there.receive()
        counted = here.connection.ledger.entries()
        assert counted == there.connection.ledger.entries()
    assert [(e.phase, e.kind, e.sender, e.receiver, e.messages) for e in counted] == [
        ("predict", "save", "primary 'city'", "secondary 'rentals'", 3)
    ]
    assert counted[0].bytes == sum(len(frame_of(Save(step), step + 1)) for step in range(3))
