"""How a conversation begins and goes on after a cut: one side dials, the other receives.

Refused before anything else is said: a name or role that the certificate does not prove, a party the job does not
know, another release, another job (with the first difference), and a second process under a name that is speaking.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from fedsim.difference import difference
from fedsim.errors import PeerError, SettingError, WireError
from fedsim.protocol.codec import Envelope, decode, encode
from fedsim.protocol.messages import Hello, Message, Refusal, Welcome
from fedsim.protocol.parties import Party, Role
from fedsim.protocol.session import PeerRestarted, Session
from fedsim.protocol.station import Station
from fedsim.protocol.transport.base import Line, LineBroken, Transport

log = logging.getLogger("fedsim.parties")

First = TypeVar("First", bound=Message)
HELLO_SECONDS = 10.0
BACK_OFF, MOST_BACK_OFF = 0.05, 2.0  # seconds between two attempts to dial; doubles up to the most
TAKEN_SECONDS = 45.0  # a line that was cut is found dead within this time
SKEW = 300.0  # seconds between two clocks that are worth a word


@dataclass(frozen=True)
class Objection:
    """Why a caller is not let in."""

    reason: str
    passing: bool = False


class Reception:
    """The receiving side: lets parties of the job in, one process each, and finds their conversation again."""

    def __init__(self, station: Station, expected: Collection[Party]) -> None:
        self.station, self.expected = station, frozenset(expected)
        self._sessions: dict[Party, Session] = {}
        self._fresh: dict[Party, Session] = {}
        self._changed = threading.Condition()

    def answer(self, caller: Party | None, line: Line) -> None:
        """Answer one line until it breaks."""
        try:
            hello = _first(line, Hello)
        except (LineBroken, WireError) as fault:
            self._turn_away(line, caller, Objection(str(fault)))
            return
        found = self._admit(caller, hello, line)
        if isinstance(found, Objection):
            self._turn_away(line, caller, found)
        else:
            _mind_the_clock(found.peer, hello.clock)
            found.read(line)

    def session_with(self, party: Party) -> Session:
        """The next conversation with this party that nobody has taken yet."""
        since, told = time.monotonic(), False
        with self._changed:
            while party not in self._fresh:
                self.station.alarm.check()
                waited = time.monotonic() - since
                if waited > self.station.wait_seconds:
                    raise PeerError(f"{party} did not come within {waited:.0f} seconds; start it and run this again")
                if waited > 3 and not told:
                    log.info("waiting for %s", party)
                    told = True
                self._changed.wait(0.2)
            return self._fresh.pop(party)

    def sessions(self) -> list[Session]:
        """All conversations that are going on."""
        with self._changed:
            return [session for session in self._sessions.values() if not session.is_over]

    def _admit(self, caller: Party | None, hello: Hello, line: Line) -> Session | Objection:
        objection = self._objection(caller, hello)
        if objection:
            return objection
        party = Party(Role(hello.role), hello.party)
        with self._changed:
            known = self._sessions.get(party)
            if known and known.connected and known.peer_instance != hello.instance:
                return Objection(f"another process speaks as {party} already", passing=True)
            if known is None or known.is_over or hello.resume != known.ident.hex():
                if known:
                    known.end(PeerRestarted(party))
                known = self._sessions[party] = self._fresh[party] = Session(
                    self.station, party, secrets.token_bytes(16), hello.instance
                )
                self.station.note("joined", {"peer": str(party), "versions": hello.versions})
                self._changed.notify_all()
            welcome = Welcome(known.ident.hex(), known.received, self.station.version_text, time.time())
            try:
                line.send(encode(Envelope(welcome)))
            except LineBroken as fault:
                return Objection(str(fault))
            known.attach(line, hello.received)
            return known

    def _objection(self, caller: Party | None, hello: Hello) -> Objection | None:
        try:
            claimed = Party(Role(hello.role), hello.party)
        except (ValueError, SettingError):
            return Objection("the caller's role or name is none that a party can have")
        if caller is not None and caller != claimed:
            return Objection(f"the certificate is that of {caller}, but its holder speaks as {claimed}")
        if claimed not in self.expected:
            return Objection(f"{claimed} takes no part in this job, or does not speak with {self.station.party}")
        releases = self.station.versions.get("fedsim"), _release(hello.versions)
        if releases[0] != releases[1]:
            return Objection(f"{self.station.party} runs fedsim {releases[0]}, {claimed} another release; use the same")
        different = _difference(self.station.job_text, hello.job, "job")
        return Objection(f"{different} ({self.station.party} against {claimed})") if different else None

    def _turn_away(self, line: Line, caller: Party | None, objection: Objection) -> None:
        who = str(caller) if caller else "a caller"
        if not objection.passing:
            log.warning("%s was not let in: %s", who, objection.reason)
            self.station.note("refused", {"peer": who, "reason": objection.reason})
        with suppress(LineBroken):
            line.send(encode(Envelope(Refusal(objection.reason, objection.passing))))
        line.close()


@dataclass(frozen=True, eq=False)
class Dialler:
    """The calling side: dials until it is let in, and again after every cut."""

    station: Station
    transport: Transport
    address: str
    peer: Party

    def open(self, wait_seconds: float | None = None) -> Session:
        """A new conversation; its line is mended in the background until it is ended."""
        line, welcome = self._connect(None, wait_seconds or self.station.wait_seconds)
        session = Session(self.station, self.peer, bytes.fromhex(welcome.session))
        session.attach(line, welcome.received)
        self.station.note("joined", {"peer": str(self.peer), "versions": welcome.versions})
        threading.Thread(target=self._keep, args=(session, line), daemon=True).start()
        return session

    def _keep(self, session: Session, line: Line) -> None:
        while True:
            session.read(line)
            if session.is_over:
                return
            try:
                line, welcome = self._connect(session, self.station.wait_seconds)
            except PeerError as fault:
                session.end(fault)
                return
            if welcome.session != session.ident.hex():
                line.close()
                session.end(PeerRestarted(self.peer))
                return
            session.attach(line, welcome.received)

    def _connect(self, session: Session | None, wait_seconds: float) -> tuple[Line, Welcome]:
        began, pause, told = time.monotonic(), BACK_OFF, False
        while True:
            reply = self._attempt(session)
            if not isinstance(reply, Objection):
                return reply
            waited = time.monotonic() - began
            limit = min(wait_seconds, TAKEN_SECONDS) if reply.passing and "already" in reply.reason else wait_seconds
            if not reply.passing or waited > limit:
                raise PeerError(f"{self.peer} at {self.address}: {reply.reason}")
            if session is not None and session.is_over:
                raise PeerError(f"the conversation with {self.peer} has ended")
            if session is None:
                self.station.alarm.check()
                if waited > 3 and not told:
                    log.info("waiting for %s at %s: %s", self.peer, self.address, reply.reason)
                    told = True
            time.sleep(pause)
            pause = min(pause * 2, MOST_BACK_OFF)

    def _attempt(self, session: Session | None) -> tuple[Line, Welcome] | Objection:
        try:
            line = self.transport.dial(self.address, self.peer)
        except LineBroken as fault:
            return Objection(str(fault), passing=not fault.lasting)
        try:
            line.send(encode(Envelope(self._hello(session))))
            answer = _first(line, Message)
        except LineBroken as fault:
            line.close()
            return Objection(str(fault), passing=not fault.lasting)
        except WireError as fault:
            line.close()
            return Objection(str(fault))
        if isinstance(answer, Welcome):
            _mind_the_clock(self.peer, answer.clock)
            return line, answer
        line.close()
        if isinstance(answer, Refusal):
            return Objection(f"not let in: {answer.reason}", answer.passing)
        return Objection(f"it answered '{answer.kind}' to a hello")

    def _hello(self, session: Session | None) -> Hello:
        return Hello(
            party=self.station.party.name,
            role=self.station.party.role.value,
            job=self.station.job_text,
            versions=self.station.version_text,
            instance=self.station.instance,
            resume=session.ident.hex() if session else "",
            received=session.received if session else 0,
            clock=time.time(),
        )


def _first(line: Line, kind: type[First]) -> First:
    """The first message of a line, in time."""
    timer = threading.Timer(HELLO_SECONDS, line.close)
    timer.daemon = True
    timer.start()
    try:
        message = decode(line.receive()).message
    finally:
        timer.cancel()
    if not isinstance(message, kind):
        raise WireError(f"a line begins with '{message.kind}' instead of a hello")
    return message


def _release(versions: str) -> object:
    found = _loaded(versions)
    return found.get("fedsim") if isinstance(found, dict) else None


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _difference(here: str, there: str, name: str) -> str:
    """In which setting two JSON texts differ; a peer's text may be anything."""
    if here == there:
        return ""
    try:
        return difference(_loaded(here), _loaded(there), name)[:300] or f"{name}: the same settings, written otherwise"
    except RecursionError:
        return f"{name}: what the peer sent is no description"


def _mind_the_clock(peer: Party, clock: float) -> None:
    skew = clock - time.time()
    if abs(skew) > SKEW:
        log.warning("the clock of %s is %+.0f minutes from ours; certificates may seem expired", peer, skew / 60)
