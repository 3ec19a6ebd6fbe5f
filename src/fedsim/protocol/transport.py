"""The transport interface (ordered streams of frames to one peer), and the in-process transport, which uses queues.

A transport is registered in :data:`fedsim.registry.TRANSPORTS` as a function of the party's credentials.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from fedsim.errors import SettingError
from fedsim.protocol.messages import Party


class ConnectionLost(Exception):  # noqa: N818
    """A stream is broken. The session reconnects unless ``lasting`` says that reconnecting is pointless."""

    def __init__(self, reason: str = "connection lost", *, code: str = "", lasting: bool = False) -> None:
        super().__init__(reason)
        self.code, self.lasting = code, lasting


class FrameStream(Protocol):
    """One connection to one peer."""

    def send(self, frame: bytes) -> None:
        """Queue a frame for sending; raise ``ConnectionLost`` if the stream is known to be broken."""

    def receive(self) -> bytes:
        """Wait for the next frame and return it; raise ``ConnectionLost`` if the stream breaks."""

    def close(self) -> None:
        """Close the stream at both ends."""


# Called in a thread of its own for every incoming stream, with the caller that the certificate proves (None without
# TLS); it returns when it is done with the stream.
StreamHandler = Callable[[Party | None, FrameStream], None]


class Listener(Protocol):
    """An open port."""

    @property
    def address(self) -> str:
        """The address it listens at, with the real port if port 0 was requested."""

    def close(self) -> None:
        """Stop listening."""


class Transport(Protocol):
    """A way to reach peers."""

    def listen(self, address: str, answer: StreamHandler) -> Listener:
        """Accept streams at an address and handle each one by ``answer``."""

    def dial(self, address: str, peer: Party) -> FrameStream:
        """Open a stream to this peer and no other; raise ``ConnectionLost`` if that fails."""


class QueueStream:
    """One end of an in-process stream; an empty frame means that the stream is closed."""

    def __init__(self, incoming: SimpleQueue[bytes], outgoing: SimpleQueue[bytes]) -> None:
        self._incoming, self._outgoing, self.closed = incoming, outgoing, False

    def send(self, frame: bytes) -> None:
        if self.closed:
            raise ConnectionLost
        self._outgoing.put(frame)

    def receive(self) -> bytes:
        frame = b"" if self.closed else self._incoming.get()
        if not frame:
            self.close()
            raise ConnectionLost
        return frame

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._outgoing.put(b"")
            self._incoming.put(b"")


def stream_pair() -> tuple[QueueStream, QueueStream]:
    """Return both ends of an in-process stream.

    >>> here, there = stream_pair()
    >>> here.send(b"frame")
    >>> there.receive()
    b'frame'
    """
    forth: SimpleQueue[bytes] = SimpleQueue()
    back: SimpleQueue[bytes] = SimpleQueue()
    return QueueStream(back, forth), QueueStream(forth, back)


class InProcessTransport:
    """Connects parties in one process; addresses are arbitrary names, and credentials are not needed."""

    def __init__(self, credentials: object = None) -> None:
        self._listeners: dict[str, _InProcessListener] = {}

    def listen(self, address: str, answer: StreamHandler) -> _InProcessListener:
        if address in self._listeners:
            fault = f"address '{address}' is already in use; give every party its own address"
            raise SettingError(fault, code="address-in-use")
        self._listeners[address] = listener = _InProcessListener(address, answer, self._listeners)
        return listener

    def dial(self, address: str, peer: Party) -> QueueStream:
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionLost(f"no party listens at '{address}'")
        return listener.connect()


class _InProcessListener:
    def __init__(self, address: str, answer: StreamHandler, listeners: dict[str, _InProcessListener]) -> None:
        self.address, self._answer, self._listeners = address, answer, listeners
        self._lock = threading.Lock()
        self._streams: list[QueueStream] | None = []  # None after close

    def connect(self) -> QueueStream:
        here, there = stream_pair()
        with self._lock:
            if self._streams is None:
                raise ConnectionLost(f"no party listens at '{self.address}'")
            self._streams = [*(stream for stream in self._streams if not stream.closed), there]
        threading.Thread(target=self._answer, args=(None, there), daemon=True).start()
        return here

    def close(self) -> None:
        """Stop listening and close all streams, as the end of a process does."""
        self._listeners.pop(self.address, None)
        with self._lock:
            streams, self._streams = self._streams or [], None
        for stream in streams:
            stream.close()
