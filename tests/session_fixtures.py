"""Connection states, sessions and connections for protocol tests: in one process, deterministic and without delays."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

from fedsim.errors import PeerError
from fedsim.protocol.handshake import SessionAcceptor, SessionConnector
from fedsim.protocol.messages import Hello, Message, Party, Role
from fedsim.protocol.session import ConnectionState, Session
from fedsim.protocol.transport import Envelope, InProcessTransport, encode, stream_pair

CITY, NOTARY = Party(Role.PRIMARY, "city"), Party(Role.COORDINATOR, "notary")
RENTALS, SCHOOLS = Party(Role.SECONDARY, "rentals"), Party(Role.SECONDARY, "schools")
PARTIES = {party.role: party for party in (CITY, NOTARY, RENTALS)}
JOB = {"name": "rents", "seed": 1, "training": {"batch": 128}}
VERSIONS = {"fedsim": "0.1.0"}
IDENT = bytes(range(16))
PATIENCE = 300.0  # seconds after which a test rather fails than waits; it measures nothing


class Notes(list):
    """What a party wrote into its log."""

    def __call__(self, what, facts):
        self.append((what, dict(facts)))

    @property
    def kinds(self):
        return [what for what, _ in self]


def connection_of(party: Party, **changes) -> ConnectionState:
    return ConnectionState(**{"party": party, "job": JOB, "versions": VERSIONS, "wait_seconds": PATIENCE, **changes})


def session_of(here: Party, there: Party, **changes) -> Session:
    """One side of a conversation that has not begun."""
    return Session(connection_of(here, record_event=Notes(), **changes), there, IDENT)


def sessions_of(here: Party, there: Party, **changes) -> tuple[Session, Session]:
    """Both sides of a conversation, without a line."""
    return session_of(here, there, **changes), session_of(there, here, **changes)


def connect(here: Session, there: Session, wrap=lambda line: line) -> list[threading.Thread]:
    """A line between two sides, each with somebody who reads it; ``wrap`` changes the end that ``here`` has."""
    lines = stream_pair()
    lines = wrap(lines[0]), lines[1]
    for session, line, peer in zip((here, there), lines, (there, here), strict=True):
        session.attach(line, peer.received)
    return [started(session.read, line) for session, line in zip((here, there), lines, strict=True)]


@contextmanager
def connected(here: Party, there: Party, wrap=lambda line: line, **changes):
    """Two sides that speak."""
    sessions = sessions_of(here, there, **changes)
    readers = connect(*sessions, wrap)
    try:
        yield sessions
    finally:
        for session in sessions:
            session.end(PeerError("the test is over"))
        joined(*readers)


def started(work, *given) -> threading.Thread:
    thread = threading.Thread(target=work, args=given, daemon=True)
    thread.start()
    return thread


def joined(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def until(condition) -> None:
    """Look until it is so; a test that would look for ever fails."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def read_all(session: Session, *frames: bytes) -> None:
    """Have a session read these frames from a line that then breaks."""
    here, there = stream_pair()
    session.attach(here, 0)
    for frame in frames:
        there.send(frame)
    there.close()
    session.read(here)


def frame_of(message: Message, sequence: int = 1, **changes) -> bytes:
    return encode(Envelope(message, **{"session": IDENT, "sequence": sequence, **changes}))


def taken(session: Session) -> list[Envelope]:
    """What has come in and waits to be taken."""
    return [session.receive() for _ in range(len(session._inbox))]


def hello_of(caller: Party, **changes) -> Hello:
    """What the dialler of a party would say first."""
    connection = connection_of(caller, instance=f"{caller.name}-1")
    return Hello(**{**vars(SessionConnector(connection, InProcessTransport(), "", caller)._hello(None)), **changes})


@contextmanager
def receiving(connection: ConnectionState, *expected: Party):
    """Yield an acceptor that listens at "endpoint", and the transport that dials it."""
    acceptor, transport = SessionAcceptor(connection, expected), InProcessTransport()
    listener = transport.listen("endpoint", acceptor.answer)
    try:
        yield acceptor, transport
    finally:
        listener.close()
        for session in acceptor.sessions():
            session.end(PeerError("the test is over"))
