"""A conversation with one peer that outlives its lines: every message arrives once and in order, or the session ends.

Frames are numbered and kept until the other side has acknowledged them; after a cut both sides say what they received
and the rest is sent again. A peer that started anew has forgotten the conversation: the session then ends with
PeerRestarted, and whoever used it goes back to the last common checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TypeVar

from fedsim.errors import AwayError, PeerError, WireError
from fedsim.protocol.codec import Envelope, decode, encode
from fedsim.protocol.messages import Farewell, Hello, Message, Notice, Phase, Refusal, Trouble, Welcome
from fedsim.protocol.parties import Party
from fedsim.protocol.station import Station
from fedsim.protocol.transport.base import Line, LineBroken
from fedsim.protocol.words import plain

log = logging.getLogger("fedsim.parties")

POLL = 0.2  # seconds between looks at the alarm
TELL_AFTER, TELL_EVERY = 3.0, 60.0  # seconds of absence or silence before it is said, and said again
MOST_GARBAGE = 100  # lines dropped in a row, for what the peer sent on them
MOST_WAITING = 1 << 30  # bytes of messages that nobody has looked at yet
HANDSHAKE = (Hello, Welcome, Refusal)
Kind = TypeVar("Kind", bound=Message)


class PeerRestarted(Exception):  # noqa: N818
    """The peer is a new process that knows nothing of this conversation."""

    def __init__(self, peer: Party) -> None:
        super().__init__(f"{peer} started anew")
        self.peer = peer


class Session:
    """Made by a handshake; ``peer_instance`` is the process that is spoken with."""

    def __init__(self, station: Station, peer: Party, ident: bytes, peer_instance: str = "") -> None:
        self.station, self.peer, self.ident, self.peer_instance = station, peer, ident, peer_instance
        self.phase: Phase | None = None  # for the ledger, where a message's own phase does not say it
        self._changed = threading.Condition()
        self._line: Line | None = None
        self._sent, self._received = 0, 0
        self._outbox: deque[tuple[int, Message, bytes]] = deque()
        self._inbox: deque[tuple[Envelope, int]] = deque()
        self._waiting = 0  # bytes of it
        self._over: Exception | None = None
        self._garbage = 0
        self._away_since: float | None = time.monotonic()
        self._touched = time.monotonic()
        self._told = 0.0
        self._notice = ""
        self._done = False

    @property
    def received(self) -> int:
        """The last sequence taken in."""
        return self._received

    @property
    def connected(self) -> bool:
        """Whether there is a line just now."""
        return self._line is not None

    @property
    def away_seconds(self) -> float:
        """Since when there is no line; 0 while there is one."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def is_done(self) -> bool:
        """Whether the peer has said farewell: it will not be there again."""
        return self._done

    @property
    def is_over(self) -> bool:
        """Whether it can never go on."""
        return self._over is not None

    def post(self, message: Message, reply_to: int = 0) -> int:
        """Send a message, now or as soon as there is a line; returns its sequence."""
        with self._changed:
            if self._over:
                raise self._over
            frame = encode(Envelope(message, self.ident, self._sent + 1, self._received, reply_to))
            self._sent += 1
            self._outbox.append((self._sent, message, frame))
            self._send(message, frame)
            return self._sent

    def call(self, message: Message, kind: type[Kind]) -> Kind:
        """Send a message and wait for its answer."""
        return self.fetch(self.post(message), kind)

    def fetch(self, request: int, kind: type[Kind]) -> Kind:
        """The answer to the message of this sequence; answers to earlier ones, no longer wanted, are passed over."""
        while True:
            envelope = self._next(self.station.wait_seconds)
            if envelope.reply_to == request and isinstance(envelope.message, kind):
                return envelope.message
            if envelope.reply_to == request or not 0 < envelope.reply_to < request:
                raise PeerError(
                    f"{self.peer} answered with '{envelope.message.kind}' where '{kind.kind}' is due; "
                    "use the same release everywhere"
                )

    def next(self) -> Envelope:
        """The next message, however long the peer takes while it is there."""
        return self._next(None)

    def check(self) -> None:
        """Raise what has ended the conversation or the job, if anything has."""
        self.station.alarm.check()
        if self._over:
            raise self._over

    def check_received(self, received: int) -> None:
        """Refuse a peer that has received what was never sent."""
        if received > self._sent:
            raise WireError(f"{self.peer} has received {received} frames of a conversation that had {self._sent}")

    def attach(self, line: Line, received: int) -> None:
        """Go on with a new line, on which the peer says it has received this much."""
        with self._changed:
            self.check_received(received)
            if self._over:
                line.close()
                return
            old, self._line, self._away_since, self._told = self._line, line, None, 0.0
            self._touched = time.monotonic()
            self.station.waits.pop(self.peer, None)
            self._acknowledge(received)
            for _, message, frame in self._outbox:
                self._send(message, frame)
            self._changed.notify_all()
        if old is not None and old is not line:
            old.close()

    def read(self, line: Line) -> None:
        """Take in what comes on a line until it breaks; garbage breaks it."""
        try:
            while True:
                self._take(line.receive())
        except WireError as fault:
            self._drop(line)
            log.warning("%s sent what breaks the protocol, its line is dropped: %s", self.peer, fault)
            self.station.note("line dropped", {"peer": str(self.peer), "reason": str(fault)})
            self._lose_patience(fault)
        except LineBroken:
            self._drop(line)

    def end(self, reason: Exception) -> None:
        """Nothing comes after this; whoever waits is told the reason."""
        with self._changed:
            self._over = self._over or reason
            line, self._line = self._line, None
            self._away_since = self._away_since or time.monotonic()
            self._changed.notify_all()
        if line is not None:
            line.close()

    def close(self, seconds: float = 3.0) -> None:
        """Let the last words out, then end."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._over = self._over or PeerError(f"the conversation with {self.peer} has ended")
            line = self._line
        if line is not None:
            line.close()
        with self._changed:
            while self._line is not None and time.monotonic() < deadline:
                self._changed.wait(POLL)

    def _next(self, seconds: float | None) -> Envelope:
        self._touched = time.monotonic()
        try:
            with self._changed:
                while not self._inbox:
                    self.check()
                    self._mind_the_time(seconds)
                    self._changed.wait(POLL)
                envelope, size = self._inbox.popleft()
                self._waiting -= size
                return envelope
        finally:
            self.station.waits.pop(self.peer, None)

    def _mind_the_time(self, seconds: float | None) -> None:
        now = time.monotonic()
        if self._away_since is not None:
            away = now - self._away_since
            if away > self.station.wait_seconds:
                raise AwayError(
                    f"{self.peer} has been away for {away:.0f} seconds; start it again, then this party: both go on "
                    "where they were"
                )
            self._tell_wait(now, away, "")
        elif seconds is not None:
            silent = now - self._touched
            if silent > seconds:
                raise AwayError(
                    f"{self.peer} is connected but has not answered for {seconds:.0f} seconds; look at its log"
                )
            self._tell_wait(now, silent, ", which is connected but silent")

    def _tell_wait(self, now: float, seconds: float, how: str) -> None:
        if seconds <= TELL_AFTER:
            self.station.waits.pop(self.peer, None)
            return
        words = self.station.wait_for(self.peer, seconds, how)
        if not self._told or now - self._told > TELL_EVERY:
            self._told = now
            log.warning("waiting for %s", words)

    def _send(self, message: Message, frame: bytes) -> None:
        if self._line is None:
            return
        try:
            self._line.send(frame)
            self.station.ledger.note(message, self.station.party, self.peer, len(frame), self.phase)
        except LineBroken:
            self._lose(self._line)

    def _lose_patience(self, fault: WireError) -> None:
        """A peer that sends nothing but garbage, on one line after the other, would keep us waiting for ever."""
        self._garbage += 1
        if self._garbage >= MOST_GARBAGE:
            self.end(PeerError(f"{self.peer} broke the protocol {self._garbage} times in a row: {fault}"))

    def _take(self, frame: bytes) -> None:
        envelope = decode(frame)
        message = envelope.message
        if isinstance(message, HANDSHAKE) or envelope.session != self.ident:
            raise WireError(f"a frame '{message.kind}' of another conversation")
        if (self.peer.role, self.station.party.role) not in message.routes:
            raise WireError(f"a {self.peer.role} may not send '{message.kind}' to a {self.station.party.role}")
        with self._changed:
            if not 1 <= envelope.sequence <= self._received + 1 or envelope.acknowledged > self._sent:
                raise WireError(f"frame {envelope.sequence} came after frame {self._received}")
            if self._inbox and self._waiting + len(frame) > MOST_WAITING:
                raise WireError(f"more than {MOST_WAITING} bytes before the first was looked at")
            self._acknowledge(envelope.acknowledged)
            self._touched = time.monotonic()
            if envelope.sequence > self._received:
                self._received, self._garbage = envelope.sequence, 0
                self.station.ledger.note(message, self.peer, self.station.party, len(frame), self.phase)
                self._deliver(envelope, len(frame))
            self._changed.notify_all()

    def _deliver(self, envelope: Envelope, size: int) -> None:
        message = envelope.message
        if isinstance(message, Trouble) and self.station.staying:
            self._away_since = time.monotonic()
            kind = AwayError if message.passing else PeerError
            self._over = self._over or kind(f"{plain(message.origin)} stopped: {plain(message.reason)}")
        elif isinstance(message, Trouble):
            self.station.alarm.ring(plain(message.origin), plain(message.reason), passing=message.passing)
        elif isinstance(message, Notice):
            if message.text != self._notice:
                self._notice = message.text
                log.info("%s: %s", self.peer, plain(message.text))
        else:
            self._done = self._done or isinstance(message, Farewell)
            self._inbox.append((envelope, size))
            self._waiting += size

    def _acknowledge(self, received: int) -> None:
        while self._outbox and self._outbox[0][0] <= received:
            self._outbox.popleft()

    def _drop(self, line: Line) -> None:
        line.close()
        self._lose(line)

    def _lose(self, line: Line) -> None:
        with self._changed:
            if self._line is line:
                self._line, self._away_since = None, time.monotonic()
                self._changed.notify_all()
