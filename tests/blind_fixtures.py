"""The three roles of a blind linkage in one process, over real sessions whose frames can be recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsim.errors import FedSimError
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.privacy.keyed_prng import derive_subkey
from fedsim.protocol.messages import ClassMembers, Party
from fedsim.protocol.roles.blind_primary import BlindPartners, BlindRequest
from fedsim.protocol.roles.blind_secondary import BlindResponder
from fedsim.protocol.roles.coordinator import Coordinator, LinkLimits
from fedsim.types import EncodedTable
from session_fixtures import CITY, NOTARY, RENTALS, connected, joined, started

PRIMARY, SECONDARY, DEALER = (derive_subkey(bytes(32), role, 32) for role in ("primary", "secondary", "coordinator"))


Frames = dict[tuple[Party, Party], list[bytes]]  # by sender and receiver


class RecordedStream:
    """A stream that keeps what was received, and what was sent."""

    def __init__(self, stream, frames, sent):
        self.stream, self.frames, self.sent = stream, frames, sent

    def send(self, frame):
        self.sent.append(bytes(frame))
        self.stream.send(frame)

    def receive(self):
        self.frames.append(self.stream.receive())
        return self.frames[-1]

    def close(self):
        self.stream.close()


def line(here, there, frames=None, sent=None):
    """Both sides of a conversation; ``frames`` gets all that ``here`` receives, and ``sent`` all that it sends."""
    kept = [] if frames is None else frames, [] if sent is None else sent
    return connected(here, there, lambda end: RecordedStream(end, *kept))


def blind_coordinator(
    folder: Path, linking: LinkageConfig, n_bits: int, *, new_records: int = 100, secret: bytes = DEALER
) -> Coordinator:
    limits = LinkLimits(new_records, 100)
    return Coordinator({"rentals": linking}, secret, folder, limits=limits, blind_bits={"rentals": n_bits})


def serve(role, session, left):
    """Serve until the end of the test; keep the error that ended it earlier."""
    try:
        role.serve(session)
    except FedSimError as error:
        if error.code:
            left.append(error)
            session.end(error)


def answer(responder, session):
    """A secondary that answers until the primary has its partners."""
    while True:
        envelope = session.receive()
        reply = responder.reply(session, envelope.message)
        session.send(reply, reply_to=envelope.sequence)
        if isinstance(reply, ClassMembers):
            return


def link_blindly(
    folder: Path,
    tables: tuple[EncodedTable, EncodedTable],
    linking: LinkageConfig,
    frames: Frames | None = None,
    counted: np.ndarray | None = None,
    secret: bytes = DEALER,
) -> tuple[BlindPartners, BlindResponder]:
    """Let the three link two tables; ``frames`` gets all that each sends another."""
    queries, candidates = tables
    role, left = blind_coordinator(folder, linking, queries.n_bits, secret=secret), []
    counted = np.ones(len(queries), bool) if counted is None else counted
    request = BlindRequest("rentals", linking, queries, PRIMARY, counted)
    kept = {} if frames is None else frames
    pairs = (NOTARY, CITY), (NOTARY, RENTALS), (CITY, RENTALS)
    lines = [line(*pair, kept.setdefault(pair[::-1], []), kept.setdefault(pair, [])) for pair in pairs]
    with lines[0] as (pc, cp), lines[1] as (sc, cs), lines[2] as own:
        responder = BlindResponder("rentals", linking, candidates, SECONDARY, lambda ask: ask(cs))
        threads = [started(serve, role, session, left) for session in (pc, sc)]
        responder.offer()
        threads.append(started(answer, responder, own[1]))
        found = request.link(cp, own[0])
        joined(threads[-1])
    joined(*threads)
    assert not left
    return found, responder
