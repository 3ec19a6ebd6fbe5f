"""The gRPC transport: bidirectional streams with mutual TLS.

A frame of up to 4 MiB is one gRPC message, a longer one several; the size it declares is checked before it is
collected. HTTP/2 pings are the heartbeat: they are answered by gRPC's own threads while Python computes, and a peer
that does not answer them for 40 seconds is gone.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import grpc

from fedsim.errors import FedSimError, SettingError, WireError
from fedsim.protocol.certificates import certificate_party, server_name
from fedsim.protocol.codec import MAX_FRAME_BYTES, declared_size
from fedsim.protocol.messages import Party
from fedsim.protocol.tls import Credentials, check_plaintext, probe_tls, split_address
from fedsim.protocol.transport import ConnectionLost, StreamHandler

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what went wrong is said in our own words


METHOD = "/fedsim.Parties/Talk"
CHUNK_BYTES = 4 << 20
FIRST_BYTES = 2 << 20  # of the first frame of a line: a greeting
MAX_STREAMS = 128  # at a time, of all callers together
MAX_STREAMS_PER_PARTY = 3  # of one caller: a line, the one that replaces it, and one to be told "no"
FRAMES_PER_SECOND, FRAMES_AT_ONCE = 5000.0, 20000.0
DIAL_SECONDS = 5.0
CLOSING_SECONDS = 2.0
OPTIONS = [
    ("grpc.max_receive_message_length", CHUNK_BYTES + 1024),
    ("grpc.max_send_message_length", CHUNK_BYTES + 1024),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 30_000),  # a ping stands in line behind data on a slow link
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


class GrpcTransport:
    """Mutual TLS; without credentials plaintext, on this machine alone."""

    def __init__(self, credentials: Credentials | None, *, most_bytes: int = MAX_FRAME_BYTES) -> None:
        self.credentials, self.most_bytes = credentials, most_bytes

    def listen(self, address: str, answer: StreamHandler) -> GrpcListener:
        if self.credentials is None:
            check_plaintext(address)
        return GrpcListener(address, answer, self.credentials, self.most_bytes)

    def dial(self, address: str, peer: Party) -> GrpcClientStream:
        channel = self._channel(address, peer)
        if _is_ready(channel):
            return GrpcClientStream(channel, self.most_bytes)
        channel.close()
        if self.credentials is None:
            raise ConnectionLost(f"nobody answers at {address}")
        found = probe_tls(address, self.credentials, peer)
        raise ConnectionLost(found.words or f"{address} is not ready yet", lasting=found.lasting and _is_open(address))

    def _channel(self, address: str, peer: Party) -> Any:
        if self.credentials is None:
            check_plaintext(address)
            return grpc.insecure_channel(address, options=CLIENT_OPTIONS)
        files = self.credentials
        trust = grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)
        name = ("grpc.ssl_target_name_override", server_name(peer))
        return grpc.secure_channel(address, trust, options=[*CLIENT_OPTIONS, name])


class GrpcListener:
    """A server with a thread per line."""

    def __init__(self, address: str, answer: StreamHandler, credentials: Credentials | None, most_bytes: int) -> None:
        self._answer, self._secure, self._most_bytes = answer, credentials is not None, most_bytes
        self._open: dict[Party | None, int] = {}
        self._lock = threading.Lock()
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_STREAMS, "fedsim-line"),
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=MAX_STREAMS,
            handlers=[_Handlers(self._talk)],
        )
        self.address = self._bind(address, credentials)
        self._server.start()

    def close(self) -> None:
        self._server.stop(grace=0.5).wait()

    def _bind(self, address: str, credentials: Credentials | None) -> str:
        host = address.rpartition(":")[0]
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                pair = [(credentials.key, credentials.certificate)]
                trust = grpc.ssl_server_credentials(pair, credentials.authority, require_client_auth=True)
                port = self._server.add_secure_port(address, trust)
        except RuntimeError:
            raise SettingError(
                f"cannot listen at {address}: another program uses the port, or the address is not this machine's; "
                "stop that program, or have another port in the job (all parties approve it anew)"
            ) from None
        return f"{host}:{port}"

    def _talk(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        caller = self._caller(context)
        if not self._enter(caller):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many lines of one party")
        line = GrpcServerStream(requests, context, self._most_bytes)
        threading.Thread(target=self._answer, args=(caller, line), daemon=True).start()
        try:
            yield from line.outgoing()
        finally:
            line.close()
            with self._lock:
                self._open[caller] -= 1

    def _caller(self, context: Any) -> Party | None:
        if not self._secure:
            return None
        try:
            return certificate_party(context.auth_context()["x509_pem_cert"][0])
        except (FedSimError, LookupError):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate names no party")
            raise

    def _enter(self, caller: Party | None) -> bool:
        most = MAX_STREAMS_PER_PARTY if caller else MAX_STREAMS
        with self._lock:
            self._open[caller] = self._open.get(caller, 0) + 1
            if self._open[caller] > most:
                self._open[caller] -= 1
                return False
            return True


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The one method there is."""

    def __init__(self, talk: Any) -> None:
        self._method = grpc.stream_stream_rpc_method_handler(talk)

    def service(self, details: Any) -> Any:
        return self._method if details.method == METHOD else None


class GrpcServerStream:
    """A line that came in; its outgoing frames are what the handler yields."""

    def __init__(self, requests: Iterator[bytes], context: Any, most_bytes: int) -> None:
        self._context, self._queue, self._closed = context, SimpleQueue[bytes](), threading.Event()
        self._frames = _join_frames(requests, most_bytes, RateLimiter())
        context.add_callback(self._end)

    def outgoing(self) -> Iterator[bytes]:
        """Pieces to send, until the line is closed."""
        while frame := self._queue.get():
            yield from split_frame(frame)

    def send(self, frame: bytes) -> None:
        if self._closed.is_set():
            raise ConnectionLost
        self._queue.put(frame)

    def receive(self) -> bytes:
        try:
            return next(self._frames)
        except (StopIteration, grpc.RpcError):
            self.close()
            raise ConnectionLost from None

    def close(self) -> None:
        """What was sent goes out first; a caller that does not take it is cut off."""
        if not self._closed.is_set():
            self._end()
            _call_later(self._context.cancel)

    def _end(self) -> None:
        self._closed.set()
        self._queue.put(END_OF_STREAM)


class GrpcClientStream:
    """A line that was dialled."""

    def __init__(self, channel: Any, most_bytes: int) -> None:
        self._channel, self._queue, self._closed = channel, SimpleQueue[bytes](), threading.Event()
        self._call = channel.stream_stream(METHOD)(self._outgoing())
        self._frames = _join_frames(self._call, most_bytes, RateLimiter())

    def _outgoing(self) -> Iterator[bytes]:
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
        except grpc.RpcError as fault:
            self.close()
            raise ConnectionLost(_status_reason(fault)) from None

    def close(self) -> None:
        """What was sent goes out first; the other side then ends the line too, or is cut off."""
        if not self._closed.is_set():
            self._closed.set()
            self._queue.put(END_OF_STREAM)
            _call_later(self._channel.close)


class RateLimiter:
    """So many frames per second and no more, with room for a burst."""

    def __init__(self, rate: float = FRAMES_PER_SECOND, burst: float = FRAMES_AT_ONCE) -> None:
        self._rate, self._burst, self._left, self._seen = rate, burst, burst, time.monotonic()

    def take(self) -> None:
        """Count one; raises WireError where there are too many."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._seen) * self._rate) - 1
        self._seen = now
        if self._left < 0:
            raise WireError(f"more than {self._rate:.0f} messages per second")


def split_frame(frame: bytes) -> Iterator[bytes]:
    """A frame as gRPC messages.

    >>> [len(piece) for piece in split_frame(bytes(CHUNK_BYTES + 1))]
    [4194304, 1]
    """
    if len(frame) <= CHUNK_BYTES:
        yield frame
        return
    view = memoryview(frame)
    for start in range(0, len(frame), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])


def _join_frames(messages: Iterator[bytes], most_bytes: int, allowance: RateLimiter) -> Iterator[bytes]:
    """Whole frames from gRPC messages; nothing larger than it declares, and nothing larger than we allow."""
    most = min(FIRST_BYTES, most_bytes)  # nobody has said a word yet
    for first in messages:
        allowance.take()
        total = declared_size(first)
        if total > most:
            raise WireError(f"a frame declares {total} bytes; at most {most} are taken")
        most = most_bytes
        if len(first) == total:
            yield first
            continue
        collected = bytearray(first)
        while len(collected) < total:
            allowance.take()
            piece = next(messages, END_OF_STREAM)
            if not piece:
                raise ConnectionLost
            collected += piece
        if len(collected) != total:
            raise WireError(f"a frame of {len(collected)} bytes declares {total}")
        yield bytes(collected)


def _is_ready(channel: Any) -> bool:
    """Whether the connection stands, as soon as that is known."""
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


def _call_later(cut: Callable[[], Any]) -> None:
    timer = threading.Timer(CLOSING_SECONDS, cut)
    timer.daemon = True
    timer.start()


def _is_open(address: str) -> bool:
    """Whether somebody listens there: what TLS then refuses, it will refuse again."""
    try:
        socket.create_connection(split_address(address), timeout=1.0).close()
    except OSError:
        return False
    return True


def _status_reason(fault: Any) -> str:
    if fault.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return "the other side takes no more lines of this party for now"
    if fault.code() is grpc.StatusCode.UNAUTHENTICATED:
        return "the other side does not know our certificate's name"
    return "the line broke"
