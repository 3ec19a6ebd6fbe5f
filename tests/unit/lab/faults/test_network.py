"""A proxy between parties stalls and breaks connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from fedsim_lab.faults.local_job import free_ports
from fedsim_lab.faults.network import FaultyProxy
from session_fixtures import PATIENCE


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def proxy(server: socket.socket) -> Iterator[tuple[FaultyProxy, socket.socket, socket.socket]]:
    """Return a proxy, a caller's connection through it, and the end of the server."""
    port = next(free_ports())
    proxy = FaultyProxy(port, server.getsockname()[1])
    with closing(proxy), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as caller:
        end, _ = server.accept()
        with end:
            end.settimeout(PATIENCE)
            yield proxy, caller, end


def test_bytes_pass_both_ways(proxy) -> None:
    _, caller, end = proxy
    caller.sendall(b"request")
    assert end.recv(100) == b"request"
    end.sendall(b"answer")
    assert caller.recv(100) == b"answer"


def test_what_was_sent_while_the_proxy_stalled_arrives_later(proxy) -> None:
    faulty, caller, end = proxy
    faulty.stall()
    caller.sendall(b"late")
    end.settimeout(0.2)
    with pytest.raises(TimeoutError):
        end.recv(100)
    end.settimeout(PATIENCE)
    faulty.resume()
    assert end.recv(100) == b"late"


def test_a_cut_breaks_the_connections_of_both_sides(proxy) -> None:
    faulty, caller, end = proxy
    faulty.cut()
    assert faulty.cuts == 1
    for link in (caller, end):
        try:
            received = link.recv(100)
        except ConnectionResetError:
            received = b""
        assert received == b""


def test_a_closed_proxy_accepts_no_connection(server: socket.socket) -> None:
    port = next(free_ports())
    FaultyProxy(port, server.getsockname()[1]).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
