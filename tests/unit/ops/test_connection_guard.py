"""Whoever proves no party uses up neither the descriptors nor the patience of those who do."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import ssl
from contextlib import ExitStack, suppress

import pytest

from fedsim.protocol import tls
from fedsim.protocol.addresses import split_address
from fedsim.protocol.certificates import server_name
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Save
from fedsim_ops import connection_guard
from fedsim_ops.connection_guard import ConnectionGuard, connection_limit, grpc_endpoint
from fedsim_ops.tls_probe import probe_tls
from session_fixtures import CITY, PATIENCE, RENTALS, frame_of, until
from tls_fixtures import CREDENTIALS, echo, is_served, limited_listener, listening


def silent_callers(kept: ExitStack, address: str, count: int) -> list[socket.socket]:
    """Callers that connect and say nothing, as many as get through."""
    found = []
    for _ in range(count):
        with suppress(OSError):
            found.append(kept.enter_context(socket.create_connection(split_address(address), timeout=5)))
    return found


def test_1300_silent_callers_neither_end_a_session_nor_keep_a_party_out_at_1024_descriptors():
    with limited_listener(1024) as (address, open_files), ExitStack() as kept:
        line = GrpcTransport(CREDENTIALS[RENTALS]).dial(address, CITY)
        silent_callers(kept, address, 1300)
        line.send(frame_of(Save(7)))
        assert line.receive() == frame_of(Save(7))
        assert open_files(600) is True
        assert is_served(address)
        line.close()


def test_silent_callers_above_the_limit_are_closed_and_the_incident_is_logged_once(caplog):
    listener = GrpcTransport(CREDENTIALS[CITY]).listen("127.0.0.1:0", echo)
    most = listener.guard.limit // connection_guard.ADDRESS_SHARE
    with ExitStack() as kept, caplog.at_level(logging.WARNING, "fedsim.parties"):
        callers = silent_callers(kept, listener.address, most + 5)
        until(lambda: caplog.messages)  # the guard closes first and logs then
        until(lambda: len(select.select(callers, [], [], 0)[0]) == 5)  # the others are still open
        assert len(caplog.messages) == 1
    listener.close()


def test_a_caller_that_takes_too_long_is_closed_and_a_stream_never():
    listener = GrpcTransport(CREDENTIALS[CITY]).listen("127.0.0.1:0", echo)
    line = GrpcTransport(CREDENTIALS[RENTALS]).dial(listener.address, CITY)
    line.send(frame_of(Save(1)))
    line.receive()
    guard = ConnectionGuard(split_address(listener.address)[1], 256)
    with ExitStack() as kept, guard.hold(next(iter(listener.guard._held))):
        caller = silent_callers(kept, listener.address, 1)[0]
        until(lambda: guard.sweep(0.0) or sum(each is not None for each in guard._seen.values()) == 2)
        guard.sweep(connection_guard.HOLD_SECONDS + 1)
        assert caller.recv(1) == b""
    line.send(frame_of(Save(2)))
    assert line.receive() == frame_of(Save(2))
    line.close()
    listener.close()


def test_connections_take_a_quarter_of_the_descriptors_at_most(monkeypatch):
    resource = pytest.importorskip("resource")
    for descriptors, most in ((64, 16), (256, 64), (1024, 256), (10**6, 256), (resource.RLIM_INFINITY, 256)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, found=descriptors: (found, found))
        assert connection_limit() == most


@pytest.mark.parametrize("peer", ["ipv4:10.0.0.1:7", "ipv6:%5B::ffff:10.0.0.1%5D:7"])
def test_an_address_is_the_same_in_both_notations(peer):
    assert grpc_endpoint(peer) == ("10.0.0.1", 7)


def test_a_process_without_descriptors_blames_itself_and_dials_again(monkeypatch):
    def exhausted(**_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with listening() as address:
        monkeypatch.setattr(tls, "TemporaryDirectory", exhausted)
        probe = probe_tls(address, CREDENTIALS[RENTALS], CITY)
    assert (probe.code, probe.lasting) == ("out-of-descriptors", False)


def test_tls_1_2_is_refused_by_the_listener():
    context = tls.client_context(CREDENTIALS[RENTALS])
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        listening() as address,
        socket.create_connection(split_address(address), timeout=PATIENCE) as line,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(line, server_hostname=server_name(CITY))
