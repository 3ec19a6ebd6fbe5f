"""Connections through proxies: gRPC by SOCKS5 and HTTP CONNECT, alone and before a relay, and what refuses them."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest

from fedsim.protocol.addresses import Proxy, open_connection
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Save
from fedsim.protocol.transport import ConnectionLost
from fedsim_ops.outbound import ProxyClient
from relay_fixtures import proxy_in_thread, relay_in_thread
from session_fixtures import CITY, RENTALS, frame_of
from tls_fixtures import CREDENTIALS, echo, listening


def behind(url, party, login="ada:secret"):
    return replace(CREDENTIALS[party], proxy=Proxy.parse(url, login))


@pytest.mark.parametrize("kind", ["http", "socks5"])
def test_a_party_reaches_another_through_a_proxy_with_a_password(kind):
    with proxy_in_thread(kind) as (url, targets), listening() as address:
        line = GrpcTransport(behind(url, RENTALS)).dial(address, CITY)
        line.send(frame_of(Save(1)))
        assert line.receive() == frame_of(Save(1))
        line.close()
    assert targets == [address]


@pytest.mark.parametrize("kind", ["http", "socks5"])
def test_both_parties_reach_a_relay_through_a_proxy(kind):
    with proxy_in_thread(kind) as (url, targets), relay_in_thread() as hub:
        listener = GrpcTransport(behind(url, CITY)).listen(hub, echo)
        line = GrpcTransport(behind(url, RENTALS)).dial(hub, CITY)
        line.send(frame_of(Save(2)))
        assert line.receive() == frame_of(Save(2))
        line.close()
        listener.close()
    assert set(targets) == {hub.removeprefix("relay://")}


@pytest.mark.parametrize("kind", ["http", "socks5"])
@pytest.mark.parametrize("login", ["", "ada:wrong"])
def test_a_proxy_that_wants_another_password_is_named_and_the_password_is_not(kind, login):
    with proxy_in_thread(kind) as (url, _), pytest.raises(ConnectionLost) as lost:
        GrpcTransport(behind(url, RENTALS, login)).dial("127.0.0.1:9", CITY)
    assert (lost.value.code, lost.value.lasting) == ("proxy-login", True)
    assert "wrong" not in str(lost.value)
    assert "wrong" not in repr(behind(url, RENTALS, login))


@pytest.mark.parametrize("kind", ["http", "socks5"])
def test_a_proxy_that_is_away_may_come_back(kind):
    with pytest.raises(ConnectionLost) as lost:
        open_connection("127.0.0.1:9", behind(f"{kind}://127.0.0.1:9", RENTALS), CITY, 1.0)
    assert (lost.value.code, lost.value.lasting) == ("proxy-unreachable", False)


ANSWERS = {
    "http": {
        b"HTTP/1.1 403 no\r\n\r\n": "proxy-forbids",
        b"HTTP/1.1 502 no\r\n\r\n": "proxy-failed",
        b"?": "proxy-failed",
    },
    "socks5": {
        b"\x05\x00\x05\x02\x00\x01" + bytes(6): "proxy-forbids",
        b"\x04\x00": "proxy-failed",
        b"": "proxy-failed",
    },
}


@pytest.mark.parametrize(
    ("kind", "answer"), [(kind, answer) for kind, answers in ANSWERS.items() for answer in answers]
)
def test_what_a_proxy_answers_has_a_code(kind, answer):
    with socket.create_server(("127.0.0.1", 0)) as place:

        def serve():
            with place.accept()[0] as link:
                link.recv(1000)
                link.sendall(answer)
                if answer.startswith(b"\x05\x00"):
                    link.recv(1000)

        threading.Thread(target=serve, daemon=True).start()
        proxy = Proxy.parse(f"{kind}://127.0.0.1:{place.getsockname()[1]}", "ada:secret")
        with pytest.raises(ConnectionLost) as lost:
            ProxyClient(proxy).open("flats.example.org:1", 2.0)
    assert lost.value.code == ANSWERS[kind][answer]
