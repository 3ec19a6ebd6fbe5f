"""Every message arrives once and in order, whatever happens to the lines it travels on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedsim.protocol.handshake import SessionConnector
from fedsim.protocol.messages import Begin, Done, Farewell, Save
from fedsim.protocol.transport import ConnectionLost
from session_fixtures import CITY, IDENT, PATIENCE, RENTALS, Notes, connection_of, receiving, sessions_of, taken

FAULTS = {
    "cut": lambda frames, place, byte: frames[:place],
    "duplicate": lambda frames, place, byte: [*frames[: place + 1], *frames[place:]],
    "lose": lambda frames, place, byte: [*frames[:place], *frames[place + 1 :]],
    "swap": lambda frames, place, byte: [*frames[:place], *reversed(frames[place : place + 2]), *frames[place + 2 :]],
    "again": lambda frames, place, byte: [*frames, *frames],
    "garbage": lambda frames, place, byte: [*frames[:place], bytes([byte]) * byte, *frames[place:]],
    "corrupt": lambda frames, place, byte: _each(frames, place, lambda frame: _flipped(frame, byte)),
    "truncate": lambda frames, place, byte: _each(frames, place, lambda frame: frame[:byte]),
    "lengthen": lambda frames, place, byte: _each(frames, place, lambda frame: frame + bytes(byte)),
}


def _each(frames, place, change):
    return [change(frame) if number == place else frame for number, frame in enumerate(frames)]


def _flipped(frame, byte):
    if not frame:
        return frame
    place = byte * 7 % len(frame)
    return frame[:place] + bytes([frame[place] ^ (byte | 1)]) + frame[place + 1 :]


class Short:
    """A line on which all that is ever sent waits until the test has had its way with it."""

    def __init__(self):
        self.sent, self.coming, self.closed = [], [], False

    def send(self, frame):
        if self.closed:
            raise ConnectionLost
        self.sent.append(frame)

    def receive(self):
        if self.closed or not self.coming:
            raise ConnectionLost
        return self.coming.pop(0)

    def close(self):
        self.closed = True


class Talk:
    """Two parties who number their words, over one short line after the other."""

    def __init__(self):
        self.sides = sessions_of(CITY, RENTALS)
        self.sent, self.heard = ([], []), ([], [])

    def say(self, side, words):
        for _ in range(words):
            self.sent[side].append(len(self.sent[side]))
            message = Save(self.sent[0][-1]) if side == 0 else Done(str(self.sent[1][-1]))
            self.sides[side].send(message)

    def line(self, words=(0, 0), faults=((), ())):
        """The life of a line: what was not received goes out, more is said, mischief is done, the rest arrives."""
        lines = Short(), Short()
        for side, other in ((0, 1), (1, 0)):
            self.sides[side].attach(lines[side], self.sides[other].received)
        for side in (0, 1):
            self.say(side, words[side])
        for side, other in ((0, 1), (1, 0)):
            lines[side].coming = self.harmed(lines[other].sent, faults[side])
        for side in (0, 1):
            self.sides[side].read(lines[side])
            self.heard[side].extend(self.words_of(side))

    def harmed(self, frames, faults):
        for how, place, byte in faults:
            frames = FAULTS[how](frames, place % (len(frames) + 1), byte)
        return list(frames)

    def words_of(self, side):
        messages = [envelope.message for envelope in taken(self.sides[side])]
        return [int(message.fault) if side == 0 else message.step for message in messages]

    @property
    def in_order(self):
        """Whether each side has heard the beginning of what the other said, and nothing else."""
        return all(self.heard[side] == self.sent[1 - side][: len(self.heard[side])] for side in (0, 1))

    @property
    def is_whole(self):
        return self.heard == (self.sent[1], self.sent[0])


faults = st.lists(st.tuples(st.sampled_from(list(FAULTS)), st.integers(0, 9), st.integers(0, 255)), max_size=4)
words = st.integers(0, 4)
lives = st.tuples(words, words, st.tuples(words, words), st.tuples(faults, faults))


@settings(max_examples=300)
@given(st.lists(lives, max_size=12))
def test_a_conversation_survives_any_lines(history):
    talk = Talk()
    for away_here, away_there, during, mischief in history:
        talk.say(0, away_here)
        talk.say(1, away_there)
        talk.line(during, mischief)
        assert talk.in_order
    talk.line()
    assert talk.is_whole


def test_a_conversation_survives_ten_thousand_faults():
    rng, talk = np.random.default_rng(18), Talk()
    for _ in range(2500):
        drawn = [
            (list(FAULTS)[how], place, byte) for how, place, byte in rng.integers(0, (len(FAULTS), 8, 256), (4, 3))
        ]
        talk.line(rng.integers(0, 4, 2), (drawn[:2], drawn[2:]))
    assert talk.in_order
    talk.line()
    assert talk.is_whole
    assert len(talk.sent[0]) > 2000


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=30))
def test_recorded_frames_in_any_order_are_heard_once_at_most(replay):
    talk = Talk()
    talk.say(0, 10)
    line = Short()
    talk.sides[0].attach(line, 0)
    strange = [frame.replace(IDENT, bytes(16)) for frame in line.sent]  # of another conversation
    mixed = [(strange if other else line.sent)[place % 10] for place, _, other in replay]
    there = Short()
    talk.sides[1].attach(there, 0)
    there.coming = [*line.sent, *mixed]
    talk.sides[1].read(there)
    assert talk.words_of(1) == list(range(10))


# --- the same with threads, handshakes and lines that are mended by themselves ------------------------------------


MOST_FAULTS = 1000


class Mischief:
    """A transport whose lines go wrong: now a frame comes twice or broken, now the line is cut, even while greeting."""

    def __init__(self, transport, rng):
        self.transport, self.rng, self.lock = transport, rng, threading.Lock()
        self.faults = 0

    def dial(self, address, peer):
        return _Mischievous(self.transport.dial(address, peer), self)

    def draw(self):
        """Which fault comes next, if any."""
        with self.lock:
            roll, byte = self.rng.integers(0, (20, 256)).tolist()
            self.faults += roll < 5
            return (roll, byte) if self.faults <= MOST_FAULTS else (99, 0)


class _Mischievous:
    def __init__(self, line, mischief):
        self.line, self.mischief, self.greeted = line, mischief, [False, False]

    def send(self, frame):
        for each in self._harmed(frame, 0):
            self.line.send(each)

    def receive(self):
        while True:
            frames = self._harmed(self.line.receive(), 1)
            if frames:
                return frames[0]

    def close(self):
        self.line.close()

    def _harmed(self, frame, way):
        first, self.greeted[way] = not self.greeted[way], True
        roll, byte = self.mischief.draw()
        if roll == 0:
            self.line.close()
            raise ConnectionLost
        if first or roll > 4:
            return [frame]
        return [[frame, frame], [_flipped(frame, byte)], [frame[:byte]], [bytes([byte]) * 40]][roll - 1]


@pytest.mark.parametrize("seed", [1, 2])
def test_calls_over_lines_that_break_a_thousand_times_get_their_answers(seed, monkeypatch):
    monkeypatch.setattr("fedsim.protocol.session.RETRY_SECONDS", 0.001)
    with (
        receiving(connection_of(CITY, record_event=Notes()), RENTALS) as (acceptor, transport),
        ThreadPoolExecutor() as pool,
    ):
        mischief = Mischief(transport, np.random.default_rng(seed))
        answering = pool.submit(
            answer_all, SessionConnector(connection_of(RENTALS, record_event=Notes()), mischief, "endpoint", CITY)
        )
        session = acceptor.session_with(RENTALS)
        asked = 0
        while mischief.faults <= MOST_FAULTS:
            assert session.call(Save(asked), Done).fault == str(asked)
            asked += 1
        session.send(Begin(1))
        session.send(Farewell())
        assert answering.result(PATIENCE) == [*range(asked)]


def answer_all(dialler):
    """Answer every question with its number; return the numbers."""
    session, asked = dialler.open(), []
    while True:
        envelope = session.receive()
        if isinstance(envelope.message, Farewell):
            session.close()
            return asked
        if isinstance(envelope.message, Save):
            asked.append(envelope.message.step)
            session.send(Done(str(envelope.message.step)), reply_to=envelope.sequence)
