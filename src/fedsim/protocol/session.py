"""Sessions that survive reconnects, the state that all sessions of a process share, and failure notices.

Every message arrives once and in order, or the session ends. Frames are numbered and kept until the peer acknowledges
them; after a reconnect both sides report what they received and the rest is sent again. A peer that was restarted has
lost its session: it ends with PeerRestarted, and the caller goes back to the last common checkpoint.
"""

import json
import logging
import math
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from fedsim import errors
from fedsim.errors import AwayError, FedSimError, PeerError, WireError
from fedsim.protocol import messages as m
from fedsim.protocol.messages import Ledger, Message, Party, Phase, Trouble, safe_peer_text
from fedsim.protocol.transport import (
    GENERAL_BOUNDS,
    ConnectionLost,
    Envelope,
    FrameStream,
    MessageBounds,
    decode,
    encode,
)

log = logging.getLogger("fedsim.parties")

POLL = 0.2  # seconds between checks of the stop signal
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 2.0  # between two attempts to reach a peer; doubles up to the maximum
NOTICE_SECONDS = 2.0  # between notices to a waiting peer
WAIT_LOG_AFTER, WAIT_LOG_EVERY = 3.0, 60.0  # seconds of waiting before it is logged, and logged again
MAX_BAD_FRAMES = 100  # connections in a row that the peer broke by an invalid frame
MAX_INBOX_BYTES, MAX_INBOX_FRAMES = 1 << 30, 20_000
MAX_OUTBOX_BYTES, MAX_OUTBOX_FRAMES = 64 << 20, 10_000  # not acknowledged yet: with more, sending waits
ACKNOWLEDGE_BYTES, ACKNOWLEDGE_FRAMES = 8 << 20, 1000  # received since the last frame sent: acknowledged at once
MAX_TICK_SECONDS = 5.0  # between two looks at the clock; a longer gap means that this process was suspended
MAX_ORIGIN = 80  # characters of the name of a party that a peer reports about
MAX_LOGGED_EVENTS = 2000  # of one kind caused by one peer, which must not fill our disk
HANDSHAKE_MESSAGES = (m.Hello, m.Welcome, m.Refusal)
Kind = TypeVar("Kind", bound=Message)


class PartyFailure(NamedTuple):
    """The party that failed first, its reason, and whether the same job may succeed later."""

    origin: str
    reason: str
    passing: bool

    def to_error(self) -> PeerError:
        """Return the error that a wait for that party raises."""
        kind = AwayError if self.passing else PeerError
        return kind(f"{self.origin} stopped: {self.reason}", code="peer-stopped", origin=self.origin)


class StopSignal:
    """Stops everything that waits in this process: after the first failure of any party, or on the owner's request.

    It is polled, because an exception raised by a signal handler inside gRPC would leave its locks held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self.failure: PartyFailure | None = None  # the first one

    def report_failure(self, origin: str, reason: str, *, passing: bool = False) -> None:
        """Report the failure of a party; only the first one counts."""
        with self._lock:
            self.failure = self.failure or PartyFailure(origin, reason, passing)

    def stop(self) -> None:
        """Stop on the owner's request: everything that waits raises KeyboardInterrupt."""
        self._stopped = True

    def check_interrupt(self) -> None:
        """Raise KeyboardInterrupt if the owner wants to stop."""
        if self._stopped:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt or the reported failure, if any."""
        self.check_interrupt()
        if self.failure:
            raise self.failure.to_error()

    def wait(self, seconds: float) -> None:
        """Sleep, unless there is a reason to stop."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            time.sleep(min(POLL, seconds))


@dataclass(eq=False)
class ConnectionState:
    """What all sessions of a party share; ``job`` and ``versions`` are compared with those of the peers."""

    party: Party
    job: Mapping[str, Any]
    versions: Mapping[str, str]
    wait_seconds: float = 600.0  # for a disconnected peer; it changes as the job proceeds
    serves_predictions: bool = field(default=False, kw_only=True)  # a peer that fails ends its own session only
    record_event: Callable[[str, Mapping[str, Any]], object] = lambda event, facts: None  # writes to the audit log
    instance: str = field(default_factory=lambda: secrets.token_hex(16))  # distinguishes a restart from a reconnect
    ledger: Ledger = field(default_factory=Ledger)
    stop_signal: StopSignal = field(default_factory=StopSignal)
    bounds: MessageBounds = GENERAL_BOUNDS  # of what peers may send
    waits: dict[Party, str] = field(default_factory=dict)  # a text per missing peer, for progress displays
    _events: Counter[tuple[str, Party]] = field(default_factory=Counter, init=False, repr=False)

    def counts_below_limit(self, event: str, peer: Party) -> bool:
        """Count an event that a peer can cause at will; return False once there were too many to log."""
        self._events[event, peer] += 1
        return self._events[event, peer] <= MAX_LOGGED_EVENTS

    def log_peer_event(self, event: str, peer: Party, level: int, text: str, *values: object) -> None:
        """Log an event that a peer can cause at will, unless there were too many of its kind."""
        if self.counts_below_limit(event, peer):
            log.log(level, text, *values)

    def record_peer_event(self, event: str, peer: Party, facts: Mapping[str, Any]) -> None:
        """Write an event that a peer can cause at will to the audit log, unless there were too many of its kind."""
        if self.counts_below_limit(event, peer):
            last = {"further": "not recorded"} if self._events[event, peer] == MAX_LOGGED_EVENTS else {}
            self.record_event(event, {**facts, **last})

    def show_wait(self, peer: Party, seconds: float, detail: str = "") -> str:
        """Set the text in ``waits`` for a peer and return the time since when this party waits."""
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        self.waits[peer] = f"{peer} since {began}{detail}"
        return began

    @property
    def job_text(self) -> str:
        """The job as sorted JSON."""
        return json.dumps(self.job, sort_keys=True)

    @property
    def version_text(self) -> str:
        """The versions as sorted JSON."""
        return json.dumps(self.versions, sort_keys=True)


class WaitTimer:
    """Measures how long this process waits; time in which it was suspended is not held against the peer.

    Parameters
    ----------
    longest_tick
        The longest time, in seconds, that can pass between two looks while the process runs.
    """

    def __init__(self, longest_tick: float = MAX_TICK_SECONDS) -> None:
        self._longest_tick, self._seen, self._waited = longest_tick, time.monotonic(), 0.0

    def seconds(self) -> float:
        """Return the seconds waited so far."""
        now = time.monotonic()
        self._waited += min(now - self._seen, self._longest_tick)
        self._seen = now
        return self._waited


def retry_pauses() -> Iterator[float]:
    """Yield the seconds to wait before every further attempt to reach a peer.

    >>> pauses = retry_pauses()
    >>> [next(pauses) for _ in range(7)]
    [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    """
    pause = RETRY_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, MAX_RETRY_SECONDS)


class PeerRestarted(Exception):  # noqa: N818
    """The peer is a new process that knows nothing of this session."""

    def __init__(self, peer: Party) -> None:
        super().__init__(f"{peer} was restarted")
        self.peer = peer


class Session:
    """One session, created by a handshake; ``peer_instance`` identifies the process of the peer."""

    def __init__(self, state: ConnectionState, peer: Party, ident: bytes, peer_instance: str = "") -> None:
        self.connection, self.peer, self.ident, self.peer_instance = state, peer, ident, peer_instance
        self.phase: Phase | None = None  # overrides the phase of messages in the ledger
        self.received = 0  # the last sequence number received
        self.peer_finished = False  # the peer has ended the session and will not reconnect
        self._changed = threading.Condition()
        self._stream: FrameStream | None = None
        self._sent = 0
        self._outbox: deque[tuple[int, Message, bytes]] = deque()  # not acknowledged yet
        self._outbox_bytes = 0
        self._silent_frames = self._silent_bytes = 0  # received since the last frame sent
        self._inbox: deque[tuple[Envelope, int]] = deque()
        self._inbox_bytes = 0
        self._end_reason: Exception | None = None
        self._bad_frames = 0  # in a row
        self._disconnected_since: float | None = time.monotonic()
        self._last_activity = self._looked = time.monotonic()
        self._wait_logged = 0.0
        self._notice = ""

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._stream is not None

    @property
    def disconnected_seconds(self) -> float:
        """Seconds without a connection; 0 while connected."""
        since = self._disconnected_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def unread(self) -> int:
        """How many messages were received and not handled yet."""
        return len(self._inbox)

    @property
    def unacknowledged_bytes(self) -> int:
        """How many bytes were sent and not acknowledged yet."""
        return self._outbox_bytes

    @property
    def is_over(self) -> bool:
        """Whether the session has ended for good."""
        return self._end_reason is not None

    @property
    def end_reason(self) -> Exception | None:
        """Why the session has ended for good, if it has."""
        return self._end_reason

    def send(self, message: Message, reply_to: int = 0) -> int:
        """Send a message now, or as soon as there is a connection; return its sequence number.

        While too much is not acknowledged, it waits, so that a peer that never reads cannot fill our memory. A notice
        is dropped then; the last message of a session never waits.
        """
        with self._changed:
            if self._end_reason:
                raise self._end_reason
            if self._outbox_is_full and isinstance(message, m.Notice):
                return self._sent
            if not isinstance(message, Trouble | m.Farewell):
                self._wait_for_room()
            return self._queue(message, reply_to)

    @property
    def _outbox_is_full(self) -> bool:
        return self._outbox_bytes >= MAX_OUTBOX_BYTES or len(self._outbox) >= MAX_OUTBOX_FRAMES

    def _wait_for_room(self) -> None:
        timer, limit = WaitTimer(), self.connection.wait_seconds
        while self._outbox_is_full:
            self.check()
            if timer.seconds() > limit:
                fault = f"{self.peer} has not acknowledged {len(self._outbox)} messages for {limit:.0f} seconds"
                raise AwayError(f"{fault}; read its log", code="peer-silent")
            self._changed.wait(POLL)

    def _queue(self, message: Message, reply_to: int = 0) -> int:
        frame = encode(Envelope(message, self.ident, self._sent + 1, self.received, reply_to))
        self._sent += 1
        self._outbox.append((self._sent, message, frame))
        self._outbox_bytes += len(frame)
        self._silent_frames = self._silent_bytes = 0
        self._transmit(message, frame)
        return self._sent

    def call(self, message: Message, kind: type[Kind]) -> Kind:
        """Send a message and wait for its reply."""
        return self.wait_reply(self.send(message), kind)

    def wait_reply(self, request: int, kind: type[Kind]) -> Kind:
        """Wait for the reply to the message with this sequence number; replies to earlier messages are skipped."""
        while True:
            envelope = self.receive(self.connection.wait_seconds)
            if envelope.reply_to == request and isinstance(envelope.message, kind):
                return envelope.message
            if envelope.reply_to == request or not 0 < envelope.reply_to < request:
                fault = f"{self.peer} replied with '{envelope.message.kind}' instead of '{kind.kind}'"
                raise PeerError(f"{fault}; install the same release everywhere", code="unexpected-reply")

    def check(self) -> None:
        """Raise whatever has ended the session or the job."""
        self.connection.stop_signal.check()
        if self._end_reason:
            raise self._end_reason

    def check_received(self, received: int) -> None:
        """Raise ``WireError`` if the peer claims to have received more than was sent."""
        if received > self._sent:
            fault = f"{self.peer} claims {received} received frames, but this session sent {self._sent}"
            raise WireError(fault, code="bad-sequence")

    def attach(self, stream: FrameStream, received: int) -> None:
        """Continue on a new connection, resending everything after the ``received`` frames."""
        with self._changed:
            self.check_received(received)
            if self._end_reason:
                stream.close()
                return
            old, self._stream, self._disconnected_since, self._wait_logged = self._stream, stream, None, 0.0
            self._last_activity = time.monotonic()
            self.connection.waits.pop(self.peer, None)
            self._acknowledge(received)
            for _, message, frame in self._outbox:
                self._transmit(message, frame)
            self._changed.notify_all()
        if old is not None and old is not stream:
            old.close()

    def read(self, stream: FrameStream) -> None:
        """Receive frames until the connection breaks; an invalid frame closes it."""
        try:
            while True:
                self._take(stream.receive())
        except ConnectionLost:
            pass
        except WireError as error:
            self._count_bad_frame(error)
        except FedSimError:  # for example a full audit log
            raise
        except Exception as error:  # a frame that our own code fails on must not end the reading thread
            fault = WireError(f"this party failed on it with {type(error).__name__}", code="unreadable-frame")
            fault.__cause__ = error
            self._count_bad_frame(fault)
        finally:
            self._detach(stream)

    def _count_bad_frame(self, error: WireError) -> None:
        if self.connection.counts_below_limit("invalid frame", self.peer):
            fault = "%s sent an invalid frame; closing the connection: %s"
            log.warning(fault, self.peer, error, exc_info=error.__cause__)
        self.connection.record_peer_event("line dropped", self.peer, {"peer": str(self.peer), "reason": str(error)})
        self._bad_frames += 1
        if self._bad_frames >= MAX_BAD_FRAMES:  # else it could keep us waiting forever
            reason = f"{self.peer} sent {self._bad_frames} invalid frames in a row: {error}"
            self.end(PeerError(reason, code="too-many-bad-frames"))

    def end(self, reason: Exception) -> None:
        """End the session for good; everything that waits for it raises ``reason``."""
        with self._changed:
            self._end_reason = self._end_reason or reason
            stream, self._stream = self._stream, None
            self._disconnected_since = self._disconnected_since or time.monotonic()
            self._changed.notify_all()
        if stream is not None:
            stream.close()

    def close(self, seconds: float = 3.0) -> None:
        """Send what is queued, then end the session."""
        deadline = time.monotonic() + seconds
        closed = PeerError(f"the session with {self.peer} is closed", code="session-closed")
        with self._changed:
            self._end_reason, stream = self._end_reason or closed, self._stream
        if stream is not None:
            stream.close()
        with self._changed:
            while self._stream is not None and time.monotonic() < deadline:
                self._changed.wait(POLL)

    def receive(self, max_silence: float | None = None) -> Envelope:
        """Wait for the next message; ``max_silence`` limits the wait while the peer is connected."""
        self._last_activity = self._looked = time.monotonic()
        try:
            with self._changed:
                while not self._inbox:
                    self.check()
                    self._check_wait(max_silence)
                    self._changed.wait(POLL)
                envelope, size = self._inbox.popleft()
                self._inbox_bytes -= size
                return envelope
        finally:
            self.connection.waits.pop(self.peer, None)

    def _check_wait(self, max_silence: float | None) -> None:
        """Raise ``AwayError`` after too long a wait; log a long one."""
        now, limit = self._look_at_clock(), self.connection.wait_seconds
        if self._disconnected_since is not None:
            waited = now - self._disconnected_since
            if waited > limit:
                hint = "restart it, then this party: both continue where they left off"
                raise AwayError(f"{self.peer} has been disconnected for {waited:.0f} seconds; {hint}", code="peer-away")
            detail = ""
            retrying = "retrying until it returns" if math.isinf(limit) else f"retrying for {limit:.0f} s"
            text = f"connection to {self.peer} lost at %s; {retrying}"
        elif max_silence is not None:
            waited = now - self._last_activity
            if waited > max_silence:
                fault = f"{self.peer} is connected but has not answered for {max_silence:.0f} seconds; read its log"
                raise AwayError(fault, code="peer-silent")
            detail, text = ", connected but silent", f"{self.peer} is connected but has not answered since %s"
        else:
            return
        if waited <= WAIT_LOG_AFTER:
            self.connection.waits.pop(self.peer, None)
            return
        began = self.connection.show_wait(self.peer, waited, detail)
        if not self._wait_logged or now - self._wait_logged > WAIT_LOG_EVERY:
            self._wait_logged = now
            log.warning(text, began)

    def _look_at_clock(self) -> float:
        """Return the time; a gap since the last look was a pause of ours, in which the peer could not reach us."""
        now = time.monotonic()
        pause, self._looked = now - self._looked, now
        if pause > MAX_TICK_SECONDS:
            self._last_activity = min(now, self._last_activity + pause)
            if self._disconnected_since is not None:
                self._disconnected_since = min(now, self._disconnected_since + pause)
        return now

    def _transmit(self, message: Message, frame: bytes) -> None:
        if self._stream is None:
            return
        try:
            self._stream.send(frame)
            self.connection.ledger.count(message, self.connection.party, self.peer, len(frame), self.phase)
        except ConnectionLost:
            self._stream, self._disconnected_since = None, time.monotonic()
            self._changed.notify_all()

    def _take(self, frame: bytes) -> None:
        """Check a frame and deliver its message unless it was received before."""
        envelope, party = decode(frame), self.connection.party
        message = envelope.message
        if isinstance(message, HANDSHAKE_MESSAGES) or envelope.session != self.ident:
            raise WireError(f"frame '{message.kind}' belongs to another session", code="other-session")
        if (self.peer.role, party.role) not in message.routes:
            raise WireError(f"a {self.peer.role} may not send '{message.kind}' to a {party.role}", code="bad-route")
        try:
            self.connection.bounds.check(message)
        except WireError as error:  # sending it again would not help
            self.end(PeerError(f"{self.peer} sent a message outside its bounds: {error}", code=error.code))
            raise
        with self._changed:
            if not 1 <= envelope.sequence <= self.received + 1 or envelope.acknowledged > self._sent:
                raise WireError(f"frame {envelope.sequence} arrived after frame {self.received}", code="bad-sequence")
            unread = len(self._inbox)
            if unread >= MAX_INBOX_FRAMES or (unread and self._inbox_bytes + len(frame) > MAX_INBOX_BYTES):
                limits = f"{MAX_INBOX_BYTES} unread bytes or {MAX_INBOX_FRAMES} unread messages"
                raise WireError(f"more than {limits}", code="inbox-full")
            self._acknowledge(envelope.acknowledged)
            self._last_activity = time.monotonic()
            if envelope.sequence > self.received:
                self.received, self._bad_frames = envelope.sequence, 0
                self.connection.ledger.count(message, self.peer, party, len(frame), self.phase)
                self._deliver(envelope, len(frame))
                self._silent_frames, self._silent_bytes = self._silent_frames + 1, self._silent_bytes + len(frame)
                due = self._silent_bytes >= ACKNOWLEDGE_BYTES or self._silent_frames >= ACKNOWLEDGE_FRAMES
                if due and len(self._outbox) < 2 * MAX_OUTBOX_FRAMES:  # else the peer acknowledges nothing itself
                    self._queue(m.Notice(""))  # acknowledges, so that the peer can go on
            self._changed.notify_all()

    def _deliver(self, envelope: Envelope, size: int) -> None:
        message = envelope.message
        if isinstance(message, Trouble) and message.origin == str(self.connection.party):
            # This process has not failed: the peer ends because of an earlier one, and will have to be started again.
            log.warning("%s stopped because this party had stopped; waiting until it is restarted", self.peer)
        elif isinstance(message, Trouble):
            origin, reason = str(self.peer), safe_peer_text(message.reason)  # the transport has proved who says so
            if message.origin != origin:
                reason = f"it reports that {safe_peer_text(message.origin[:MAX_ORIGIN])} stopped: {reason}"
            if self.connection.serves_predictions:
                self._disconnected_since = time.monotonic()
                self._end_reason = self._end_reason or PartyFailure(origin, reason, message.passing).to_error()
            else:
                self.connection.stop_signal.report_failure(origin, reason, passing=message.passing)
        elif isinstance(message, m.Notice):
            if message.text not in ("", self._notice) and self.connection.counts_below_limit("notice", self.peer):
                self._notice = message.text
                log.info("%s: %s", self.peer, safe_peer_text(message.text))
        else:
            self.peer_finished = self.peer_finished or isinstance(message, m.Farewell)
            self._inbox.append((envelope, size))
            self._inbox_bytes += size

    def _acknowledge(self, received: int) -> None:
        while self._outbox and self._outbox[0][0] <= received:
            self._outbox_bytes -= len(self._outbox.popleft()[2])

    def _detach(self, stream: FrameStream) -> None:
        stream.close()
        with self._changed:
            if self._stream is stream:
                self._stream, self._disconnected_since = None, time.monotonic()
                self._changed.notify_all()


# Failure notices. Other parties learn the kind of a failure, never data, paths or columns.

PUBLIC_ERRORS = (errors.PolicyError, errors.FingerprintError, PeerError)  # their text may be sent to other parties
PUBLIC_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.FileError, "it cannot read or write one of its files"),
    (errors.InputError, "its table breaks a rule"),
    (errors.SettingError, "one of its settings is invalid"),
    (FedSimError, "it cannot continue"),
)


def public_reason(error: BaseException) -> str:
    """Return the reason of a failure for other parties; details stay in the local log.

    >>> public_reason(errors.FileError("cannot write /home/ada/secret: disk full"))
    'it cannot read or write one of its files; its log has the details'
    """
    if isinstance(error, PUBLIC_ERRORS):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "its owner stopped it"
    reason = next((text for kind, text in PUBLIC_REASONS if isinstance(error, kind)), "an internal error stopped it")
    return f"{reason}; its log has the details"


def failure_notice(state: ConnectionState, error: BaseException) -> Trouble:
    """Return the message that reports this party's failure, or the failure that made it stop."""
    if state.stop_signal.failure:
        return Trouble(*state.stop_signal.failure)
    return Trouble(str(state.party), public_reason(error), isinstance(error, AwayError | KeyboardInterrupt))


def notice_seconds(session: Session) -> float:
    """Return the time between two notices to a peer that waits, which treats a long silence as a failure."""
    return min(NOTICE_SECONDS, session.connection.wait_seconds / 3)


@contextmanager
def send_notices(session: Session, text: str) -> Iterator[None]:
    """Send a notice every few seconds, because a peer treats a long silence as a failure."""
    done = threading.Event()

    def send_until_done() -> None:
        with suppress(PeerError, PeerRestarted):  # raised again where the session is used
            while not done.wait(notice_seconds(session)):
                session.send(m.Notice(text))

    threading.Thread(target=send_until_done, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def abort_session(session: Session, error: FedSimError) -> None:
    """End one session and send the peer the reason; all other sessions continue."""
    if not session.is_over:
        close_sessions([session], Trouble(str(session.connection.party), public_reason(error), passing=False))


def close_sessions(sessions: list[Session], last_message: Message) -> None:
    """Send a last message on all sessions and close them."""
    for session in sessions:
        with suppress(PeerError, PeerRestarted):  # the session may have ended just now
            session.send(last_message)
    for session in sessions:
        session.close()
