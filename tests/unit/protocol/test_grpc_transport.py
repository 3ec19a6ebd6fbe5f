"""What gRPC with TLS must bear: limits, garbage, and certificates that prove somebody else or nobody."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import grpc
import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import PeerError, SettingError, WireError
from fedsim.protocol import grpc_transport
from fedsim.protocol.certificates import server_name
from fedsim.protocol.grpc_transport import CHUNK_BYTES, MAX_STREAMS_PER_PARTY, METHOD, GrpcTransport, RateLimiter
from fedsim.protocol.handshake import SessionAcceptor, SessionConnector
from fedsim.protocol.messages import KeepBest, Party, Role
from fedsim.protocol.tls import Credentials, client_context
from fedsim.protocol.transport import MAGIC, PREFIX, ConnectionLost
from fedsim_ops import tls_probe
from session_fixtures import CITY, NOTARY, PATIENCE, RENTALS, Notes, connection_of, frame_of, joined, started, until
from tls_fixtures import CREDENTIALS, DAY, FOREIGN, NOW, OURS, credentials_of, echo, is_served, large, listening

# --- gRPC: limits ------------------------------------------------------------------------------------------------


class Faults(list):
    """An echo that writes down why its lines ended."""

    def __call__(self, _, line):
        try:
            while True:
                line.send(line.receive())
        except (ConnectionLost, WireError) as fault:
            self.append(fault)
        line.close()


@pytest.mark.parametrize("declared", [1 << 20, 1 << 40, 1 << 62, (1 << 64) - 1])
def test_a_frame_that_declares_too_much_is_refused_before_it_is_collected(declared):
    faults = Faults()
    with listening(faults, GrpcTransport(CREDENTIALS[CITY], most_bytes=1 << 19)) as address:
        line = GrpcTransport(CREDENTIALS[RENTALS]).dial(address, CITY)
        line.send(PREFIX.pack(MAGIC, 8, declared, 0) + bytes(8))
        with pytest.raises(ConnectionLost):
            line.receive()
        assert is_served(address)
    assert (faults[0].code, faults[0].limit) == ("frame-too-large", 1 << 19)


def test_a_caller_does_not_take_more_than_it_allows_either():
    with listening() as address:
        line = GrpcTransport(CREDENTIALS[RENTALS], most_bytes=1 << 16).dial(address, CITY)
        line.send(large(1 << 17))
        with raises(WireError, "frame-too-large"):
            line.receive()
        line.close()


def test_pieces_that_are_more_than_declared_are_refused(monkeypatch):
    monkeypatch.setattr(grpc_transport, "FIRST_BYTES", 1 << 30)
    faults = Faults()
    with listening(faults) as address, bare_channel(address) as channel:
        frame = large(CHUNK_BYTES + 1000)
        replies = channel.stream_stream(METHOD)(iter([frame[:CHUNK_BYTES], frame[CHUNK_BYTES:] + b"more"]))
        assert list(replies) == []
        until(lambda: faults)
    assert faults[0].code == "bad-frame-size"


def test_the_first_frame_of_a_line_is_no_larger_than_a_greeting():
    faults = Faults()
    with listening(faults) as address:
        line = GrpcTransport(CREDENTIALS[RENTALS]).dial(address, CITY)
        line.send(large(grpc_transport.FIRST_BYTES + 8))
        with pytest.raises(ConnectionLost):
            line.receive()
        until(lambda: faults)
    assert (faults[0].code, faults[0].limit) == ("frame-too-large", grpc_transport.FIRST_BYTES)


def test_a_frame_that_stops_in_the_middle_breaks_the_line(monkeypatch):
    monkeypatch.setattr(grpc_transport, "FIRST_BYTES", 1 << 30)
    faults = Faults()
    with listening(faults) as address, bare_channel(address) as channel:
        assert list(channel.stream_stream(METHOD)(iter([large(CHUNK_BYTES + 1000)[:CHUNK_BYTES]]))) == []
        until(lambda: faults)
    assert isinstance(faults[0], ConnectionLost)


def test_an_allowance_is_a_burst_and_then_a_rate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(grpc_transport.time, "monotonic", lambda: now[0])
    allowance = RateLimiter(rate=10, burst=5)
    for _ in range(5):
        allowance.take()
    with raises(WireError, "too-many-messages"):
        allowance.take()
    now[0] += 1.0
    for _ in range(4):
        allowance.take()
    now[0] += 1000.0
    for _ in range(5):
        allowance.take()
    with pytest.raises(WireError):
        allowance.take()


def test_a_caller_that_floods_is_cut_off_and_others_are_served(monkeypatch):
    monkeypatch.setattr(grpc_transport, "RateLimiter", partial(RateLimiter, 1.0, 50.0))
    faults = Faults()
    with listening(faults) as address:
        line = GrpcTransport(CREDENTIALS[RENTALS]).dial(address, CITY)
        with suppress(ConnectionLost):
            for _ in range(200):
                line.send(frame_of(KeepBest()))
        until(lambda: faults)
        assert is_served(address, NOTARY)
    assert faults[0].code == "too-many-messages"


def test_a_party_has_so_many_lines_and_no_more():
    with listening() as address, ExitStack() as lines:
        transport = GrpcTransport(CREDENTIALS[RENTALS])
        opened = [transport.dial(address, CITY) for _ in range(MAX_STREAMS_PER_PARTY)]
        for line in opened:
            lines.callback(line.close)
            line.send(frame_of(KeepBest()))
            assert line.receive() == frame_of(KeepBest())
        with raises(ConnectionLost, "too-many-streams"):
            transport.dial(address, CITY).receive()
        assert is_served(address, NOTARY)
        opened[0].close()
        until(lambda: may_speak(transport, address))


def may_speak(transport, address):
    line = transport.dial(address, CITY)
    line.send(frame_of(KeepBest()))
    try:
        return bool(line.receive())
    except ConnectionLost:
        return False
    finally:
        line.close()


def test_a_stream_that_has_ended_makes_room_for_the_next_one_at_once():
    def answer_once(_, line):
        line.send(line.receive())
        line.close()

    own = CREDENTIALS[RENTALS]
    trust = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
    options = [*grpc_transport.CLIENT_OPTIONS, ("grpc.ssl_target_name_override", server_name(CITY))]
    with listening(answer_once) as address, grpc.secure_channel(address, trust, options=options) as channel:
        talk = channel.stream_stream(METHOD)
        assert [list(talk(iter([frame_of(KeepBest())]))) for _ in range(50)] == [[frame_of(KeepBest())]] * 50


# --- gRPC: garbage -----------------------------------------------------------------------------------------------


def raw(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def test_five_thousand_garbage_connections_leave_the_door_open():
    rng = np.random.default_rng(11)
    starts = [
        b"",
        b"\0" * 50,
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\xff\xff\x01",
    ]
    with listening() as address:
        for number in range(5000):
            with suppress(OSError), raw(address) as connection:
                connection.sendall(starts[number % 5] + rng.bytes(number % 90))
        assert is_served(address)


def test_garbage_after_a_good_tls_handshake_does_no_harm():
    context, rng = client_context(CREDENTIALS[RENTALS]), np.random.default_rng(12)
    with listening() as address:
        for number in range(100):
            with suppress(OSError), context.wrap_socket(raw(address), server_hostname=server_name(CITY)) as channel:
                channel.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: number % 25] + rng.bytes(200))
        assert is_served(address)


@contextmanager
def bare_channel(address, caller=RENTALS):
    """gRPC as anybody with a good certificate could use it."""
    credentials = CREDENTIALS[caller]
    trust = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    name = ("grpc.ssl_target_name_override", server_name(CITY))
    with grpc.secure_channel(address, trust, options=[name]) as channel:
        yield channel


def test_garbage_messages_of_a_good_certificate_end_their_lines_alone():
    faults, rng = Faults(), np.random.default_rng(13)
    with listening(faults) as address:
        for number in range(300):
            with bare_channel(address) as channel, suppress(grpc.RpcError):
                for extra in range(5):
                    list(channel.stream_stream(METHOD)(iter([rng.bytes(5 * extra + number % 70), rng.bytes(5)])))
        assert is_served(address, NOTARY)
    assert sum(isinstance(fault, WireError) for fault in faults) > 1000


@pytest.mark.parametrize(
    "method", ["/fedsim.Parties/Stop", "/grpc.health.v1.Health/Check", "/", "//", "/a/" + "b" * 4000]
)
def test_there_is_one_method(method):
    with listening() as address, bare_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as fault:
            channel.unary_unary(method)(b"")
        assert fault.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert is_served(address)


def test_a_message_larger_than_a_piece_is_refused_by_grpc_itself():
    faults = Faults()
    with listening(faults) as address, bare_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as fault:
            list(channel.stream_stream(METHOD)(iter([bytes(CHUNK_BYTES + 5000)])))
        assert fault.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert is_served(address, NOTARY)


def test_callers_that_say_nothing_keep_nobody_waiting():
    with listening() as address, ExitStack() as kept:
        silent = [kept.enter_context(raw(address)) for _ in range(200)]
        assert is_served(address)
        assert len(select.select(silent, [], [], 0)[0]) < len(silent)  # some are still waited for


# --- gRPC: certificates ------------------------------------------------------------------------------------------


def refusal(server: Credentials, client: Credentials, peer: Party = CITY) -> ConnectionLost:
    """Why there is no line between two, said at once."""
    with listening(transport=GrpcTransport(server)) as address, pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc_transport, "DIAL_SECONDS", 3600)
        with pytest.raises(ConnectionLost) as fault:
            GrpcTransport(client).dial(address, peer)
    return fault.value


def test_the_certificate_of_another_role_cannot_listen_as_the_city():
    same_name = credentials_of(Party(Role.SECONDARY, "city"))
    fault = refusal(same_name, CREDENTIALS[RENTALS])
    assert (fault.code, fault.lasting) == ("other-party", True)


def test_the_certificate_of_another_party_cannot_listen_as_the_city():
    fault = refusal(CREDENTIALS[NOTARY], CREDENTIALS[RENTALS])
    assert (fault.code, fault.lasting) == ("other-party", True)


def test_an_expired_certificate_of_the_listener_is_named_at_once():
    fault = refusal(credentials_of(CITY, now=NOW - 60 * DAY, days=30), CREDENTIALS[RENTALS])
    assert (fault.code, fault.lasting) == ("certificate-out-of-date", True)


def test_an_expired_certificate_of_the_caller_is_named_at_once():
    fault = refusal(CREDENTIALS[CITY], credentials_of(RENTALS, now=NOW - 60 * DAY, days=30))
    assert (fault.code, fault.lasting) == ("own-certificate-out-of-date", True)


@pytest.mark.parametrize("foreign", [CITY, RENTALS])
def test_a_certificate_of_another_authority_is_named_at_once(foreign):
    strange = credentials_of(foreign, FOREIGN)
    fault = refusal(strange, CREDENTIALS[RENTALS]) if foreign == CITY else refusal(CREDENTIALS[CITY], strange)
    assert (fault.code, fault.lasting) == ("other-authority", True)


def test_a_caller_without_a_certificate_is_not_answered():
    answered = []
    with listening(lambda caller, line: answered.append(caller)) as address:
        trust = grpc.ssl_channel_credentials(OURS.pair.certificate)
        name = ("grpc.ssl_target_name_override", server_name(CITY))
        with grpc.secure_channel(address, trust, options=[name]) as channel, pytest.raises(grpc.RpcError):
            list(channel.stream_stream(METHOD)(iter([frame_of(KeepBest())])))
    assert answered == []


def test_plaintext_is_refused_by_a_door_with_tls():
    with listening() as address, pytest.raises(ConnectionLost):
        GrpcTransport(None).dial(address, CITY).receive()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.org:443", "10.0.0.1:5000"])
def test_plaintext_stays_on_this_machine(address):
    for attempt in (lambda: GrpcTransport(None).listen(address, echo), lambda: GrpcTransport(None).dial(address, CITY)):
        with raises(SettingError, "plaintext-to-others"):
            attempt()


def test_a_port_in_use_is_told_with_the_way_out():
    with listening() as address, raises(SettingError, "address-in-use") as caught:
        GrpcTransport(CREDENTIALS[CITY]).listen(address, echo)
    assert "must approve" not in str(caught.value)  # Job.hash, which is approved, does not cover addresses


# --- gRPC: silence may pass --------------------------------------------------------------------------------------


@contextmanager
def misbehaving_server(talk):
    """Listen at a port without speaking the protocol."""
    with socket.create_server(("127.0.0.1", 0)) as found:

        def serve():
            with suppress(OSError):
                while True:
                    talk(found.accept()[0])

        serving = started(serve)
        yield f"127.0.0.1:{found.getsockname()[1]}"
        found.shutdown(socket.SHUT_RDWR)
        joined(serving)


def attempt(address, monkeypatch, seconds=PATIENCE) -> ConnectionLost:
    monkeypatch.setattr(grpc_transport, "DIAL_SECONDS", 0.3)
    monkeypatch.setattr(tls_probe, "probe_tls", partial(tls_probe.probe_tls, seconds=seconds))
    with pytest.raises(ConnectionLost) as fault:
        GrpcTransport(CREDENTIALS[RENTALS]).dial(address, CITY)
    return fault.value


def test_a_peer_that_hangs_is_dialled_again(monkeypatch):
    with ExitStack() as kept, misbehaving_server(kept.enter_context) as address:
        fault = attempt(address, monkeypatch, seconds=0.3)
    assert (fault.code, fault.lasting) == ("handshake-timeout", False)


def test_a_peer_behind_a_cut_network_is_dialled_again(monkeypatch):
    with misbehaving_server(lambda connection: connection.close()) as address:
        fault = attempt(address, monkeypatch)
    assert (fault.code, fault.lasting) == ("handshake-closed", False)


def test_another_service_is_not_dialled_again(monkeypatch):
    def talk(connection):
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.recv(1000)

    with misbehaving_server(talk) as address:
        fault = attempt(address, monkeypatch)
    assert (fault.code, fault.lasting) == ("no-tls", True)


def test_a_party_that_is_turned_away_is_told_over_the_wire_and_noted():
    acceptor = SessionAcceptor(connection_of(CITY, record_event=Notes()), [RENTALS])
    with listening(acceptor.answer) as address:
        impostor = SessionConnector(connection_of(RENTALS), GrpcTransport(CREDENTIALS[NOTARY]), address, CITY)
        with raises(PeerError, "connection-rejected"):
            impostor.open()
    assert acceptor.connection.record_event.kinds == ["refused"]
