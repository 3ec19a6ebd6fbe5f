"""Certificates of a few parties, and TLS listeners that echo every frame."""

from __future__ import annotations

import multiprocessing
import os
import resource
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from fedsim.errors import WireError
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Activations, Party, Save
from fedsim.protocol.tls import Credentials
from fedsim.protocol.transport import ConnectionLost
from fedsim_ops.authority import Authority
from session_fixtures import CITY, NOTARY, PATIENCE, RENTALS, frame_of, until

_warm = multiprocessing.get_context("forkserver")
NOW, DAY = datetime.now(UTC), timedelta(days=1)
OURS, FOREIGN = Authority.create(NOW - 100 * DAY), Authority.create(NOW)


def credentials_of(party: Party, authority: Authority = OURS, now: datetime = NOW, days: int = 30) -> Credentials:
    pair = authority.issue(party, now, days)
    return Credentials(authority.pair.certificate, pair.certificate, pair.key)


CREDENTIALS = {party: credentials_of(party) for party in (CITY, NOTARY, RENTALS)}


def large(n_bytes):
    return frame_of(Activations(0, values=np.arange(n_bytes // 8 * 2, dtype=np.float32).reshape(-1, 2)))


def echo(_, line):
    with suppress(ConnectionLost, WireError):
        while True:
            line.send(line.receive())
    line.close()


@contextmanager
def listening(answer=echo, transport=None):
    """The city's listener with TLS."""
    listener = (transport or GrpcTransport(CREDENTIALS[CITY])).listen("127.0.0.1:0", answer)
    try:
        yield listener.address
    finally:
        listener.close()


def is_served(address, caller=RENTALS):
    """Whether a valid caller is answered, who dials again as parties do."""
    until(lambda: is_answered(address, caller))
    return True


def is_answered(address, caller):
    with suppress(ConnectionLost):
        line = GrpcTransport(CREDENTIALS[caller]).dial(address, CITY)
        with closing(line):
            line.send(frame_of(Save(7)))
            return line.receive() == frame_of(Save(7))
    return False


def serve_with_few_descriptors(pipe, descriptors, credentials):
    """Run the city's listener in a process of its own that may open a limited number of files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    with listening(transport=GrpcTransport(credentials)) as address, ExitStack() as files:
        pipe.send(address)
        for n_files in iter(pipe.recv, None):  # whether the party itself can still open that number
            files.pop_all().close()
            try:
                pipe.send(bool([files.enter_context(Path(os.devnull).open()) for _ in range(n_files)]))
            except OSError as error:
                pipe.send(error.strerror)


@contextmanager
def limited_listener(descriptors):
    """The address of such a listener, and a function that asks it to open files."""
    here, there = multiprocessing.Pipe()
    process = _warm.Process(
        target=serve_with_few_descriptors, args=(there, descriptors, CREDENTIALS[CITY]), daemon=True
    )
    process.start()
    there.close()

    def open_files(count):
        here.send(count)
        return here.recv()

    try:
        yield here.recv(), open_files
    finally:
        here.send(None)
        process.join(PATIENCE)
        process.kill()
