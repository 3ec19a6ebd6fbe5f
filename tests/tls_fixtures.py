"""Certificates of a few parties, and TLS listeners that echo every frame."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import numpy as np

from fedsim.errors import WireError
from fedsim.protocol.certificates import Authority
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Activations, Party, Save
from fedsim.protocol.tls import Credentials
from fedsim.protocol.transport import ConnectionLost
from session_fixtures import CITY, NOTARY, RENTALS, frame_of

NOW, DAY = datetime.now(UTC), timedelta(days=1)
OURS, FOREIGN = Authority.create(NOW - 100 * DAY), Authority.create(NOW)


def credentials_of(party: Party, authority: Authority = OURS, now: datetime = NOW, days: int = 30) -> Credentials:
    pair = authority.issue(party, now, days)
    return Credentials(authority.pair.certificate, pair.certificate, pair.key)


PAPERS = {party: credentials_of(party) for party in (CITY, NOTARY, RENTALS)}


def large(n_bytes):
    return frame_of(Activations(0, values=np.arange(n_bytes // 8 * 2, dtype=np.float32).reshape(-1, 2)))


def echo(_, line):
    with suppress(ConnectionLost, WireError):
        while True:
            line.send(line.receive())
    line.close()


@contextmanager
def door(answer=echo, transport=None):
    """The city's listener with TLS."""
    listener = (transport or GrpcTransport(PAPERS[CITY])).listen("127.0.0.1:0", answer)
    try:
        yield listener.address
    finally:
        listener.close()


def is_served(address, caller=RENTALS):
    """Whether a valid caller is answered promptly."""
    began = time.monotonic()
    line = GrpcTransport(PAPERS[caller]).dial(address, CITY)
    line.send(frame_of(Save(7)))
    answered = line.receive() == frame_of(Save(7))
    line.close()
    return answered and time.monotonic() - began < 10
