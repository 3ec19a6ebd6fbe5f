"""Open, accept and resume sessions.

A caller is rejected before anything else is sent if its certificate does not prove its name and role, if it takes no
part in the job, if it runs another release or another job (the first difference is named), or if another process
already uses its name.
"""

import json
import logging
import math
import re
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedsim.errors import AwayError, FedSimError, PeerError, SettingError, WireError
from fedsim.protocol.messages import Hello, Message, Party, Refusal, Role, Welcome, safe_peer_text
from fedsim.protocol.session import ConnectionState, PeerRestarted, Session, WaitTimer, public_reason, retry_pauses
from fedsim.protocol.transport import GENERAL_BOUNDS, ConnectionLost, Envelope, FrameStream, Transport, decode, encode
from fedsim.validation import first_difference

log = logging.getLogger("fedsim.parties")

First = TypeVar("First", bound=Message)
HELLO_SECONDS = 10.0
ATTEMPT_SECONDS = 30.0  # the longest that one attempt to connect can take
NAME_TAKEN_SECONDS = 45.0  # a broken connection is detected within this time, which frees the name
WAIT_LOG_AFTER = 3.0  # seconds
SESSION_ID = re.compile(r"[0-9a-f]{32}")
MAX_LOGGED_REFUSALS = 20  # per caller, so that no caller can fill the disk
ROUNDING_VERSIONS = ("torch", "numpy", "cpu", "threads")  # the last bit of a sum may depend on them
CLOCK_SKEW_SECONDS = 300.0


class SilenceError(ConnectionLost):
    """A connected peer did not send its first message in time."""


@dataclass(frozen=True)
class Rejection:
    """Why a caller is rejected; after a ``passing`` reason the caller may retry for some seconds."""

    reason: str
    passing: bool = False
    seconds: float = math.inf


class SessionAcceptor:
    """Accepts the parties of a job, one process each, and resumes their sessions."""

    def __init__(self, state: ConnectionState, expected: Collection[Party]) -> None:
        self.connection, self.expected = state, frozenset(expected)
        self._sessions: dict[Party, Session] = {}
        self._unclaimed: dict[Party, Session] = {}  # sessions that session_with has not returned yet
        self._unfit: set[Party] = set()
        self._refused: Counter[str] = Counter()
        self._delayed: set[str] = set()
        self._last_message: Message | None = None
        self._opened = time.monotonic()
        self._changed = threading.Condition()

    def answer(self, caller: Party | None, stream: FrameStream) -> None:
        """Handle one incoming connection until it breaks."""
        try:
            try:
                hello, size = _receive_first(stream, Hello)
                outcome = self._admit(caller, hello, stream)
            except (SilenceError, WireError) as error:
                outcome = Rejection(str(error))
            if isinstance(outcome, Rejection):
                self._reject(stream, caller, outcome)
            else:
                self.connection.ledger.count(hello, outcome.peer, self.connection.party, size)
                _warn_clock_skew(self.connection, outcome.peer, hello.clock)
                outcome.read(stream)
        except ConnectionLost:
            pass
        except FedSimError as error:  # for example a full audit log: nothing may happen that is not logged
            self.connection.stop_signal.report_failure(str(self.connection.party), public_reason(error))
        finally:
            stream.close()

    def session_with(self, party: Party) -> Session:
        """Wait for the next new session with a party and return it."""
        timer, logged = WaitTimer(), False
        try:
            with self._changed:
                while party not in self._unclaimed:
                    self.connection.stop_signal.check()
                    waited = timer.seconds()
                    if waited > self.connection.wait_seconds:
                        fault = f"{party} did not connect within {waited:.0f} seconds; start it and run this again"
                        raise AwayError(fault, code="peer-away")
                    if waited > WAIT_LOG_AFTER and not logged:
                        log.info("waiting for %s since %s", party, self.connection.show_wait(party, waited))
                        logged = True
                    self._changed.wait(0.2)
                return self._unclaimed.pop(party)
        finally:
            self.connection.waits.pop(party, None)

    def disconnected_seconds(self, party: Party) -> float:
        """Return how long a party has been disconnected; 0 while it is connected."""
        with self._changed:
            session = self._sessions.get(party)
        return time.monotonic() - self._opened if session is None else session.disconnected_seconds

    def last_session(self, party: Party) -> Session | None:
        """Return the last session with a party, which may have ended; None if it has never connected."""
        with self._changed:
            return self._sessions.get(party)

    def sessions(self) -> list[Session]:
        """Return all sessions that have not ended."""
        with self._changed:
            return [session for session in self._sessions.values() if not session.is_over]

    def send_last(self, message: Message, seconds: float) -> None:
        """Send a last message to every party that connects; wait up to ``seconds`` for those that never did."""
        with self._changed:
            self._last_message = message
            while self.expected - self._sessions.keys() - self._unfit:
                left = self._opened + seconds - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _admit(self, caller: Party | None, hello: Hello, stream: FrameStream) -> Session | Rejection:
        party = self._identify(caller, hello)
        if isinstance(party, Rejection):
            return party
        fault = self._incompatibility(party, hello)
        if fault:
            with self._changed:  # a job that cannot start fails at once; a started one waits for a compatible process
                if party not in self._sessions and not self.connection.serves_predictions:
                    self._unfit.add(party)
                    self.connection.stop_signal.report_failure(str(party), fault)
                    self._changed.notify_all()
            return Rejection(fault)
        with self._changed:
            session = self._sessions.get(party)
            restarted = session is not None and session.peer_instance != hello.instance
            if session and session.connected and restarted:
                return Rejection(f"another process is already connected as {party}", passing=True)
            received = hello.received
            if session is None or restarted or session.is_over or hello.resume != session.ident.hex():
                received = 0
                if session:
                    session.end(PeerRestarted(party))
                session = Session(self.connection, party, secrets.token_bytes(16), hello.instance)
                self._sessions[party] = self._unclaimed[party] = session
                _record_joined(self.connection, party, hello.versions)
                self._changed.notify_all()
            session.check_received(received)
            welcome = Welcome(session.ident.hex(), session.received, self.connection.version_text, time.time())
            self.connection.ledger.count(welcome, self.connection.party, party, _send_message(stream, welcome))
            session.attach(stream, received)
            if self._last_message:
                with suppress(PeerError, PeerRestarted):  # the session may have ended just now
                    session.send(self._last_message)
            return session

    def _identify(self, caller: Party | None, hello: Hello) -> Party | Rejection:
        try:
            claimed = Party(Role(hello.role), hello.party)
        except (ValueError, SettingError):
            return Rejection("the caller's role or name is invalid")
        if caller is not None and caller != claimed:
            return Rejection(f"the certificate belongs to {caller}, but the caller claims to be {claimed}")
        if claimed not in self.expected:
            return Rejection(f"{claimed} is not a party of this job, or does not connect to {self.connection.party}")
        return claimed

    def _incompatibility(self, party: Party, hello: Hello) -> str:
        """Name another release or the first setting in which the jobs differ; the peer's text may be anything."""
        here, release, job = self.connection.party, self.connection.versions.get("fedsim"), self.connection.job_text
        if release != _parse_versions(hello.versions).get("fedsim"):
            return f"{here} runs fedsim {release}, {party} another release; install the same release"
        if job == hello.job:
            return ""
        try:
            difference = safe_peer_text(first_difference(json.loads(job), _parse_json(hello.job), "job"))[:300]
        except RecursionError:
            difference = "job: the peer's text is not valid"
        difference = difference or "job: the settings are equal but formatted differently"
        return f"{difference} ({here} against {party})"

    def _reject(self, stream: FrameStream, caller: Party | None, rejection: Rejection) -> None:
        who, reason = str(caller) if caller else "a caller", rejection.reason
        with self._changed:
            repeated = rejection.passing and reason in self._delayed  # the caller retries
            self._delayed |= {reason} if rejection.passing else set()
            self._refused[who] += not repeated
            count = self._refused[who]
        if not repeated and count <= MAX_LOGGED_REFUSALS:
            last = "; further rejections are not logged" if count == MAX_LOGGED_REFUSALS else ""
            log.warning("rejected %s%s: %s%s", who, " for now" * rejection.passing, reason, last)
            self.connection.record_event("refused", {"peer": who, "reason": reason + last})
        with suppress(ConnectionLost):
            _send_message(stream, Refusal(reason, rejection.passing))


@dataclass(frozen=True, eq=False)
class SessionConnector:
    """Connects to one peer, retrying until it is accepted, and reconnects whenever the connection breaks."""

    connection: ConnectionState
    transport: Transport
    address: str
    peer: Party
    _pending: deque[Session] = field(default_factory=deque)

    def open(self, wait_seconds: float | None = None) -> Session:
        """Return a new session; a thread keeps it connected until it ends.

        After a restart of the peer that thread has already opened the next session: the peer must see that this party
        is present even without requests for hours.
        """
        while self._pending:
            if not (session := self._pending.popleft()).is_over:
                return session
        stream, welcome = self._connect(None, wait_seconds or self.connection.wait_seconds)
        session = self._begin(stream, welcome)
        party = threading.current_thread().name  # for its log
        threading.Thread(target=self._keep_connected, args=(session, stream), name=party, daemon=True).start()
        return session

    def pending(self) -> list[Session]:
        """Return the sessions that ``open`` has not returned yet."""
        return list(self._pending)

    def _begin(self, stream: FrameStream, welcome: Welcome) -> Session:
        session = Session(self.connection, self.peer, bytes.fromhex(welcome.session))
        session.attach(stream, welcome.received)
        _record_joined(self.connection, self.peer, welcome.versions)
        return session

    def _keep_connected(self, session: Session, stream: FrameStream) -> None:
        try:
            while True:
                session.read(stream)
                if session.is_over or session.peer_finished:
                    return
                stream, welcome = self._connect(session, self.connection.wait_seconds)
                if welcome.session == session.ident.hex():
                    session.attach(stream, welcome.received)
                    continue
                old, session = session, self._begin(stream, welcome)
                self._pending.append(session)
                old.end(PeerRestarted(self.peer))
        except Exception as error:  # raised again where the session is used, which is not reconnected now
            session.end(error)

    def _connect(self, session: Session | None, wait_seconds: float) -> tuple[FrameStream, Welcome]:
        timer, pauses, logged = WaitTimer(ATTEMPT_SECONDS), retry_pauses(), False
        while True:
            reply = self._attempt(session)
            if not isinstance(reply, Rejection):
                return reply
            waited = timer.seconds()
            if not reply.passing or waited > min(wait_seconds, reply.seconds):
                away = reply.passing and math.isinf(reply.seconds)
                kind, code = (AwayError, "peer-away") if away else (PeerError, "connection-rejected")
                raise kind(f"{self.peer} at {self.address}: {reply.reason}", code=code)
            if session is not None and session.is_over:
                raise PeerError(f"the session with {self.peer} has ended", code="session-closed")
            if session is None:
                self.connection.stop_signal.check()
            if waited > WAIT_LOG_AFTER and not logged:
                if session is None:
                    self.connection.show_wait(self.peer, waited)
                log.info("waiting for %s at %s: %s", self.peer, self.address, reply.reason)
                logged = True
            time.sleep(next(pauses))

    def _attempt(self, session: Session | None) -> tuple[FrameStream, Welcome] | Rejection:
        try:
            stream = self.transport.dial(self.address, self.peer)
        except ConnectionLost as error:
            # A peer that was connected before was trusted: its certificate or ours is perhaps being replaced.
            return Rejection(str(error), passing=session is not None or not error.lasting)
        state, ledger, hello = self.connection, self.connection.ledger, self._hello(session)
        try:
            ledger.count(hello, state.party, self.peer, _send_message(stream, hello))
            answer, size = _receive_first(stream, Message)
            _check_received(session, answer)
        except (ConnectionLost, WireError) as error:
            stream.close()
            return Rejection(str(error), passing=isinstance(error, ConnectionLost) and not error.lasting)
        if isinstance(answer, Welcome) and SESSION_ID.fullmatch(answer.session):
            ledger.count(answer, self.peer, state.party, size)
            _warn_clock_skew(state, self.peer, answer.clock)
            return stream, answer
        stream.close()
        if isinstance(answer, Refusal):
            return Rejection(f"rejected: {safe_peer_text(answer.reason)}", answer.passing, NAME_TAKEN_SECONDS)
        return Rejection(f"it answered a Hello with '{answer.kind}'")

    def _hello(self, session: Session | None) -> Hello:
        return Hello(
            party=self.connection.party.name,
            role=self.connection.party.role.value,
            job=self.connection.job_text,
            versions=self.connection.version_text,
            instance=self.connection.instance,
            resume=session.ident.hex() if session else "",
            received=session.received if session else 0,
            clock=time.time(),
        )


def _send_message(stream: FrameStream, message: Message) -> int:
    """Send a message outside of a session; return its size."""
    frame = encode(Envelope(message))
    stream.send(frame)
    return len(frame)


def _receive_first(stream: FrameStream, kind: type[First]) -> tuple[First, int]:
    """Receive the first message of a connection within the time limit; return it and its size."""
    late = threading.Event()

    def time_out() -> None:
        late.set()
        stream.close()

    timer = threading.Timer(HELLO_SECONDS, time_out)
    timer.daemon = True
    timer.start()
    try:
        frame = stream.receive()
    except ConnectionLost:
        if late.is_set():
            raise SilenceError(f"no message for {HELLO_SECONDS:g} seconds") from None
        raise
    finally:
        timer.cancel()
    message = decode(frame).message
    if not isinstance(message, kind):
        raise WireError(f"the first message is '{message.kind}' instead of a Hello", code="no-hello")
    GENERAL_BOUNDS.check(message)
    return message, len(frame)


def _check_received(session: Session | None, answer: Message) -> None:
    """Raise ``WireError`` if a Welcome claims more received frames than were sent; to a new session, none were."""
    if isinstance(answer, Welcome) and session is not None and answer.session == session.ident.hex():
        session.check_received(answer.received)
    elif isinstance(answer, Welcome) and answer.received:
        raise WireError(f"a new session has {answer.received} received frames; it must have 0", code="bad-sequence")


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_versions(text: str) -> dict[str, Any]:
    parsed = _parse_json(text)
    return parsed if isinstance(parsed, dict) else {}


def _warn_clock_skew(state: ConnectionState, peer: Party, clock: float) -> None:
    skew = clock - time.time()
    if abs(skew) > CLOCK_SKEW_SECONDS:
        text = "the clock of %s differs by %+.0f minutes; certificates may appear expired"
        state.log_peer_event("clock", peer, logging.WARNING, text, peer, skew / 60)


def _record_joined(state: ConnectionState, peer: Party, versions: str) -> None:
    """Record that a peer has joined; log differences of versions that can change the last digits of results."""
    state.record_peer_event("joined", peer, {"peer": str(peer), "versions": versions})
    theirs = _parse_versions(versions)
    ours = {**theirs, **state.versions}
    others = [name for name in ROUNDING_VERSIONS if name in theirs and theirs[name] != ours[name]]
    if others:
        text, names = "%s uses another %s; results may differ in the last digits", " and ".join(others)
        state.log_peer_event("versions", peer, logging.INFO, text, peer, names)
