"""Open, accept and resume sessions.

Refused before anything else is said: a name or role that the certificate does not prove, a party the job does not
know, another release, another job (with the first difference), and a second process under a name that is speaking.
"""

from __future__ import annotations

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
from typing import TypeVar

from fedsim.errors import AwayError, FedSimError, PeerError, SettingError, WireError
from fedsim.protocol.codec import Envelope, decode, encode
from fedsim.protocol.messages import Hello, Message, Party, Refusal, Role, Welcome, safe_peer_text
from fedsim.protocol.session import ConnectionState, PeerRestarted, Session, public_reason
from fedsim.protocol.transport import ConnectionLost, FrameStream, Transport
from fedsim.storage.digest import first_difference

log = logging.getLogger("fedsim.parties")

First = TypeVar("First", bound=Message)
HELLO_SECONDS = 10.0
BACK_OFF, MAX_BACK_OFF = 0.05, 2.0  # seconds between two attempts to dial; doubles up to the most
NAME_TAKEN_SECONDS = 45.0  # a line that was cut is found dead within this time
SESSION_ID = re.compile(r"[0-9a-f]{32}")  # of a session
MAX_LOGGED_REFUSALS, MAX_LOGGED_JOINS = 20, 2000  # of one caller that are noted: nobody else may fill our disk
MAX_VERSION_TEXT = 2048  # letters
ROUNDING_VERSIONS = ("torch", "numpy", "cpu", "threads")  # versions on which the last bit of a sum may depend
CLOCK_SKEW_SECONDS = 300.0  # seconds between two clocks that are worth a word


class SilenceError(ConnectionLost):
    """A peer that was reached has not said a word in time."""


@dataclass(frozen=True)
class Rejection:
    """Why a caller is not let in; one that is passing is worth so many seconds of further attempts."""

    reason: str
    passing: bool = False
    seconds: float = math.inf


class SessionAcceptor:
    """The receiving side: lets parties of the job in, one process each, and finds their conversation again."""

    def __init__(self, station: ConnectionState, expected: Collection[Party]) -> None:
        self.connection, self.expected = station, frozenset(expected)
        self._sessions: dict[Party, Session] = {}
        self._fresh: dict[Party, Session] = {}
        self._unfit: set[Party] = set()
        self._refused: Counter[str] = Counter()
        self._delayed: set[str] = set()
        self._joined: Counter[Party] = Counter()
        self._last_word: Message | None = None
        self._opened = time.monotonic()
        self._changed = threading.Condition()

    def answer(self, caller: Party | None, line: FrameStream) -> None:
        """Answer one line until it breaks."""
        try:
            self._answer(caller, line)
        except FedSimError as fault:  # a log that cannot be written: then nothing may happen here any more
            self.connection.stop_signal.report_failure(str(self.connection.party), public_reason(fault))
            line.close()

    def _answer(self, caller: Party | None, line: FrameStream) -> None:
        try:
            hello, size = _receive_first(line, Hello)
            found = self._admit(caller, hello, line)
        except (SilenceError, WireError) as fault:
            self._turn_away(line, caller, Rejection(str(fault)))
            return
        except ConnectionLost:
            line.close()
            return
        if isinstance(found, Rejection):
            self._turn_away(line, caller, found)
        else:
            self.connection.ledger.note(hello, found.peer, self.connection.party, size)
            _warn_clock_skew(found.peer, hello.clock)
            found.read(line)

    def session_with(self, party: Party) -> Session:
        """The next conversation with this party that nobody has taken yet."""
        since, told = time.monotonic(), False
        try:
            with self._changed:
                while party not in self._fresh:
                    self.connection.stop_signal.check()
                    waited = time.monotonic() - since
                    if waited > self.connection.wait_seconds:
                        raise AwayError(
                            f"{party} did not come within {waited:.0f} seconds; start it and run this again"
                        )
                    if waited > 3 and not told:
                        log.info("waiting for %s", self.connection.wait_for(party, waited))
                        told = True
                    self._changed.wait(0.2)
                return self._fresh.pop(party)
        finally:
            self.connection.waits.pop(party, None)

    def away_seconds(self, party: Party) -> float:
        """Since when a party has not been connected; 0 while it is."""
        with self._changed:
            known = self._sessions.get(party)
        if known is None:
            return time.monotonic() - self._opened
        return known.away_seconds

    def sessions(self) -> list[Session]:
        """All conversations that are going on."""
        with self._changed:
            return [session for session in self._sessions.values() if not session.is_over]

    def dismiss(self, last_word: Message, seconds: float) -> None:
        """Tell it to everybody who comes; wait for those who never came, but so long after we opened and no longer."""
        with self._changed:
            self._last_word = last_word
            while self.expected - self._sessions.keys() - self._unfit:
                left = self._opened + seconds - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _admit(self, caller: Party | None, hello: Hello, line: FrameStream) -> Session | Rejection:
        objection = self._objection(caller, hello)
        if objection:
            return objection
        party = Party(Role(hello.role), hello.party)
        objection = self._misfit(party, hello)
        if objection:
            self._give_up(party, objection)
            return objection
        with self._changed:
            known = self._sessions.get(party)
            other = known is not None and known.peer_instance != hello.instance
            if known and known.connected and other:
                return Rejection(f"another process speaks as {party} already", passing=True)
            received = hello.received
            if known is None or other or known.is_over or hello.resume != known.ident.hex():
                received = 0
                if known:
                    known.end(PeerRestarted(party))
                known = self._sessions[party] = self._fresh[party] = Session(
                    self.connection, party, secrets.token_bytes(16), hello.instance
                )
                self._note_joined(party, hello.versions)
                self._changed.notify_all()
            known.check_received(received)
            welcome = Welcome(known.ident.hex(), known.received, self.connection.version_text, time.time())
            self.connection.ledger.note(welcome, self.connection.party, party, _send_message(line, welcome))
            known.attach(line, received)
            if self._last_word:
                known.post(self._last_word)
            return known

    def _note_joined(self, party: Party, versions: str) -> None:
        self._joined[party] += 1
        if self._joined[party] <= MAX_LOGGED_JOINS:
            last = "; from now on this is no longer noted" if self._joined[party] == MAX_LOGGED_JOINS else ""
            self.connection.note("joined", {"peer": f"{party}{last}", "versions": versions})
            _log_version_differences(self.connection, party, versions)

    def _objection(self, caller: Party | None, hello: Hello) -> Rejection | None:
        try:
            claimed = Party(Role(hello.role), hello.party)
        except (ValueError, SettingError):
            return Rejection("the caller's role or name is none that a party can have")
        if caller is not None and caller != claimed:
            return Rejection(f"the certificate is that of {caller}, but its holder speaks as {claimed}")
        if claimed not in self.expected:
            return Rejection(f"{claimed} takes no part in this job, or does not speak with {self.connection.party}")
        if len(hello.versions) > MAX_VERSION_TEXT:
            return Rejection(f"versions of {len(hello.versions)} letters; they have up to {MAX_VERSION_TEXT}")
        return None

    def _misfit(self, party: Party, hello: Hello) -> Rejection | None:
        """Why a party of the job cannot work with us."""
        releases = self.connection.versions.get("fedsim"), _release(hello.versions)
        if releases[0] != releases[1]:
            return Rejection(
                f"{self.connection.party} runs fedsim {releases[0]}, {party} another release; use the same"
            )
        different = _describe_difference(self.connection.job_text, hello.job, "job")
        return Rejection(f"{different} ({self.connection.party} against {party})") if different else None

    def _give_up(self, party: Party, objection: Rejection) -> None:
        """A job that cannot begin ends for everybody; one that has begun waits for the party to come as it was."""
        with self._changed:
            if party not in self._sessions and not self.connection.serves_predictions:
                self._unfit.add(party)
                self.connection.stop_signal.report_failure(str(party), objection.reason)
                self._changed.notify_all()

    def _turn_away(self, line: FrameStream, caller: Party | None, objection: Rejection) -> None:
        who = str(caller) if caller else "a caller"
        with self._changed:
            again = objection.passing and objection.reason in self._delayed  # it dials again and again
            self._delayed |= {objection.reason} if objection.passing else set()
            self._refused[who] += not again
            count = self._refused[who]
        if not again and count <= MAX_LOGGED_REFUSALS:
            last = "; from now on this is no longer noted" if count == MAX_LOGGED_REFUSALS else ""
            log.warning("%s was not let in%s: %s%s", who, " yet" * objection.passing, objection.reason, last)
            self.connection.note("refused", {"peer": who, "reason": objection.reason + last})
        with suppress(ConnectionLost):
            _send_message(line, Refusal(objection.reason, objection.passing))
        line.close()


@dataclass(frozen=True, eq=False)
class SessionConnector:
    """The calling side: dials until it is let in, and again after every cut."""

    connection: ConnectionState
    transport: Transport
    address: str
    peer: Party
    _ahead: deque[Session] = field(default_factory=deque)

    def open(self, wait_seconds: float | None = None) -> Session:
        """A new conversation; its line is mended in the background until it is ended.

        With a peer that started anew the next conversation has begun by itself: a peer that nobody asks anything for
        hours must see that we are there.
        """
        while self._ahead:
            found = self._ahead.popleft()
            if not found.is_over:
                return found
        line, welcome = self._connect(None, wait_seconds or self.connection.wait_seconds)
        session = self._begin(line, welcome)
        threading.Thread(target=self._keep, args=(session, line), daemon=True).start()
        return session

    def ahead(self) -> list[Session]:
        """Conversations that nobody has asked for yet."""
        return list(self._ahead)

    def _begin(self, line: FrameStream, welcome: Welcome) -> Session:
        session = Session(self.connection, self.peer, bytes.fromhex(welcome.session))
        session.attach(line, welcome.received)
        self.connection.note("joined", {"peer": str(self.peer), "versions": welcome.versions})
        _log_version_differences(self.connection, self.peer, welcome.versions)
        return session

    def _keep(self, session: Session, line: FrameStream) -> None:
        """Dial again after every cut, until the conversation ends."""
        try:
            while True:
                session.read(line)
                if session.is_over or session.is_done:
                    return
                line, welcome = self._connect(session, self.connection.wait_seconds)
                if welcome.session == session.ident.hex():
                    session.attach(line, welcome.received)
                else:
                    session = self._replace(session, self._begin(line, welcome))
        except FedSimError as fault:
            session.end(fault)

    def _replace(self, old: Session, new: Session) -> Session:
        self._ahead.append(new)
        old.end(PeerRestarted(self.peer))
        return new

    def _connect(self, session: Session | None, wait_seconds: float) -> tuple[FrameStream, Welcome]:
        began, pause, told = time.monotonic(), BACK_OFF, False
        while True:
            reply = self._attempt(session)
            if not isinstance(reply, Rejection):
                return reply
            waited = time.monotonic() - began
            if not reply.passing or waited > min(wait_seconds, reply.seconds):
                kind = AwayError if reply.passing and math.isinf(reply.seconds) else PeerError
                raise kind(f"{self.peer} at {self.address}: {reply.reason}")
            if session is not None and session.is_over:
                raise PeerError(f"the conversation with {self.peer} has ended")
            if session is None:
                self.connection.stop_signal.check()
                if waited > 3 and not told:
                    self.connection.wait_for(self.peer, waited)
                    log.info("waiting for %s at %s: %s", self.peer, self.address, reply.reason)
                    told = True
            time.sleep(pause)
            pause = min(pause * 2, MAX_BACK_OFF)

    def _attempt(self, session: Session | None) -> tuple[FrameStream, Welcome] | Rejection:
        try:
            line = self.transport.dial(self.address, self.peer)
        except ConnectionLost as fault:
            return Rejection(str(fault), passing=not fault.lasting)
        hello = self._hello(session)
        try:
            self.connection.ledger.note(hello, self.connection.party, self.peer, _send_message(line, hello))
            answer, received = _receive_first(line, Message)
        except ConnectionLost as fault:
            line.close()
            return Rejection(str(fault), passing=not fault.lasting)
        except WireError as fault:
            line.close()
            return Rejection(str(fault))
        if isinstance(answer, Welcome) and SESSION_ID.fullmatch(answer.session):
            self.connection.ledger.note(answer, self.peer, self.connection.party, received)
            _warn_clock_skew(self.peer, answer.clock)
            return line, answer
        line.close()
        if isinstance(answer, Refusal):
            return Rejection(f"not let in: {safe_peer_text(answer.reason)}", answer.passing, NAME_TAKEN_SECONDS)
        return Rejection(f"what it answered to a hello, '{answer.kind}', makes no sense")

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


def _send_message(line: FrameStream, message: Message) -> int:
    """Send a message that stands outside any session; returns its size."""
    frame = encode(Envelope(message))
    line.send(frame)
    return len(frame)


def _receive_first(line: FrameStream, kind: type[First]) -> tuple[First, int]:
    """The first message of a line, in time, and its size."""
    late = threading.Event()

    def hang_up() -> None:
        late.set()
        line.close()

    timer = threading.Timer(HELLO_SECONDS, hang_up)
    timer.daemon = True
    timer.start()
    try:
        frame = line.receive()
    except ConnectionLost:
        if late.is_set():
            raise SilenceError(f"nothing was said for {HELLO_SECONDS:g} seconds") from None
        raise
    finally:
        timer.cancel()
    message = decode(frame).message
    if not isinstance(message, kind):
        raise WireError(f"a line begins with '{message.kind}' instead of a hello")
    return message, len(frame)


def _release(versions: str) -> object:
    found = _parse_json(versions)
    return found.get("fedsim") if isinstance(found, dict) else None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _describe_difference(here: str, there: str, name: str) -> str:
    """In which setting two JSON texts differ; a peer's text may be anything."""
    if here == there:
        return ""
    try:
        found = safe_peer_text(first_difference(_parse_json(here), _parse_json(there), name))[:300]
    except RecursionError:
        return f"{name}: what the peer sent is no description"
    return found or f"{name}: the same settings, written otherwise"


def _warn_clock_skew(peer: Party, clock: float) -> None:
    skew = clock - time.time()
    if abs(skew) > CLOCK_SKEW_SECONDS:
        log.warning("the clock of %s is %+.0f minutes from ours; certificates may seem expired", peer, skew / 60)


def _log_version_differences(station: ConnectionState, peer: Party, versions: str) -> None:
    """Other libraries are allowed; they may round otherwise, which the record of a run should explain."""
    found = _parse_json(versions)
    theirs = found if isinstance(found, dict) else {}
    others = [
        name
        for name in ROUNDING_VERSIONS
        if name in theirs and theirs[name] != station.versions.get(name, theirs[name])
    ]
    if others:
        log.info("%s computes with another %s: figures may differ in the last digits", peer, " and ".join(others))
