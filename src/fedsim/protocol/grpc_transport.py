"""The gRPC transport: bidirectional streams with mutual TLS.

A frame of up to 4 MiB is one gRPC message, a longer frame is several; its declared size is checked before it is
collected. HTTP/2 pings are the heartbeat: gRPC's own threads answer them while Python computes, and a peer that does
not answer for 40 seconds counts as disconnected.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from queue import SimpleQueue
from typing import Any

import grpc

from fedsim.errors import FedSimError, SettingError, WireError
from fedsim.protocol import TLS13_ONLY, Party, certificates, tls
from fedsim.protocol.addresses import RelayAddress, is_direct, open_connection
from fedsim.protocol.tls import Credentials
from fedsim.protocol.transport import MAX_FRAME_BYTES, ConnectionLost, StreamHandler, declared_size
from fedsim.registry import SERVICES

log = logging.getLogger("fedsim.parties")

SERVICE, METHOD = "fedsim.Parties", "/fedsim.Parties/Talk"
CHUNK_BYTES = 4 << 20
FIRST_BYTES = 2 << 20  # of the first frame of a stream, a Hello
MAX_STREAMS = 128  # open at a time, from all callers
MAX_STREAMS_PER_PARTY = 3  # one in use, one that replaces it, and one to be rejected
FRAMES_PER_SECOND, FRAMES_AT_ONCE = 5000.0, 20000.0
DIAL_SECONDS = 5.0
CLOSING_SECONDS = 2.0
OPTIONS = [
    ("grpc.max_receive_message_length", CHUNK_BYTES + 1024),
    ("grpc.max_send_message_length", CHUNK_BYTES + 1024),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 30_000),  # on a slow link a ping queues behind data
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
SERVER_OPTIONS = [
    *OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
]
CLIENT_OPTIONS = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
END_OF_STREAM = b""
STATUS_REASONS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: ("too-many-streams", "the peer accepts no more connections from this party"),
    grpc.StatusCode.UNAUTHENTICATED: ("unknown-name", "the peer does not recognise the name in our certificate"),
}


class GrpcTransport:
    """Connects processes with mutual TLS; without credentials in plaintext, on this machine only."""

    def __init__(self, credentials: Credentials | None, *, most_bytes: int = MAX_FRAME_BYTES) -> None:
        self.credentials, self.most_bytes = credentials, most_bytes
        if credentials is not None and not TLS13_ONLY:
            log.warning("gRPC was imported before FedSim and also accepts TLS 1.2; import fedsim.protocol first")

    def listen(self, address: str, answer: StreamHandler) -> GrpcListener:
        if self.credentials is None:
            tls.check_plaintext(address)
        return GrpcListener(address, answer, self.credentials, self.most_bytes)

    def dial(self, address: str, peer: Party) -> GrpcStream:
        own = self.credentials and self.credentials.current()
        if own is None:
            tls.check_plaintext(address)
            channel = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
        else:
            if own.revocations and tls.is_peer_revoked(address, own, peer):
                fault = f"the certificate of {peer} at {address} was revoked"
                raise ConnectionLost(fault, code="certificate-revoked", lasting=True)
            target, options = (address, []) if is_direct(address, own) else SERVICES["grpc-target"](address, own, peer)
            trust = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
            name = ("grpc.ssl_target_name_override", certificates.server_name(peer))
            channel = grpc.secure_channel(target, trust, options=[*CLIENT_OPTIONS, name, *options])
        if _is_ready(channel):
            return GrpcStream.from_client(channel, self.most_bytes)
        channel.close()
        if own is None:
            raise ConnectionLost(f"no party answers at {address}")
        probe, lasting = SERVICES["tls-probe"](address, own, peer), False
        if probe.lasting:
            with suppress(OSError, ConnectionLost):  # a TLS failure is lasting if the port is still open
                open_connection(address, own, peer, 1.0).close()
                lasting = True
        raise ConnectionLost(probe.reason or f"{address} is not ready yet", code=probe.code, lasting=lasting)


class GrpcListener:
    """A server with one thread per stream; behind a relay, at a socket that only this user of this machine can open."""

    def __init__(self, address: str, answer: StreamHandler, credentials: Credentials | None, most_bytes: int) -> None:
        self._answer, self._credentials, self._most_bytes = answer, credentials, most_bytes
        self._open: dict[Party | None, int] = {}
        self._revoked: set[Party] = set()  # callers whose refusal was logged
        self._lock = threading.Lock()
        handler, limit = grpc.stream_stream_rpc_method_handler(self._talk), SERVICES["connection-limit"]()
        relay, self.address = RelayAddress.parse(address), address
        self.registration: Any = SERVICES["relay-registration"](relay, credentials) if relay else None
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_STREAMS, "fedsim-stream"),
            options=[*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", limit)],
            maximum_concurrent_rpcs=MAX_STREAMS,
            handlers=[grpc.method_handlers_generic_handler(SERVICE, {"Talk": handler})],
        )
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                trust = _server_credentials(credentials)
                port = self._server.add_secure_port(
                    f"unix:{self.registration.path}" if self.registration else address, trust
                )
        except RuntimeError:
            fault = f"cannot listen at {address}: the port is in use, or the address does not belong to this machine"
            hint = "stop the other program, or change the port in the job file of every party; approvals stay valid"
            raise SettingError(f"{fault}; {hint}", code="address-in-use", address=address) from None
        # Behind a relay, what connects has shown a certificate to it, and this process opens the connections itself.
        self.guard: Any = None if relay else SERVICES["connection-guard"](port, limit)
        self._server.start()
        if self.guard:
            self.address = f"{address.rpartition(':')[0]}:{port}"
            self.guard.start()
        elif self.registration:
            try:
                self.registration.start()
            except SettingError:
                self.close()
                raise

    def close(self) -> None:
        if self.registration:
            self.registration.stop()
        self._server.stop(grace=0.5).wait()
        if self.guard:
            self.guard.stop()
        if self.registration:
            self.registration.folder.cleanup()

    def _talk(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        caller = None
        if self._credentials is not None:
            try:
                shown = context.auth_context()["x509_pem_cert"][0]
                caller, refused = certificates.certificate_party(shown), self._credentials.current().refuses(shown)
            except (FedSimError, LookupError):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate names no party")
                raise
            if refused:
                if caller not in self._revoked:  # it may dial again and again
                    log.warning("refused %s: its certificate was revoked", caller)
                self._revoked.add(caller)
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate was revoked")
        with self._lock:
            count = self._open.get(caller, 0) + 1
            admitted = count <= (MAX_STREAMS_PER_PARTY if caller else MAX_STREAMS)
            self._open[caller] = count if admitted else count - 1
        if not admitted:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many connections from one party")
        stream = GrpcStream(requests, context.cancel, self._most_bytes)
        context.add_callback(stream.call_ended)
        threading.Thread(target=self._answer, args=(caller, stream), daemon=True).start()
        try:
            with self.guard.hold(context.peer()) if self.guard else nullcontext():
                yield from stream.outgoing()
        finally:
            stream.close()
            with self._lock:
                self._open[caller] -= 1


class GrpcStream:
    """One end of a gRPC call; ``cut`` aborts the call if the peer does not end it in time after ``close``."""

    def __init__(self, incoming: Iterator[bytes] | None, cut: Callable[[], Any], most_bytes: int) -> None:
        self._queue, self._closed, self._cut = SimpleQueue[bytes](), threading.Event(), cut
        self._frames = iter(()) if incoming is None else _join_frames(incoming, most_bytes, RateLimiter())
        self._timer: threading.Timer | None = None

    @classmethod
    def from_client(cls, channel: Any, most_bytes: int) -> GrpcStream:
        """Start a call on a channel that is ready."""
        stream = cls(None, channel.close, most_bytes)
        call = channel.stream_stream(METHOD)(stream.outgoing())
        stream._frames = _join_frames(call, most_bytes, RateLimiter())
        return stream

    def outgoing(self) -> Iterator[bytes]:
        """Yield the gRPC messages to send, until the stream is closed."""
        while frame := self._queue.get():
            yield from split_frame(frame)

    def send(self, frame: bytes) -> None:
        if self._closed.is_set():
            raise ConnectionLost
        self._queue.put(frame)

    def receive(self) -> bytes:
        try:
            return next(self._frames)
        except StopIteration:
            self.close()
            raise ConnectionLost from None
        except grpc.RpcError as error:
            self.close()
            status = error.code() if isinstance(error, grpc.Call) else None  # a server's error has no status
            code, reason = STATUS_REASONS.get(status, ("", "connection lost"))
            raise ConnectionLost(reason, code=code) from None

    def close(self) -> None:
        """Send what is queued, then end the call; a peer that does not end it too is cut off."""
        if not self._closed.is_set():
            self._timer = timer = threading.Timer(CLOSING_SECONDS, self._cut)
            timer.daemon = True
            self._end()
            timer.start()

    def call_ended(self) -> None:
        """Note that the call is over: nothing is left to abort.

        A timer that is still waiting would keep the call, and count it among those that its connection may have.
        """
        self._end()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _end(self) -> None:
        """Mark the stream as closed and wake up the sender."""
        self._closed.set()
        self._queue.put(END_OF_STREAM)


class RateLimiter:
    """Limits frames per second, with room for a burst."""

    def __init__(self, rate: float = FRAMES_PER_SECOND, burst: float = FRAMES_AT_ONCE) -> None:
        self._rate, self._burst, self._left, self._seen = rate, burst, burst, time.monotonic()

    def take(self) -> None:
        """Count one frame; raise ``WireError`` if there are too many."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._seen) * self._rate) - 1
        self._seen = now
        if self._left < 0:
            fault = f"more than {self._rate:.0f} messages per second"
            raise WireError(fault, code="too-many-messages", limit=self._rate)


def split_frame(frame: bytes) -> Iterator[bytes]:
    """Split a frame into gRPC messages.

    >>> [len(piece) for piece in split_frame(bytes(CHUNK_BYTES + 1))]
    [4194304, 1]
    """
    if len(frame) <= CHUNK_BYTES:
        yield frame
        return
    view = memoryview(frame)
    for start in range(0, len(frame), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])


def _join_frames(messages: Iterator[bytes], most_bytes: int, limiter: RateLimiter) -> Iterator[bytes]:
    """Collect frames from gRPC messages; no frame exceeds its declared size or the limit."""
    most = min(FIRST_BYTES, most_bytes)  # the caller has not identified itself yet
    for first in messages:
        limiter.take()
        total = declared_size(first)
        if total > most:
            raise WireError(f"a frame declares {total} bytes; the limit is {most}", code="frame-too-large", limit=most)
        most = most_bytes
        if len(first) == total:
            yield first
            continue
        collected = bytearray(first)
        while len(collected) < total:
            limiter.take()
            piece = next(messages, END_OF_STREAM)
            if not piece:
                raise ConnectionLost
            collected += piece
        if len(collected) != total:
            raise WireError(f"a frame of {len(collected)} bytes declares {total} bytes", code="bad-frame-size")
        yield bytes(collected)


def _server_credentials(own: Credentials) -> Any:
    """Return what a server shows its callers and accepts of them; each new connection gets the current certificate."""
    used = own.current()

    def configure(shown: Credentials) -> Any:
        return grpc.ssl_server_certificate_configuration([(shown.key, shown.certificate)], shown.authority)

    def fetch() -> Any:
        nonlocal used
        before, used = used, own.current()
        return None if used is before else configure(used)

    return grpc.dynamic_ssl_server_credentials(configure(used), fetch, require_client_authentication=True)


def _is_ready(channel: Any) -> bool:
    """Wait until the channel is connected or has failed, and return whether it is connected."""
    known, ready = threading.Event(), threading.Event()

    def changed(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            ready.set()
        if state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
            known.set()

    channel.subscribe(changed, try_to_connect=True)
    known.wait(DIAL_SECONDS)
    channel.unsubscribe(changed)
    return ready.is_set()
