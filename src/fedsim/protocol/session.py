"""A session with one peer that survives reconnects, the state that all sessions of a process share, and failure notices."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedsim.errors import (
    AwayError,
    FedSimError,
    FileError,
    FingerprintError,
    InputError,
    PeerError,
    PolicyError,
    SettingError,
    WireError,
)
from fedsim.protocol.codec import Envelope, decode, encode
from fedsim.protocol.messages import (
    Farewell,
    Hello,
    Ledger,
    Message,
    Notice,
    Party,
    Phase,
    Refusal,
    Trouble,
    Welcome,
    safe_peer_text,
)
from fedsim.protocol.transport import ConnectionLost, FrameStream

# What all conversations of one process share: who speaks, what was counted, and whether anybody gave up


SIGNAL_POLL = 0.2
EventLogger = Callable[[str, Mapping[str, Any]], object]


def _ignore_event(what: str, facts: Mapping[str, Any]) -> None:
    """Notes go nowhere unless a party keeps a log."""


class StopSignal:
    """Rung once, by whoever fails first; everybody who waits hears it, and so with the owner's wish to stop.

    An exception out of a signal, in the midst of gRPC, would leave locks behind that nobody opens again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rung: tuple[str, str, bool] | None = None
        self._stopped = False

    def report_failure(self, origin: str, reason: str, *, passing: bool = False) -> None:
        """Tell all who wait in this process; the first reason stays. One that passes is worth another attempt."""
        with self._lock:
            self._rung = self._rung or (origin, reason, passing)

    def stop(self) -> None:
        """The owner wishes to stop; all who wait leave with KeyboardInterrupt."""
        self._stopped = True

    @property
    def rung(self) -> tuple[str, str, bool] | None:
        """Who failed, why, and whether that passes."""
        return self._rung

    def check_interrupt(self) -> None:
        """Leave with KeyboardInterrupt where the owner wishes to stop, whatever the others do."""
        if self._stopped:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise what was rung."""
        self.check_interrupt()
        if self._rung:
            origin, reason, passing = self._rung
            kind = AwayError if passing else PeerError
            raise kind(f"{origin} stopped: {reason}")

    def wait(self, seconds: float) -> None:
        """Do nothing for so long, unless something is rung."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            time.sleep(min(SIGNAL_POLL, seconds))


@dataclass(eq=False)
class ConnectionState:
    """A party's place in a job. ``instance`` is drawn anew by every process, so a restart can be told from a cut.

    ``wait_seconds`` is how long to wait for a peer that is away; it may change as the job goes on. ``staying``:
    training is over and predictions are answered, so a peer that gives up ends its own conversation and nothing else.
    ``waits`` says in words for whom one waits, and since when, after a moment in which anybody may be late.
    """

    party: Party
    job: Mapping[str, Any]
    versions: Mapping[str, str]
    wait_seconds: float = 600.0
    serves_predictions: bool = field(default=False, kw_only=True)
    note: EventLogger = _ignore_event
    instance: str = field(default_factory=lambda: secrets.token_hex(16))
    ledger: Ledger = field(default_factory=Ledger)
    stop_signal: StopSignal = field(default_factory=StopSignal)
    waits: dict[Party, str] = field(default_factory=dict)

    def wait_for(self, peer: Party, seconds: float, how: str = "") -> str:
        """Note that one has waited so long for a peer, until it is forgotten; returns the words."""
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        self.waits[peer] = f"{peer} since {began}{how}"
        return self.waits[peer]

    @property
    def job_text(self) -> str:
        """The job as it is compared."""
        return json.dumps(self.job, sort_keys=True)

    @property
    def version_text(self) -> str:
        """The versions as they are compared."""
        return json.dumps(self.versions, sort_keys=True)


# A conversation with one peer that outlives its lines: every message arrives once and in order, or the session ends
#
# Frames are numbered and kept until the other side has acknowledged them; after a cut both sides say what they received
# and the rest is sent again. A peer that started anew has forgotten the conversation: the session then ends with
# PeerRestarted, and whoever used it goes back to the last common checkpoint.


log = logging.getLogger("fedsim.parties")

POLL = 0.2  # seconds between looks at the alarm
WAIT_LOG_AFTER, WAIT_LOG_EVERY = 3.0, 60.0  # seconds of absence or silence before it is said, and said again
MAX_BAD_FRAMES = 100  # lines dropped in a row, for what the peer sent on them
MAX_INBOX_BYTES = 1 << 30  # bytes of messages that nobody has looked at yet
HANDSHAKE_MESSAGES = (Hello, Welcome, Refusal)
Kind = TypeVar("Kind", bound=Message)


class PeerRestarted(Exception):  # noqa: N818
    """The peer is a new process that knows nothing of this conversation."""

    def __init__(self, peer: Party) -> None:
        super().__init__(f"{peer} started anew")
        self.peer = peer


class Session:
    """Made by a handshake; ``peer_instance`` is the process that is spoken with."""

    def __init__(self, station: ConnectionState, peer: Party, ident: bytes, peer_instance: str = "") -> None:
        self.connection, self.peer, self.ident, self.peer_instance = station, peer, ident, peer_instance
        self.phase: Phase | None = None  # for the ledger, where a message's own phase does not say it
        self._changed = threading.Condition()
        self._line: FrameStream | None = None
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
            envelope = self._next(self.connection.wait_seconds)
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
        self.connection.stop_signal.check()
        if self._over:
            raise self._over

    def check_received(self, received: int) -> None:
        """Refuse a peer that has received what was never sent."""
        if received > self._sent:
            raise WireError(f"{self.peer} has received {received} frames of a conversation that had {self._sent}")

    def attach(self, line: FrameStream, received: int) -> None:
        """Go on with a new line, on which the peer says it has received this much."""
        with self._changed:
            self.check_received(received)
            if self._over:
                line.close()
                return
            old, self._line, self._away_since, self._told = self._line, line, None, 0.0
            self._touched = time.monotonic()
            self.connection.waits.pop(self.peer, None)
            self._acknowledge(received)
            for _, message, frame in self._outbox:
                self._send(message, frame)
            self._changed.notify_all()
        if old is not None and old is not line:
            old.close()

    def read(self, line: FrameStream) -> None:
        """Take in what comes on a line until it breaks; garbage breaks it."""
        try:
            while True:
                self._take(line.receive())
        except WireError as fault:
            self._drop(line)
            log.warning("%s sent what breaks the protocol, its line is dropped: %s", self.peer, fault)
            self.connection.note("line dropped", {"peer": str(self.peer), "reason": str(fault)})
            self._lose_patience(fault)
        except ConnectionLost:
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
            self.connection.waits.pop(self.peer, None)

    def _mind_the_time(self, seconds: float | None) -> None:
        now = time.monotonic()
        if self._away_since is not None:
            away = now - self._away_since
            if away > self.connection.wait_seconds:
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
        if seconds <= WAIT_LOG_AFTER:
            self.connection.waits.pop(self.peer, None)
            return
        words = self.connection.wait_for(self.peer, seconds, how)
        if not self._told or now - self._told > WAIT_LOG_EVERY:
            self._told = now
            log.warning("waiting for %s", words)

    def _send(self, message: Message, frame: bytes) -> None:
        if self._line is None:
            return
        try:
            self._line.send(frame)
            self.connection.ledger.note(message, self.connection.party, self.peer, len(frame), self.phase)
        except ConnectionLost:
            self._lose(self._line)

    def _lose_patience(self, fault: WireError) -> None:
        """A peer that sends nothing but garbage, on one line after the other, would keep us waiting for ever."""
        self._garbage += 1
        if self._garbage >= MAX_BAD_FRAMES:
            self.end(PeerError(f"{self.peer} broke the protocol {self._garbage} times in a row: {fault}"))

    def _take(self, frame: bytes) -> None:
        envelope = decode(frame)
        message = envelope.message
        if isinstance(message, HANDSHAKE_MESSAGES) or envelope.session != self.ident:
            raise WireError(f"a frame '{message.kind}' of another conversation")
        if (self.peer.role, self.connection.party.role) not in message.routes:
            raise WireError(f"a {self.peer.role} may not send '{message.kind}' to a {self.connection.party.role}")
        with self._changed:
            if not 1 <= envelope.sequence <= self._received + 1 or envelope.acknowledged > self._sent:
                raise WireError(f"frame {envelope.sequence} came after frame {self._received}")
            if self._inbox and self._waiting + len(frame) > MAX_INBOX_BYTES:
                raise WireError(f"more than {MAX_INBOX_BYTES} bytes before the first was looked at")
            self._acknowledge(envelope.acknowledged)
            self._touched = time.monotonic()
            if envelope.sequence > self._received:
                self._received, self._garbage = envelope.sequence, 0
                self.connection.ledger.note(message, self.peer, self.connection.party, len(frame), self.phase)
                self._deliver(envelope, len(frame))
            self._changed.notify_all()

    def _deliver(self, envelope: Envelope, size: int) -> None:
        message = envelope.message
        if isinstance(message, Trouble) and self.connection.serves_predictions:
            self._away_since = time.monotonic()
            kind = AwayError if message.passing else PeerError
            self._over = self._over or kind(
                f"{safe_peer_text(message.origin)} stopped: {safe_peer_text(message.reason)}"
            )
        elif isinstance(message, Trouble):
            self.connection.stop_signal.report_failure(
                safe_peer_text(message.origin), safe_peer_text(message.reason), passing=message.passing
            )
        elif isinstance(message, Notice):
            if message.text != self._notice:
                self._notice = message.text
                log.info("%s: %s", self.peer, safe_peer_text(message.text))
        else:
            self._done = self._done or isinstance(message, Farewell)
            self._inbox.append((envelope, size))
            self._waiting += size

    def _acknowledge(self, received: int) -> None:
        while self._outbox and self._outbox[0][0] <= received:
            self._outbox.popleft()

    def _drop(self, line: FrameStream) -> None:
        line.close()
        self._lose(line)

    def _lose(self, line: FrameStream) -> None:
        with self._changed:
            if self._line is line:
                self._line, self._away_since = None, time.monotonic()
                self._changed.notify_all()


# What the others are told when a party fails: the kind of failure, nothing of its data, paths or columns


PUBLIC_ERRORS = (PolicyError, FingerprintError, PeerError)  # written to be told
FAULT_DESCRIPTIONS: tuple[tuple[type[BaseException], str], ...] = (
    (FileError, "a file or folder of its own cannot be read or written"),
    (InputError, "its own table breaks a rule"),
    (SettingError, "one of its own settings cannot be kept"),
    (KeyboardInterrupt, "its owner stopped it"),
)


def public_reason(fault: BaseException) -> str:
    """The words for the other parties; details stay in the local log.

    >>> public_reason(FileError("cannot write /home/ada/secret: disk full"))
    'a file or folder of its own cannot be read or written; its log has the details'
    """
    if isinstance(fault, PUBLIC_ERRORS):
        return str(fault)
    words = next((words for kind, words in FAULT_DESCRIPTIONS if isinstance(fault, kind)), "")
    if isinstance(fault, KeyboardInterrupt):
        return words
    words = words or ("it cannot go on" if isinstance(fault, FedSimError) else "a defect stopped it")
    return f"{words}; its log has the details"


def failure_notice(station: ConnectionState, fault: BaseException) -> Trouble:
    """What to tell: our own failure, or that of the party that made us stop."""
    if station.stop_signal.rung:
        return Trouble(*station.stop_signal.rung)
    passing = isinstance(fault, AwayError | KeyboardInterrupt)
    return Trouble(str(station.party), public_reason(fault), passing)


def abort_session(session: Session, fault: FedSimError) -> None:
    """End one conversation that cannot go on, and say why; the sender stays for all others."""
    if not session.is_over:
        close_sessions([session], Trouble(str(session.connection.party), public_reason(fault), passing=False))


def close_sessions(sessions: list[Session], last_word: Message) -> None:
    """Tell all who still listen, and end their conversations."""
    for session in sessions:
        with suppress(PeerError, PeerRestarted):  # what ended a conversation, perhaps just now
            session.post(last_word)
    for session in sessions:
        session.close()
