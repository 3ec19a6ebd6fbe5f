"""A peer in another process that echoes every array, both over our session and over a bare gRPC stream.

Both use mutual TLS with the same certificates and gRPC options, and convert the bytes to NumPy arrays at both ends. Run
as a program, this module is that peer: it prints its two addresses and runs until its input is closed. If there is a
relay in a third process, it also holds a session there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from fedsim.protocol.certificates import server_name
from fedsim.protocol.grpc_transport import CLIENT_OPTIONS, SERVER_OPTIONS, GrpcTransport
from fedsim.protocol.handshake import SessionAcceptor, SessionConnector
from fedsim.protocol.messages import Activations, Gradients, Party, Role
from fedsim.protocol.session import ConnectionState, Session
from fedsim.protocol.tls import Credentials, read_credentials
from fedsim_ops.authority import authority_files, issue_certificates, party_files

Array = NDArray[Any]
RoundTrip = Callable[[Array], Array]
ECHO, CALLER, HUB = Party(Role.PRIMARY, "echo"), Party(Role.SECONDARY, "caller"), Party(Role.RELAY, "hub")
METHOD = "/bare.Stream/Talk"
ANYWHERE = "127.0.0.1:0"


@contextmanager
def relayed(folder: Path) -> Iterator[dict[str, RoundTrip]]:
    """Yield round trips to one other process, directly and through a relay in a third."""
    issue_certificates(folder, [ECHO, CALLER, HUB], datetime.now(UTC))
    files = ["--certificate", str(party_files(folder, HUB)[0]), "--ca", str(authority_files(folder)[0])]
    command = [sys.executable, "-m", "fedsim", "relay", *files, "--listen", ANYWHERE, "--json", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:  # noqa: S603
        assert relay.stdout
        address = f"relay://{json.loads(relay.stdout.readline())['address']}"
        command = [sys.executable, __file__, str(folder), address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:  # noqa: S603
            assert peer.stdin
            assert peer.stdout
            addresses = {"direct": json.loads(peer.stdout.readline())["session"], "relay": address}
            transport = GrpcTransport(_credentials(folder, CALLER))
            sessions = {
                way: SessionConnector(_connection_state(CALLER), transport, place, ECHO).open()
                for way, place in addresses.items()
            }
            yield {way: _session_trip(session) for way, session in sessions.items()}
            for session in sessions.values():
                session.close()
            peer.stdin.close()
        relay.terminate()


@contextmanager
def both_ways(folder: Path) -> Iterator[dict[str, RoundTrip]]:
    """Yield round trips to one other process, over our session and over a bare stream."""
    issue_certificates(folder, [ECHO, CALLER], datetime.now(UTC))
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:  # noqa: S603
        assert peer.stdin
        assert peer.stdout
        addresses = json.loads(peer.stdout.readline())
        credentials = _credentials(folder, CALLER)
        session = SessionConnector(
            _connection_state(CALLER), GrpcTransport(credentials), addresses["session"], ECHO
        ).open()
        channel = _bare_channel(addresses["bare"], credentials)
        yield {"session": _session_trip(session), "bare": _bare_trip(channel)}
        session.close()
        channel.close()
        peer.stdin.close()


def _session_trip(session: Session) -> RoundTrip:
    return lambda values: session.call(Activations(0, values=values), Gradients).values


def _bare_trip(channel: Any) -> RoundTrip:
    requests: SimpleQueue[bytes | None] = SimpleQueue()
    replies = channel.stream_stream(METHOD)(iter(requests.get, None))

    def trip(values: Array) -> Array:
        requests.put(values.tobytes())
        return np.frombuffer(next(replies), np.float32).reshape(values.shape)

    return trip


def _bare_channel(address: str, credentials: Credentials) -> Any:
    trust = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    name = ("grpc.ssl_target_name_override", server_name(ECHO))
    return grpc.secure_channel(address, trust, options=[*CLIENT_OPTIONS, name])


def _credentials(folder: Path, party: Party) -> Credentials:
    return read_credentials(authority_files(folder)[0], *party_files(folder, party), party)


def _connection_state(party: Party) -> ConnectionState:
    return ConnectionState(party, {"name": "echo"}, {"fedsim": "any"})


def _echo_session(credentials: Credentials, address: str = ANYWHERE) -> str:
    reception = SessionAcceptor(_connection_state(ECHO), [CALLER])
    listener = GrpcTransport(credentials).listen(address, reception.answer)
    threading.Thread(target=_answer_all, args=(reception,), daemon=True).start()
    return listener.address


def _answer_all(reception: SessionAcceptor) -> None:
    session = reception.session_with(CALLER)
    while True:
        envelope = session.receive()
        assert isinstance(envelope.message, Activations)
        session.send(Gradients(0, values=envelope.message.values), reply_to=envelope.sequence)


def _echo_bare(credentials: Credentials) -> str:
    handler = grpc.stream_stream_rpc_method_handler(_echoed)
    handlers = grpc.method_handlers_generic_handler("bare.Stream", {"Talk": handler})
    server = grpc.server(ThreadPoolExecutor(2), options=SERVER_OPTIONS, handlers=[handlers])
    pair = [(credentials.key, credentials.certificate)]
    trust = grpc.ssl_server_credentials(pair, credentials.authority, require_client_auth=True)
    port = server.add_secure_port(ANYWHERE, trust)
    server.start()
    _SERVERS.append(server)
    return f"127.0.0.1:{port}"


def _echoed(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    for request in requests:
        yield np.frombuffer(request, np.float32).tobytes()


_SERVERS: list[Any] = []  # keeps references, because an unreferenced server is stopped


if __name__ == "__main__":
    own = _credentials(Path(sys.argv[1]), ECHO)
    for relay in sys.argv[2:]:
        _echo_session(own, relay)
    print(json.dumps({"session": _echo_session(own), "bare": _echo_bare(own)}), flush=True)
    sys.stdin.read()
