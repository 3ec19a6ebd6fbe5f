"""The transport interface, and the in-process transport: the same frames through queues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from fedsim.errors import SettingError
from fedsim.protocol.messages import Party


class ConnectionLost(Exception):  # noqa: N818
    """The line is gone. A session dials again; ``lasting`` says that this would be in vain, and why."""

    def __init__(self, reason: str = "the line broke", *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


class FrameStream(Protocol):
    """One connection to one peer."""

    def send(self, frame: bytes) -> None:
        """Hand a frame over; raises LineBroken where the line is known to be gone."""

    def receive(self) -> bytes:
        """The next frame, however long it takes; raises LineBroken."""

    def close(self) -> None:
        """Let the line go; both sides see it break."""


# The caller as its certificate proves it (nobody where there is no TLS); runs in a thread of its own until it is done
# with the line.
StreamHandler = Callable[[Party | None, FrameStream], None]


class Listener(Protocol):
    """An open door."""

    @property
    def address(self) -> str:
        """Where it listens, with the port that was found free where port 0 was asked for."""

    def close(self) -> None: ...


class Transport(Protocol):
    """A way to reach peers."""

    def listen(self, address: str, answer: StreamHandler) -> Listener:
        """Answer every line that comes in."""

    def dial(self, address: str, peer: Party) -> FrameStream:
        """A line to this peer and no other; raises LineBroken."""


class QueueStream:
    """One end of a line; an empty frame says that it broke."""

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
    """Both ends of a line.

    >>> here, there = stream_pair()
    >>> here.send(b"word")
    >>> there.receive()
    b'word'
    """
    forth: SimpleQueue[bytes] = SimpleQueue()
    back: SimpleQueue[bytes] = SimpleQueue()
    return QueueStream(back, forth), QueueStream(forth, back)


class InProcessTransport:
    """Addresses are any words; callers need no certificate, for they are ourselves."""

    def __init__(self) -> None:
        self._doors: dict[str, _InProcessListener] = {}

    def listen(self, address: str, answer: StreamHandler) -> _InProcessListener:
        if address in self._doors:
            raise SettingError(f"somebody listens at '{address}' already; give every party an address of its own")
        self._doors[address] = door = _InProcessListener(address, answer, self._doors)
        return door

    def dial(self, address: str, peer: Party) -> QueueStream:
        door = self._doors.get(address)
        if door is None:
            raise ConnectionLost(f"nobody listens at '{address}'")
        return door.entered()


class _InProcessListener:
    def __init__(self, address: str, answer: StreamHandler, doors: dict[str, _InProcessListener]) -> None:
        self.address, self._answer, self._doors = address, answer, doors
        self._lock = threading.Lock()
        self._lines: list[QueueStream] | None = []  # none once it is closed

    def entered(self) -> QueueStream:
        """A line that is answered."""
        here, there = stream_pair()
        with self._lock:
            if self._lines is None:
                raise ConnectionLost(f"nobody listens at '{self.address}'")
            self._lines = [*(line for line in self._lines if not line.closed), there]
        threading.Thread(target=self._answer, args=(None, there), daemon=True).start()
        return here

    def close(self) -> None:
        """Nobody comes in any more, and whoever is there has to leave: a process that ends takes its lines with it."""
        self._doors.pop(self.address, None)
        with self._lock:
            lines, self._lines = self._lines or [], None
        for line in lines:
            line.close()
