"""The tunnel through NVFlare's server keeps all that a transport must keep, and closes what cannot be carried."""

from __future__ import annotations

import socket
from contextlib import contextmanager

import pytest
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from contract.test_transport import (
    Way,
    _no_greeting,  # noqa: F401 - a fixture of these tests
    test_a_conversation_goes_on_over_new_lines,  # noqa: F401
    test_a_door_that_closes_breaks_the_lines_of_those_who_came_in,  # noqa: F401
    test_a_frame_of_any_size_arrives_whole,  # noqa: F401
    test_a_line_that_one_side_lets_go_breaks_at_the_other,  # noqa: F401
    test_a_line_that_the_receiver_lets_go_breaks_at_the_caller,  # noqa: F401
    test_an_address_is_taken_once_and_free_again_afterwards,  # noqa: F401
    test_frames_arrive_in_order,  # noqa: F401
    test_large_and_small_frames_keep_their_order,  # noqa: F401
    test_lines_do_not_mix,  # noqa: F401
    test_nothing_goes_out_on_a_line_that_was_let_go,  # noqa: F401
    test_the_caller_is_who_its_certificate_proves_or_nobody,  # noqa: F401
    test_the_last_words_of_either_side_arrive,  # noqa: F401
    test_what_a_caller_said_before_it_left_arrives,  # noqa: F401
    test_where_nobody_listens_there_is_no_line_yet,  # noqa: F401
)
from fedsim_lab.faults.local_job import free_ports
from fedsim_nvflare.site import TunnelTransport
from fedsim_nvflare.tunnel import CHUNK_BYTES, TOPIC, Tunnel
from session_fixtures import CITY, PATIENCE
from tls_fixtures import CREDENTIALS


class Engine:
    """NVFlare's engine at one of the sites of this process, which hands every message to the site it is for."""

    def __init__(self, site, handlers):
        self.site, self.handlers, self.carried = site, handlers, []

    @contextmanager
    def new_context(self):
        yield FLContext()

    def register_aux_message_handler(self, topic, handler):
        self.handlers[self.site, topic] = handler

    def send_aux_request(self, targets, topic, request, timeout, fl_ctx, optional=False):
        sender = FLContext()
        sender.set_public_props({ReservedKey.IDENTITY_NAME: self.site})
        fl_ctx.set_peer_context(sender)
        self.carried.append(bytes(request["chunk"]))
        return {targets[0]: self.handlers[targets[0], topic](topic, request, fl_ctx)}


@pytest.fixture
def way():
    """A city at a site of its own, and callers at others."""
    port, handlers, tunnels = next(free_ports()), {}, {}
    Tunnel(Engine("city-site", handlers), port, [])

    def of(party):
        if party == CITY:
            return TunnelTransport({"port": port, "local_ports": {}}, CREDENTIALS[party])
        if party not in tunnels:
            tunnels[party] = Tunnel(Engine(str(party), handlers), 0, ["city-site"])
        return TunnelTransport({"port": 0, "local_ports": tunnels[party].local_ports}, CREDENTIALS[party])

    return Way("through NVFlare", f"city-site:{port}", of, proves=True)


@pytest.fixture
def pair():
    """A server's socket at one site, a port that leads to it at another, and the engine there."""
    handlers = {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        Tunnel(Engine("here", handlers), server.getsockname()[1], [])
        there = Engine("there", handlers)
        yield server, Tunnel(there, 0, ["here"]).local_ports["here"], there


def test_a_slow_reader_gets_every_byte_in_order(pair):
    server, port, there = pair
    sent = bytes(range(256)) * (3 * CHUNK_BYTES // 256)
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as caller:
        accepted, _ = server.accept()
        caller.sendall(sent)
        caller.shutdown(socket.SHUT_WR)
        with accepted, accepted.makefile("rb") as stream:
            assert stream.read() == sent
    assert b"".join(there.carried) == sent
    assert max(map(len, there.carried)) <= CHUNK_BYTES


def test_a_site_that_accepts_no_connections_opens_none(pair):
    _, _, there = pair
    request = Shareable({"what": "open", "connection": "1", "chunk": b""})
    reply = Engine("here", there.handlers).send_aux_request(["there"], TOPIC, request, 1.0, FLContext())["there"]
    assert reply.get_return_code() != ReturnCode.OK


def test_an_error_of_nvflare_closes_the_connection_of_the_party(pair, monkeypatch):
    _, port, there = pair

    def fail(*_, **__):
        raise RuntimeError("NVFlare is stopping")

    monkeypatch.setattr(there, "send_aux_request", fail)
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as caller:
        assert caller.recv(1) == b""
